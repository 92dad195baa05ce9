-- The whole schema, for SQLite. Times are microseconds since the epoch, UTC; flags are 0 or 1.
-- Columns that are read alone come before those that may be large: SQLite stores a large row as a
-- chain of pages and reads it up to the last requested column.

CREATE TABLE sessions (
    session_id     TEXT NOT NULL PRIMARY KEY,
    session_type   TEXT NOT NULL,
    component_id   TEXT,
    component_name TEXT,
    user_id        TEXT,
    session_name   TEXT NOT NULL,
    total_tokens   INTEGER NOT NULL,
    run_count      INTEGER NOT NULL,
    history_bytes  INTEGER NOT NULL,
    last_status    TEXT,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    metrics        TEXT NOT NULL,
    component_data TEXT,
    metadata       TEXT,
    summary        TEXT,
    session_state  TEXT
) STRICT;

CREATE INDEX sessions_created ON sessions (created_at, session_id);
CREATE INDEX sessions_updated ON sessions (updated_at, session_id);
CREATE INDEX sessions_user_created ON sessions (user_id, created_at, session_id);
CREATE INDEX sessions_user_updated ON sessions (user_id, updated_at, session_id);
CREATE INDEX sessions_component_created ON sessions (component_id, created_at, session_id);
CREATE INDEX sessions_component_updated ON sessions (component_id, updated_at, session_id);
CREATE INDEX sessions_type_created ON sessions (session_type, created_at, session_id);
CREATE INDEX sessions_type_updated ON sessions (session_type, updated_at, session_id);
CREATE INDEX sessions_name ON sessions (lower(session_name), created_at, session_id);

CREATE TABLE runs (
    run_id              TEXT NOT NULL PRIMARY KEY,
    session_id          TEXT NOT NULL REFERENCES sessions (session_id) ON DELETE CASCADE,
    seq                 INTEGER NOT NULL,
    parent_run_id       TEXT,
    component_type      TEXT NOT NULL,
    component_id        TEXT NOT NULL,
    user_id             TEXT,
    status              TEXT NOT NULL,
    background          INTEGER NOT NULL,
    attempt             INTEGER NOT NULL,
    owner               TEXT,
    cancel_requested_at INTEGER,
    cancel_requested_by TEXT,
    cancel_reason       TEXT,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER,
    stopped_at          INTEGER,
    late_result         INTEGER NOT NULL,
    error_code          TEXT,
    error_detail        TEXT,
    metrics             TEXT,
    history             TEXT,
    input               TEXT NOT NULL,
    content             TEXT,
    tools               TEXT,
    messages            TEXT,
    UNIQUE (session_id, seq),
    CHECK (status <> 'CANCELLED' OR cancel_requested_at IS NOT NULL)
) STRICT;

CREATE INDEX runs_created ON runs (created_at, run_id);
CREATE INDEX runs_status_created ON runs (status, created_at, run_id);
CREATE INDEX runs_type_created ON runs (component_type, created_at, run_id);
CREATE INDEX runs_component_created ON runs (component_id, created_at, run_id);
CREATE INDEX runs_session_created ON runs (session_id, created_at, run_id);
CREATE INDEX runs_user_created ON runs (user_id, created_at, run_id);
CREATE INDEX runs_parent ON runs (parent_run_id, seq) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_live_session ON runs (session_id, seq) WHERE status IN ('PENDING', 'RUNNING');
CREATE INDEX runs_live_owner ON runs (owner) WHERE status IN ('PENDING', 'RUNNING');

CREATE TABLE run_events (
    run_id    TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    events    TEXT NOT NULL,
    PRIMARY KEY (run_id, first_seq)
) STRICT;

CREATE TABLE workers (
    worker_id     TEXT NOT NULL PRIMARY KEY,
    host          TEXT NOT NULL,
    boot_id       TEXT NOT NULL,
    pid           INTEGER NOT NULL,
    process_start INTEGER NOT NULL,
    beat          INTEGER NOT NULL,
    started_at    INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency (
    principal  TEXT NOT NULL,
    key        TEXT NOT NULL,
    body_hash  TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) STRICT;

CREATE TABLE service_accounts (
    id           TEXT NOT NULL PRIMARY KEY,
    name         TEXT NOT NULL,
    token_hash   TEXT NOT NULL UNIQUE,
    token_hint   TEXT NOT NULL,
    scopes       TEXT NOT NULL,
    created_by   TEXT,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT;

CREATE TABLE audit_log (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    principal  TEXT,
    via        TEXT NOT NULL,
    operation  TEXT NOT NULL,
    resource   TEXT,
    outcome    TEXT NOT NULL,
    status     INTEGER,
    reason     TEXT,
    request_id TEXT
) STRICT;

CREATE TABLE schema_version (
    version    INTEGER NOT NULL PRIMARY KEY,
    applied_at INTEGER NOT NULL
) STRICT;
