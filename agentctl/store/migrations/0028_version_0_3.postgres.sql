-- The schema of version 0.3.0, from that of 0.2.0, for PostgreSQL. Schemas 16 to 27 were never
-- released: no migration leads to them or from them.

-- ## A lease for the sweep, an index for waiting runs, and events without notifications

-- The worker that sweeps for all; another one may take the row over when it has expired.
CREATE TABLE leases (
    name       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner      TEXT COLLATE "C",
    expires_at BIGINT NOT NULL
);

INSERT INTO leases (name, owner, expires_at) VALUES ('sweep', NULL, 0);

-- Each heartbeat asks whether a run waits for any worker.
CREATE INDEX runs_waiting ON runs (created_at) WHERE status = 'PENDING' AND owner IS NULL;

-- A commit with a notification waits for all others of its kind, in the whole cluster of PostgreSQL.
-- So stored events do not notify any more: the process that has stored them does, after the commit,
-- once for many runs, and only for runs with followers elsewhere. Servers of earlier versions do not
-- know these notifications; their followers poll every half second.
DROP TRIGGER run_events_announce ON run_events;
DROP FUNCTION agentctl_announce_events();

-- ## Runs that any server may begin, and the queue of a session (docs/queue.md)

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

-- ## The journal of durable runs (docs/durable.md)

-- What a durable run has done, one row for each step: the answers of its model that call tools, and
-- the calls. The process that executes the run numbers them. `started` is on the disk before a call
-- begins, `done` or `failed` after it, with the result in `body`.
CREATE TABLE run_steps (
    run_id         TEXT COLLATE "C" NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    seq            BIGINT NOT NULL,
    attempt        BIGINT NOT NULL,
    kind           TEXT COLLATE "C" NOT NULL,
    call_id        TEXT COLLATE "C",
    name           TEXT COLLATE "C",
    arguments_hash TEXT COLLATE "C",
    state          TEXT COLLATE "C" NOT NULL,
    idempotent     BIGINT NOT NULL DEFAULT 0,
    started_at     BIGINT NOT NULL,
    ended_at       BIGINT,
    body           TEXT,
    PRIMARY KEY (run_id, seq)
);

-- ## The origin of a run that repeats another one

-- The id of the run that it repeats, which may have been deleted since; NULL for none.
ALTER TABLE runs ADD COLUMN origin_run_id TEXT;
-- `retry`, or `fork`.
ALTER TABLE runs ADD COLUMN origin_kind TEXT;
-- The number of messages of the origin, or steps of a workflow, that it began with.
ALTER TABLE runs ADD COLUMN origin_at BIGINT;

-- The runs that repeat a run.
CREATE INDEX runs_by_origin ON runs (origin_run_id) WHERE origin_run_id IS NOT NULL;

-- ## The traces of runs and of requests

-- The span of the first leg, then the span that caused the run if there is one, each as a
-- `traceparent` (W3C Trace Context); NULL if the run is not traced.
ALTER TABLE runs ADD COLUMN trace TEXT;
-- The trace of the caller, or of the run that the request has started; NULL for none.
ALTER TABLE audit_log ADD COLUMN trace_id TEXT;

-- ## Usage: sums of tokens, cost, ends and times of runs by hour and day

-- The model of a run: that of its first model call; NULL if it is not known, or has called none.
ALTER TABLE runs ADD COLUMN model TEXT COLLATE "C";
-- Of a run of several models the token counters of each as a JSON object, else NULL.
ALTER TABLE runs ADD COLUMN model_metrics TEXT;
-- 1 if the end of the run has been counted. An earlier version ends runs without that.
ALTER TABLE runs ADD COLUMN counted BIGINT NOT NULL DEFAULT 0;

-- The ended runs that are not counted.
CREATE INDEX runs_uncounted ON runs (finished_at) WHERE counted = 0 AND finished_at IS NOT NULL;

-- The ended runs that the sums do not include yet: a row for each, written with its end.
CREATE TABLE usage_ends (
    seq            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    is_root        BIGINT NOT NULL,
    user_id        TEXT COLLATE "C",
    component_type TEXT COLLATE "C" NOT NULL,
    component_id   TEXT COLLATE "C" NOT NULL,
    status         TEXT COLLATE "C" NOT NULL,
    error_code     TEXT COLLATE "C",
    created_at     BIGINT NOT NULL,
    finished_at    BIGINT NOT NULL,
    first_token_at BIGINT,
    model          TEXT COLLATE "C",
    model_calls    BIGINT NOT NULL,
    metrics        TEXT,
    model_metrics  TEXT
);

