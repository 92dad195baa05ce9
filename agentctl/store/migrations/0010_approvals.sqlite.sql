-- Runs that wait (docs/approvals.md), for SQLite.

-- When a run paused; NULL for a run that has never paused.
ALTER TABLE runs ADD COLUMN paused_at INTEGER;
-- 1 once the present leg of a continued run has begun a call that needs no approval.
ALTER TABLE runs ADD COLUMN leg_effects INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_paused ON runs (session_id, seq) WHERE status = 'PAUSED';

-- What a run needs to go on, one row for each run that waits or continues. `attempt` is that of the
-- leg that wrote it; `body` is JSON.
CREATE TABLE run_checkpoints (
    run_id  TEXT NOT NULL PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    body    TEXT NOT NULL
) STRICT;

-- What paused runs wait for. The decision (`status`) and the call (`execution`) are two facts.
CREATE TABLE approvals (
    approval_id        TEXT NOT NULL PRIMARY KEY,
    kind               TEXT NOT NULL,
    status             TEXT NOT NULL,
    execution          TEXT,
    policy             TEXT NOT NULL,
    run_id             TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    root_run_id        TEXT NOT NULL,
    session_id         TEXT NOT NULL,
    component_type     TEXT NOT NULL,
    component_id       TEXT NOT NULL,
    user_id            TEXT,
    started_by         TEXT,
    tool_call_id       TEXT NOT NULL,
    tool_name          TEXT NOT NULL,
    idempotent         INTEGER NOT NULL,
    arguments_hash     TEXT NOT NULL,
    approved_hash      TEXT,
    created_at         INTEGER NOT NULL,
    expires_at         INTEGER,
    decided_at         INTEGER,
    decided_by         TEXT,
    executing_at       INTEGER,
    executed_at        INTEGER,
    request_id         TEXT,
    note               TEXT,
    question           TEXT,
    arguments          TEXT NOT NULL,
    approved_arguments TEXT,
    schema             TEXT,
    answer             TEXT,
    result             TEXT
) STRICT;

CREATE INDEX approvals_created ON approvals (created_at, approval_id);
CREATE INDEX approvals_status_created ON approvals (status, created_at, approval_id);
CREATE INDEX approvals_user_created ON approvals (user_id, created_at, approval_id);
CREATE INDEX approvals_component_created ON approvals (component_id, created_at, approval_id);
CREATE INDEX approvals_run ON approvals (run_id, created_at, approval_id);
CREATE INDEX approvals_root ON approvals (root_run_id, created_at, approval_id);
CREATE INDEX approvals_expires ON approvals (expires_at) WHERE status = 'pending';
CREATE INDEX approvals_outcome ON approvals (run_id) WHERE kind = 'outcome';
CREATE INDEX approvals_execution ON approvals (execution, created_at, approval_id)
    WHERE execution IS NOT NULL;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs_paused', '1000 1 1 noskipscan'),
    ('approvals', 'sqlite_autoindex_approvals_1', '1000000 1 noskipscan'),
    ('approvals', 'approvals_created',            '1000000 1 1 noskipscan'),
    ('approvals', 'approvals_status_created',     '1000000 200000 1 1 noskipscan'),
    ('approvals', 'approvals_user_created',       '1000000 10000 1 1 noskipscan'),
    ('approvals', 'approvals_component_created',  '1000000 50000 1 1 noskipscan'),
    ('approvals', 'approvals_run',                '1000000 1 1 1 noskipscan'),
    ('approvals', 'approvals_root',               '1000000 1 1 1 noskipscan'),
    ('approvals', 'approvals_expires',            '1000 1 noskipscan'),
    ('approvals', 'approvals_outcome',            '100 1 noskipscan'),
    ('approvals', 'approvals_execution',          '500000 200000 1 1 noskipscan'),
    ('run_checkpoints', 'sqlite_autoindex_run_checkpoints_1', '1000 1 noskipscan');
ANALYZE sqlite_schema;
