-- Runs that wait (docs/approvals.md), for PostgreSQL.

-- When a run paused; NULL for a run that has never paused.
ALTER TABLE runs ADD COLUMN paused_at BIGINT;
-- 1 once the present leg of a continued run has begun a call that needs no approval.
ALTER TABLE runs ADD COLUMN leg_effects BIGINT NOT NULL DEFAULT 0;
CREATE INDEX runs_paused ON runs (session_id, seq) WHERE status = 'PAUSED';

-- What a run needs to go on, one row for each run that waits or continues. `attempt` is that of the
-- leg that wrote it; `body` is JSON.
CREATE TABLE run_checkpoints (
    run_id  TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    attempt BIGINT NOT NULL,
    kind    TEXT COLLATE "C" NOT NULL,
    body    TEXT NOT NULL
);

-- What paused runs wait for. The decision (`status`) and the call (`execution`) are two facts.
CREATE TABLE approvals (
    approval_id        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    kind               TEXT COLLATE "C" NOT NULL,
    status             TEXT COLLATE "C" NOT NULL,
    execution          TEXT COLLATE "C",
    policy             TEXT COLLATE "C" NOT NULL,
    run_id             TEXT COLLATE "C" NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    root_run_id        TEXT COLLATE "C" NOT NULL,
    session_id         TEXT COLLATE "C" NOT NULL,
    component_type     TEXT COLLATE "C" NOT NULL,
    component_id       TEXT COLLATE "C" NOT NULL,
    user_id            TEXT COLLATE "C",
    started_by         TEXT COLLATE "C",
    tool_call_id       TEXT COLLATE "C" NOT NULL,
    tool_name          TEXT COLLATE "C" NOT NULL,
    idempotent         BIGINT NOT NULL,
    arguments_hash     TEXT COLLATE "C" NOT NULL,
    approved_hash      TEXT COLLATE "C",
    created_at         BIGINT NOT NULL,
    expires_at         BIGINT,
    decided_at         BIGINT,
    decided_by         TEXT COLLATE "C",
    executing_at       BIGINT,
    executed_at        BIGINT,
    request_id         TEXT COLLATE "C",
    note               TEXT,
    question           TEXT,
    arguments          TEXT NOT NULL,
    approved_arguments TEXT,
    schema             TEXT,
    answer             TEXT,
    result             TEXT
);

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

-- A run that is to go on, and a decision, are changes that other servers wait for.
CREATE TRIGGER runs_announce_leg AFTER UPDATE OF status ON runs
    FOR EACH ROW WHEN (NEW.cancel_requested_at IS NULL AND (NEW.status = 'PAUSED' OR OLD.status = 'PAUSED'))
    EXECUTE FUNCTION agentctl_announce();
