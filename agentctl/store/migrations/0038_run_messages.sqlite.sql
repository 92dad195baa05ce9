-- Messages to runs that work (docs/contract.md "Messages to a run"), for SQLite.

-- Number of the messages that were sent to a run.
ALTER TABLE runs ADD COLUMN messages_sent INTEGER NOT NULL DEFAULT 0;

-- One row for each message, numbered from 1 in each run. `settled_at` is NULL while it waits. The run
-- that it becomes has its id; `next_run` is a JSON object with what that run starts from, NULL once
-- the message has its fate. `attempt` and `model_call_id` name the leg and the model call that got it.
-- The texts are the last columns, because SQLite reads a row up to the columns that it needs.
CREATE TABLE run_messages (
    message_id    TEXT NOT NULL PRIMARY KEY,
    run_id        TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    status        TEXT NOT NULL,
    late          TEXT NOT NULL,
    created_at    INTEGER NOT NULL,
    created_by    TEXT,
    request_id    TEXT,
    settled_at    INTEGER,
    attempt       INTEGER,
    model_call_id TEXT,
    reason        TEXT,
    content       TEXT NOT NULL,
    next_run      TEXT,
    UNIQUE (run_id, seq)
) STRICT;

CREATE INDEX run_messages_waiting ON run_messages (run_id) WHERE status = 'waiting';

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('run_messages', 'sqlite_autoindex_run_messages_1', '100000 1 noskipscan'),
    ('run_messages', 'sqlite_autoindex_run_messages_2', '100000 5 1 noskipscan'),
    ('run_messages', 'run_messages_waiting', '50 2 noskipscan');
ANALYZE sqlite_schema;
