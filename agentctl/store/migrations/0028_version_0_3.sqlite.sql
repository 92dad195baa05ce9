-- The schema of version 0.3.0, from that of 0.2.0, for SQLite. Schemas 16 to 27 were never
-- released: no migration leads to them or from them.

-- ## A lease for the sweep, and an index for waiting runs

-- The worker that sweeps for all; another one may take the row over when it has expired.
CREATE TABLE leases (
    name       TEXT NOT NULL PRIMARY KEY,
    owner      TEXT,
    expires_at INTEGER NOT NULL
) STRICT;

INSERT INTO leases (name, owner, expires_at) VALUES ('sweep', NULL, 0);

-- Each heartbeat asks whether a run waits for any worker.
CREATE INDEX runs_waiting ON runs (created_at) WHERE status = 'PENDING' AND owner IS NULL;

-- ## Runs that any server may begin, and the queue of a session (docs/queue.md)

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

-- ## The journal of durable runs (docs/durable.md)

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

-- ## The origin of a run that repeats another one

-- The id of the run that it repeats, which may have been deleted since; NULL for none.
ALTER TABLE runs ADD COLUMN origin_run_id TEXT;
-- `retry`, or `fork`.
ALTER TABLE runs ADD COLUMN origin_kind TEXT;
-- The number of messages of the origin, or steps of a workflow, that it began with.
ALTER TABLE runs ADD COLUMN origin_at INTEGER;

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
ALTER TABLE runs ADD COLUMN model TEXT;
-- Of a run of several models the token counters of each as a JSON object, else NULL.
ALTER TABLE runs ADD COLUMN model_metrics TEXT;
-- 1 if the end of the run has been counted. An earlier version ends runs without that.
ALTER TABLE runs ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;

-- The ended runs that are not counted.
CREATE INDEX runs_uncounted ON runs (finished_at) WHERE counted = 0 AND finished_at IS NOT NULL;

-- The ended runs that the sums do not include yet: a row for each, written with its end.
CREATE TABLE usage_ends (
    seq            INTEGER PRIMARY KEY,
    is_root        INTEGER NOT NULL,
    user_id        TEXT,
    component_type TEXT NOT NULL,
    component_id   TEXT NOT NULL,
    status         TEXT NOT NULL,
    error_code     TEXT,
    created_at     INTEGER NOT NULL,
    finished_at    INTEGER NOT NULL,
    first_token_at INTEGER,
    model          TEXT,
    model_calls    INTEGER NOT NULL,
    metrics        TEXT,
    model_metrics  TEXT
) STRICT;

-- The sums of the runs that ended in an hour, and in a day (UTC): of all users together (everyone =
-- 1, user_id = ''), and of each user ('' for runs without a user). model is '' for none. cost is in
-- billionths of a US dollar. failures, first_token and duration are JSON objects with counts: by
-- error code, and by the bucket of a time (records/durations.py).
CREATE TABLE usage_hourly (
    everyone           INTEGER NOT NULL,
    user_id            TEXT NOT NULL,
    start              INTEGER NOT NULL,
    component_type     TEXT NOT NULL,
    component_id       TEXT NOT NULL,
    model              TEXT NOT NULL,
    completed          INTEGER NOT NULL,
    failed             INTEGER NOT NULL,
    cancelled          INTEGER NOT NULL,
    member_runs        INTEGER NOT NULL,
    unreported_runs    INTEGER NOT NULL,
    model_calls        INTEGER NOT NULL,
    input_tokens       INTEGER NOT NULL,
    output_tokens      INTEGER NOT NULL,
    total_tokens       INTEGER NOT NULL,
    cache_read_tokens  INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens   INTEGER NOT NULL,
    unpriced_tokens    INTEGER NOT NULL,
    cost               INTEGER NOT NULL,
    failures           TEXT NOT NULL,
    first_token        TEXT NOT NULL,
    duration           TEXT NOT NULL,
    PRIMARY KEY (everyone, user_id, start, component_type, component_id, model)
) STRICT;
CREATE TABLE usage_daily (
    everyone           INTEGER NOT NULL,
    user_id            TEXT NOT NULL,
    start              INTEGER NOT NULL,
    component_type     TEXT NOT NULL,
    component_id       TEXT NOT NULL,
    model              TEXT NOT NULL,
    completed          INTEGER NOT NULL,
    failed             INTEGER NOT NULL,
    cancelled          INTEGER NOT NULL,
    member_runs        INTEGER NOT NULL,
    unreported_runs    INTEGER NOT NULL,
    model_calls        INTEGER NOT NULL,
    input_tokens       INTEGER NOT NULL,
    output_tokens      INTEGER NOT NULL,
    total_tokens       INTEGER NOT NULL,
    cache_read_tokens  INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens   INTEGER NOT NULL,
    unpriced_tokens    INTEGER NOT NULL,
    cost               INTEGER NOT NULL,
    failures           TEXT NOT NULL,
    first_token        TEXT NOT NULL,
    duration           TEXT NOT NULL,
    PRIMARY KEY (everyone, user_id, start, component_type, component_id, model)
) STRICT;

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
    tokens         INTEGER NOT NULL,
    cost           INTEGER NOT NULL
) STRICT;

-- ## Steps of the members of durable teams and workflows

-- The attempt of the root run when a step was stored; NULL in rows from before this column.
ALTER TABLE run_steps ADD COLUMN root_attempt INTEGER;

-- ## The signed heads of the audit log

-- A head covers the entries after those of the head before it, up to `last_seq`. `token` is the
-- signed statement with all that a verifier needs; the other columns are for its writer.
CREATE TABLE audit_heads (
    number      INTEGER NOT NULL PRIMARY KEY,
    at          INTEGER NOT NULL,
    first_seq   INTEGER NOT NULL,
    last_seq    INTEGER NOT NULL,
    entries     INTEGER NOT NULL,
    expired_seq INTEGER NOT NULL,
    token       TEXT NOT NULL
) STRICT;

