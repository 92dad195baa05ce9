-- Notifications with a topic, and an index for cancel requests, for PostgreSQL.

-- The payload is the schema, and after a space the topic: `run ID` for stored events and the status
-- of a run, `worker ID` for the request for a cancel of one of its runs. A payload without a topic
-- concerns everyone.
CREATE FUNCTION agentctl_announce_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.cancel_requested_at IS NOT NULL AND OLD.cancel_requested_at IS NULL
        AND NEW.owner IS NOT NULL
    THEN
        PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA || ' worker ' || NEW.owner);
    END IF;
    IF NEW.status <> OLD.status THEN
        PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA || ' run ' || NEW.run_id);
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION agentctl_announce_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA || ' run ' || run_id)
    FROM (SELECT DISTINCT run_id FROM added) AS runs;
    RETURN NULL;
END
$$;

DROP TRIGGER runs_announce ON runs;
CREATE TRIGGER runs_announce AFTER UPDATE OF cancel_requested_at, status ON runs
    FOR EACH ROW WHEN (NEW.cancel_requested_at IS NOT NULL
                       AND (OLD.cancel_requested_at IS NULL OR NEW.status <> OLD.status))
    EXECUTE FUNCTION agentctl_announce_run();

DROP TRIGGER runs_announce_leg ON runs;
CREATE TRIGGER runs_announce_leg AFTER UPDATE OF status ON runs
    FOR EACH ROW WHEN (NEW.cancel_requested_at IS NULL AND (NEW.status = 'PAUSED' OR OLD.status = 'PAUSED'))
    EXECUTE FUNCTION agentctl_announce_run();

DROP TRIGGER run_events_announce ON run_events;
CREATE TRIGGER run_events_announce AFTER INSERT ON run_events
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION agentctl_announce_events();

-- A worker asks for the cancel requests of its runs: without this index that reads the live runs of
-- all workers.
CREATE INDEX runs_live_cancels ON runs (owner, cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND status IN ('PENDING', 'RUNNING');
