-- Usage: sums of tokens, cost, ends and times of runs by hour and day, for PostgreSQL.

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