-- ## Search in the texts of sessions

-- The texts that a search finds: the message and the answer of an ended run, or the name of a session
-- (run_id is NULL). `place` is in the order of the creation of sessions: the milliseconds of created_at
-- times 2^20, and a number within them. `owner` identifies the user (store/search.py), `tokenizer`
-- names the index below that has the text.
CREATE TABLE search_texts (
    place      INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT REFERENCES runs (run_id) ON DELETE CASCADE,
    owner      TEXT NOT NULL,
    tokenizer  TEXT NOT NULL,
    text       TEXT NOT NULL
) STRICT;

CREATE INDEX search_texts_session ON search_texts (session_id, run_id);
CREATE INDEX search_texts_run ON search_texts (run_id);

-- The indexes of words and of sequences of three characters. Their content is the table above.
CREATE VIRTUAL TABLE search_words USING fts5 (
    owner, text, content = 'search_texts', content_rowid = 'place', columnsize = 0,
    tokenize = 'unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE search_trigrams USING fts5 (
    owner, text, content = 'search_texts', content_rowid = 'place', columnsize = 0,
    tokenize = 'trigram'
);

-- Remove deleted texts from the pages of the indexes at once, not at a later merge.
INSERT INTO search_words (search_words, rank) VALUES ('secure-delete', 1);
INSERT INTO search_trigrams (search_trigrams, rank) VALUES ('secure-delete', 1);

-- Triggers, so that the indexes follow every change, also of earlier releases and of other programs.
CREATE TRIGGER search_texts_added AFTER INSERT ON search_texts BEGIN
    INSERT INTO search_words (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'words';
    INSERT INTO search_trigrams (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'trigram';
END;
CREATE TRIGGER search_texts_removed AFTER DELETE ON search_texts BEGIN
    INSERT INTO search_words (search_words, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'words';
    INSERT INTO search_trigrams (search_trigrams, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'trigram';
END;
CREATE TRIGGER search_texts_changed AFTER UPDATE ON search_texts BEGIN
    INSERT INTO search_words (search_words, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'words';
    INSERT INTO search_trigrams (search_trigrams, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'trigram';
    INSERT INTO search_words (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'words';
    INSERT INTO search_trigrams (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'trigram';
END;
CREATE TRIGGER search_sessions_renamed AFTER UPDATE OF session_name ON sessions
WHEN OLD.session_name <> NEW.session_name BEGIN
    UPDATE search_texts SET text = NEW.session_name
        WHERE session_id = NEW.session_id AND run_id IS NULL;
END;

-- ## Holds of sessions, and what belongs to a session (docs/retention.md)

-- A JSON object with `held_at`, `held_by` and `reason`; NULL for a session that may be deleted.
ALTER TABLE sessions ADD COLUMN hold TEXT;

-- A server of an earlier version does not know holds: its deletion fails.
CREATE TRIGGER sessions_keep_held BEFORE DELETE ON sessions WHEN OLD.hold IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the session is held');
END;

-- The keys of a run, which are deleted with it.
CREATE INDEX idempotency_run ON idempotency (run_id);

-- ## The programs of the servers

-- The schema version of the program of a worker; NULL for programs before this migration. An upgrade
-- is finished only if no server is left that cannot read rows of events with pieces of text.
ALTER TABLE workers ADD COLUMN schema_version INTEGER;

-- ## The copy of a database to another one (docs/databases.md)

-- At most one row: the copy from this database (role 'source') or to it ('target'). `other` is the
-- place of the other database, without a password. `state` is moved (of a source), copying or
-- complete (of a target). `compatible_from` is that of the schema, which is changed in a database
-- that must not be served. Nothing uses `copier` and `drains_until`, nor the next two tables: they
-- belonged to copies during the work of servers, which were in no release.
CREATE TABLE copy_state (
    id              INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    copy_id         TEXT NOT NULL,
    role            TEXT NOT NULL,
    other           TEXT NOT NULL,
    state           TEXT NOT NULL,
    copier          TEXT,
    compatible_from INTEGER NOT NULL,
    drains_until    INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    finished_at     INTEGER
) STRICT;

CREATE TABLE copy_tables (
    table_name  TEXT NOT NULL PRIMARY KEY,
    cursor      TEXT,
    copied_rows INTEGER NOT NULL,
    is_complete INTEGER NOT NULL
) STRICT;

CREATE TABLE copy_changes (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    table_name TEXT NOT NULL,
    row_key    TEXT NOT NULL
) STRICT;

-- ## Figures for the planner, as in migration 3

INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs_next_legs', '50 1 1 noskipscan'),
    ('runs', 'runs_queued',    '1000 1 noskipscan'),
    ('run_steps', 'sqlite_autoindex_run_steps_1', '10000 10 1 noskipscan'),
    ('runs', 'runs_uncounted',     '50 1 noskipscan'),
    ('usage_hourly', 'sqlite_autoindex_usage_hourly_1', '1000000 500000 500 2 2 2 1 noskipscan'),
    ('usage_hourly', 'usage_hourly_start',              '1000000 1500 noskipscan'),
    ('usage_daily', 'sqlite_autoindex_usage_daily_1',   '1000000 500000 200 2 2 2 1 noskipscan'),
    ('usage_daily', 'usage_daily_start',                '1000000 3000 noskipscan'),
    ('search_texts', 'search_texts_session', '6000000 6 1 noskipscan'),
    ('search_texts', 'search_texts_run',     '6000000 1 noskipscan');
ANALYZE sqlite_schema;
