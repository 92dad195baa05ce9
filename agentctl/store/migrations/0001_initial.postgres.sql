-- The whole schema, for PostgreSQL. Times are microseconds since the epoch, UTC; flags are 0 or 1.
-- COLLATE "C" on each column that is compared or sorted: order by code point and lower() of ASCII
-- letters only, as in SQLite, with any locale of the server; and prefix ranges use the index.

CREATE TABLE sessions (
    session_id     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    session_type   TEXT COLLATE "C" NOT NULL,
    component_id   TEXT COLLATE "C",
    component_name TEXT COLLATE "C",
    user_id        TEXT COLLATE "C",
    session_name   TEXT COLLATE "C" NOT NULL,
    total_tokens   BIGINT NOT NULL,
    run_count      BIGINT NOT NULL,
    history_bytes  BIGINT NOT NULL,
    last_status    TEXT COLLATE "C",
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    metrics        TEXT NOT NULL,
    component_data TEXT,
    metadata       TEXT,
    summary        TEXT,
    session_state  TEXT
);

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
    run_id              TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    session_id          TEXT COLLATE "C" NOT NULL REFERENCES sessions (session_id) ON DELETE CASCADE,
    seq                 BIGINT NOT NULL,
    parent_run_id       TEXT COLLATE "C",
    component_type      TEXT COLLATE "C" NOT NULL,
    component_id        TEXT COLLATE "C" NOT NULL,
    user_id             TEXT COLLATE "C",
    status              TEXT COLLATE "C" NOT NULL,
    background          BIGINT NOT NULL,
    attempt             BIGINT NOT NULL,
    owner               TEXT COLLATE "C",
    cancel_requested_at BIGINT,
    cancel_requested_by TEXT COLLATE "C",
    cancel_reason       TEXT COLLATE "C",
    created_at          BIGINT NOT NULL,
    started_at          BIGINT,
    finished_at         BIGINT,
    stopped_at          BIGINT,
    late_result         BIGINT NOT NULL,
    error_code          TEXT COLLATE "C",
    error_detail        TEXT,
    metrics             TEXT,
    history             TEXT,
    input               TEXT NOT NULL,
    content             TEXT,
    tools               TEXT,
    messages            TEXT,
    UNIQUE (session_id, seq),
    CHECK (status <> 'CANCELLED' OR cancel_requested_at IS NOT NULL)
);

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
    run_id    TEXT COLLATE "C" NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    first_seq BIGINT NOT NULL,
    last_seq  BIGINT NOT NULL,
    events    TEXT NOT NULL,
    PRIMARY KEY (run_id, first_seq)
);

CREATE TABLE workers (
    worker_id     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    host          TEXT COLLATE "C" NOT NULL,
    boot_id       TEXT COLLATE "C" NOT NULL,
    pid           BIGINT NOT NULL,
    process_start BIGINT NOT NULL,
    beat          BIGINT NOT NULL,
    started_at    BIGINT NOT NULL
);

CREATE TABLE idempotency (
    principal  TEXT COLLATE "C" NOT NULL,
    key        TEXT COLLATE "C" NOT NULL,
    body_hash  TEXT COLLATE "C" NOT NULL,
    run_id     TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (principal, key)
);

CREATE TABLE service_accounts (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    name         TEXT COLLATE "C" NOT NULL,
    token_hash   TEXT COLLATE "C" NOT NULL UNIQUE,
    token_hint   TEXT COLLATE "C" NOT NULL,
    scopes       TEXT NOT NULL,
    created_by   TEXT COLLATE "C",
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    last_used_at BIGINT,
    revoked_at   BIGINT
);

CREATE TABLE audit_log (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         BIGINT NOT NULL,
    principal  TEXT COLLATE "C",
    via        TEXT COLLATE "C" NOT NULL,
    operation  TEXT COLLATE "C" NOT NULL,
    resource   TEXT COLLATE "C",
    outcome    TEXT COLLATE "C" NOT NULL,
    status     BIGINT,
    reason     TEXT COLLATE "C",
    request_id TEXT COLLATE "C"
);

CREATE TABLE schema_version (
    version    BIGINT NOT NULL PRIMARY KEY,
    applied_at BIGINT NOT NULL
);
