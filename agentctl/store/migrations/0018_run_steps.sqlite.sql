-- The journal of durable runs (docs/durable.md), for SQLite.

-- What a durable run has done, one row for each step: the answers of its model that call tools, and
-- the calls. The process that executes the run numbers them. `started` is on the disk before a call
-- begins, `done` or `failed` after it, with the result in `body`.
CREATE TABLE run_steps (
    run_id         TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    seq            INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    kind           TEXT NOT NULL,
    call_id        TEXT,
    name           TEXT,
    arguments_hash TEXT,
    state          TEXT NOT NULL,
    idempotent     INTEGER NOT NULL DEFAULT 0,
    started_at     INTEGER NOT NULL,
    ended_at       INTEGER,
    body           TEXT,
    PRIMARY KEY (run_id, seq)
) STRICT;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('run_steps', 'sqlite_autoindex_run_steps_1', '10000 10 1 noskipscan');
ANALYZE sqlite_schema;
