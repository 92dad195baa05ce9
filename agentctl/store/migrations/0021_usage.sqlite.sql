-- Usage: sums of tokens, cost, ends and times of runs by hour and day, for SQLite.

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

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs_uncounted',     '50 1 noskipscan'),
    ('usage_hourly', 'sqlite_autoindex_usage_hourly_1', '1000000 500000 500 2 2 2 1 noskipscan'),
    ('usage_hourly', 'usage_hourly_start',              '1000000 1500 noskipscan'),
    ('usage_daily', 'sqlite_autoindex_usage_daily_1',   '1000000 500000 200 2 2 2 1 noskipscan'),
    ('usage_daily', 'usage_daily_start',                '1000000 3000 noskipscan');
ANALYZE sqlite_schema;
