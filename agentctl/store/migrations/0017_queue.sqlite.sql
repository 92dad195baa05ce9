-- Runs that any server may begin, and the queue of a session (docs/queue.md), for SQLite.

-- When a run began to wait in the queue; NULL for a run that has never waited there.
ALTER TABLE runs ADD COLUMN queued_at INTEGER;
-- Of a run that waits for a server that begins it from its start checkpoint, else NULL. 0: it waits
-- for the end of the earlier runs of its session; -1: for the begin of those that wait; otherwise
-- the time since which any server may begin it.
ALTER TABLE runs ADD COLUMN queue_turn INTEGER;
-- 1 if a run may wait in the queue of the session.
ALTER TABLE sessions ADD COLUMN has_queue INTEGER NOT NULL DEFAULT 0;

-- The legs that any server may claim, oldest first.
CREATE INDEX runs_next_legs ON runs (coalesce(queue_turn, created_at), run_id)
    WHERE status = 'PENDING' AND owner IS NULL AND coalesce(queue_turn, attempt - 1) > 0;
-- The runs that wait in the queue.
CREATE INDEX runs_queued ON runs (queued_at)
    WHERE status = 'PENDING' AND queue_turn IS NOT NULL AND started_at IS NULL;

-- A server of an earlier version ends or claims every run that has no owner. A server that knows the
-- queue changes `queue_turn` in the same statement.
CREATE TRIGGER runs_keep_queued BEFORE UPDATE OF status ON runs
WHEN OLD.queue_turn IS NOT NULL AND NEW.queue_turn IS NOT NULL
    AND NEW.status NOT IN ('PENDING', 'CANCELLED')
BEGIN
    SELECT RAISE(IGNORE);
END;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs_next_legs', '50 1 1 noskipscan'),
    ('runs', 'runs_queued',    '1000 1 noskipscan');
ANALYZE sqlite_schema;
