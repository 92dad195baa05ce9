-- Messages to runs that work (docs/contract.md "Messages to a run"), for PostgreSQL.

-- Number of the messages that were sent to a run.
ALTER TABLE runs ADD COLUMN messages_sent BIGINT NOT NULL DEFAULT 0;

-- One row for each message, numbered from 1 in each run. `settled_at` is NULL while it waits. The run
-- that it becomes has its id; `next_run` is a JSON object with what that run starts from, NULL once
-- the message has its fate. `attempt` and `model_call_id` name the leg and the model call that got it.
-- The texts are the last columns, because SQLite reads a row up to the columns that it needs.
CREATE TABLE run_messages (
    message_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    run_id        TEXT COLLATE "C" NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    seq           BIGINT NOT NULL,
    status        TEXT COLLATE "C" NOT NULL,
    late          TEXT COLLATE "C" NOT NULL,
    created_at    BIGINT NOT NULL,
    created_by    TEXT COLLATE "C",
    request_id    TEXT COLLATE "C",
    settled_at    BIGINT,
    attempt       BIGINT,
    model_call_id TEXT COLLATE "C",
    reason        TEXT,
    content       TEXT NOT NULL,
    next_run      TEXT,
    UNIQUE (run_id, seq)
);

CREATE INDEX run_messages_waiting ON run_messages (run_id) WHERE status = 'waiting';

-- A message is a change that the worker of the run waits for.
CREATE FUNCTION agentctl_announce_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA || ' worker ' || NEW.owner);
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_announce_message AFTER UPDATE OF messages_sent ON runs
    FOR EACH ROW WHEN (NEW.messages_sent > OLD.messages_sent AND NEW.owner IS NOT NULL)
    EXECUTE FUNCTION agentctl_announce_message();