-- The sums of the runs that ended in an hour, and in a day (UTC): of all users together (everyone =
-- 1, user_id = ''), and of each user ('' for runs without a user). model is '' for none. cost is in
-- billionths of a US dollar. failures, first_token and duration are JSON objects with counts: by
-- error code, and by the bucket of a time (records/durations.py).
CREATE TABLE usage_hourly (
    everyone           BIGINT NOT NULL,
    user_id            TEXT COLLATE "C" NOT NULL,
    start              BIGINT NOT NULL,
    component_type     TEXT COLLATE "C" NOT NULL,
    component_id       TEXT COLLATE "C" NOT NULL,
    model              TEXT COLLATE "C" NOT NULL,
    completed          BIGINT NOT NULL,
    failed             BIGINT NOT NULL,
    cancelled          BIGINT NOT NULL,
    member_runs        BIGINT NOT NULL,
    unreported_runs    BIGINT NOT NULL,
    model_calls        BIGINT NOT NULL,
    input_tokens       BIGINT NOT NULL,
    output_tokens      BIGINT NOT NULL,
    total_tokens       BIGINT NOT NULL,
    cache_read_tokens  BIGINT NOT NULL,
    cache_write_tokens BIGINT NOT NULL,
    reasoning_tokens   BIGINT NOT NULL,
    unpriced_tokens    BIGINT NOT NULL,
    cost               BIGINT NOT NULL,
    failures           TEXT NOT NULL,
    first_token        TEXT NOT NULL,
    duration           TEXT NOT NULL,
    PRIMARY KEY (everyone, user_id, start, component_type, component_id, model)
);
CREATE TABLE usage_daily (
    everyone           BIGINT NOT NULL,
    user_id            TEXT COLLATE "C" NOT NULL,
    start              BIGINT NOT NULL,
    component_type     TEXT COLLATE "C" NOT NULL,
    component_id       TEXT COLLATE "C" NOT NULL,
    model              TEXT COLLATE "C" NOT NULL,
    completed          BIGINT NOT NULL,
    failed             BIGINT NOT NULL,
    cancelled          BIGINT NOT NULL,
    member_runs        BIGINT NOT NULL,
    unreported_runs    BIGINT NOT NULL,
    model_calls        BIGINT NOT NULL,
    input_tokens       BIGINT NOT NULL,
    output_tokens      BIGINT NOT NULL,
    total_tokens       BIGINT NOT NULL,
    cache_read_tokens  BIGINT NOT NULL,
    cache_write_tokens BIGINT NOT NULL,
    reasoning_tokens   BIGINT NOT NULL,
    unpriced_tokens    BIGINT NOT NULL,
    cost               BIGINT NOT NULL,
    failures           TEXT NOT NULL,
    first_token        TEXT NOT NULL,
    duration           TEXT NOT NULL,
    PRIMARY KEY (everyone, user_id, start, component_type, component_id, model)
);

-- Sums by user in a period, and old sums.
CREATE INDEX usage_hourly_start ON usage_hourly (start);
CREATE INDEX usage_daily_start ON usage_daily (start);

-- ## The causes of the failures of a run, and the usage of live runs

-- A JSON array of the exceptions of the code of its agent and tools; NULL for none. Reads of runs
-- do not select it: it is for callers with the scope `runs:debug`.
ALTER TABLE runs ADD COLUMN causes TEXT;

-- What live runs with a budget have used so far, one row for each (docs/budgets.md). It counts until
-- the run has ended, when its row in usage_ends takes its place. cost is in billionths of a US dollar.
CREATE TABLE live_usage (
    run_id         TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    user_id        TEXT,
    component_type TEXT NOT NULL,
    component_id   TEXT NOT NULL,
    tokens         BIGINT NOT NULL,
    cost           BIGINT NOT NULL
);

-- ## Steps of the members of durable teams and workflows

-- The attempt of the root run when a step was stored; NULL in rows from before this column.
ALTER TABLE run_steps ADD COLUMN root_attempt BIGINT;

-- ## The signed heads of the audit log

