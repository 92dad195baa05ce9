-- Runs that any server may begin, and the queue of a session (docs/queue.md), for PostgreSQL.

-- When a run began to wait in the queue; NULL for a run that has never waited there.
ALTER TABLE runs ADD COLUMN queued_at BIGINT;
-- Of a run that waits for a server that begins it from its start checkpoint, else NULL. 0: it waits
-- for the end of the earlier runs of its session; -1: for the begin of those that wait; otherwise
-- the time since which any server may begin it.
ALTER TABLE runs ADD COLUMN queue_turn BIGINT;
-- 1 if a run may wait in the queue of the session.
ALTER TABLE sessions ADD COLUMN has_queue BIGINT NOT NULL DEFAULT 0;

-- The legs that any server may claim, oldest first.
CREATE INDEX runs_next_legs ON runs (coalesce(queue_turn, created_at), run_id)
    WHERE status = 'PENDING' AND owner IS NULL AND coalesce(queue_turn, attempt - 1) > 0;
-- The runs that wait in the queue.
CREATE INDEX runs_queued ON runs (queued_at)
    WHERE status = 'PENDING' AND queue_turn IS NOT NULL AND started_at IS NULL;

-- A server of an earlier version ends or claims every run that has no owner. A server that knows the
-- queue changes `queue_turn` in the same statement.
CREATE FUNCTION agentctl_keep_queued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_keep_queued BEFORE UPDATE OF status ON runs
    FOR EACH ROW WHEN (OLD.queue_turn IS NOT NULL AND NEW.queue_turn IS NOT NULL
                       AND NEW.status NOT IN ('PENDING', 'CANCELLED'))
    EXECUTE FUNCTION agentctl_keep_queued();

-- The topic `legs`: a run may be claimed by any server.
CREATE FUNCTION agentctl_announce_leg() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA || ' legs');
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_announce_next_leg AFTER UPDATE OF status, queue_turn ON runs
    FOR EACH ROW WHEN (NEW.status = 'PENDING' AND NEW.owner IS NULL
                       AND coalesce(NEW.queue_turn, NEW.attempt - 1) > 0)
    EXECUTE FUNCTION agentctl_announce_leg();
