-- The journal of durable runs (docs/durable.md), for PostgreSQL.

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