-- A head covers the entries after those of the head before it, up to `last_seq`. `token` is the
-- signed statement with all that a verifier needs; the other columns are for its writer.
CREATE TABLE audit_heads (
    number      BIGINT NOT NULL PRIMARY KEY,
    at          BIGINT NOT NULL,
    first_seq   BIGINT NOT NULL,
    last_seq    BIGINT NOT NULL,
    entries     BIGINT NOT NULL,
    expired_seq BIGINT NOT NULL,
    token       TEXT COLLATE "C" NOT NULL
);

-- ## Search in the texts of sessions

-- The texts that a search finds: the message and the answer of an ended run, or the name of a session
-- (run_id is NULL). `place` is in the order of the creation of sessions: the milliseconds of created_at
-- times 2^20, and a number within them. `owner` identifies the user (store/search.py). `tokenizer`
-- is `words`.
CREATE TABLE search_texts (
    place      BIGINT NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT COLLATE "C" REFERENCES runs (run_id) ON DELETE CASCADE,
    owner      TEXT COLLATE "C" NOT NULL,
    tokenizer  TEXT COLLATE "C" NOT NULL,
    text       TEXT NOT NULL,
    words      TSVECTOR GENERATED ALWAYS AS
        (to_tsvector('simple', text) || array_to_tsvector(ARRAY[owner])) STORED
);

CREATE INDEX search_texts_session ON search_texts (session_id, run_id);
CREATE INDEX search_texts_run ON search_texts (run_id);
-- The order of places; in SQLite they are the key of the table.
CREATE INDEX search_texts_place ON search_texts USING btree (place);
CREATE INDEX search_texts_owner ON search_texts USING btree (owner, place);
-- The index exists before the first text, so no writer ever waits until it is built.
CREATE INDEX search_texts_words ON search_texts USING gin (words);

-- A trigger, so that the text follows every change, also of earlier releases.
CREATE FUNCTION agentctl_search_rename() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE search_texts SET text = NEW.session_name
        WHERE session_id = NEW.session_id AND run_id IS NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER search_sessions_renamed AFTER UPDATE OF session_name ON sessions
FOR EACH ROW WHEN (OLD.session_name <> NEW.session_name)
EXECUTE FUNCTION agentctl_search_rename();

-- ## Holds of sessions, and what belongs to a session (docs/retention.md)

-- A JSON object with `held_at`, `held_by` and `reason`; NULL for a session that may be deleted.
ALTER TABLE sessions ADD COLUMN hold TEXT;

-- A server of an earlier version does not know holds: its deletion fails.
CREATE FUNCTION agentctl_keep_held() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the session is held';
END
$$;

CREATE TRIGGER sessions_keep_held BEFORE DELETE ON sessions
    FOR EACH ROW WHEN (OLD.hold IS NOT NULL) EXECUTE FUNCTION agentctl_keep_held();

-- The keys of a run, which are deleted with it.
CREATE INDEX idempotency_run ON idempotency (run_id);

-- ## The programs of the servers

-- The schema version of the program of a worker; NULL for programs before this migration. An upgrade
-- is finished only if no server is left that cannot read rows of events with pieces of text.
ALTER TABLE workers ADD COLUMN schema_version BIGINT;

-- ## The copy of a database to another one (docs/databases.md)

-- At most one row: the copy from this database (role 'source') or to it ('target'). `other` is the
-- place of the other database, without a password. `state` is moved (of a source), copying or
-- complete (of a target). `compatible_from` is that of the schema, which is changed in a database
-- that must not be served. Nothing uses `copier` and `drains_until`, nor the next two tables: they
-- belonged to copies during the work of servers, which were in no release.
CREATE TABLE copy_state (
    id              BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    copy_id         TEXT COLLATE "C" NOT NULL,
    role            TEXT COLLATE "C" NOT NULL,
    other           TEXT COLLATE "C" NOT NULL,
    state           TEXT COLLATE "C" NOT NULL,
    copier          TEXT COLLATE "C",
    compatible_from BIGINT NOT NULL,
    drains_until    BIGINT NOT NULL,
    started_at      BIGINT NOT NULL,
    finished_at     BIGINT
);

CREATE TABLE copy_tables (
    table_name  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    cursor      TEXT COLLATE "C",
    copied_rows BIGINT NOT NULL,
    is_complete BIGINT NOT NULL
);

CREATE TABLE copy_changes (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_name TEXT COLLATE "C" NOT NULL,
    row_key    TEXT COLLATE "C" NOT NULL
);
