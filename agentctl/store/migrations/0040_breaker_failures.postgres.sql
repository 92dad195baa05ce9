-- Failures that breakers count (docs/halts.md "Breakers"), for PostgreSQL.

-- A row for each failed run of a component, or failed call of a model, that has a breaker. The rows of
-- a scope are deleted when a halt of this scope ends; a later failure deletes those that are too old.
CREATE TABLE breaker_failures (
    scope      TEXT COLLATE "C" NOT NULL,
    scope_id   TEXT COLLATE "C" NOT NULL,
    failed_at  BIGINT NOT NULL,
    failure_id TEXT COLLATE "C" NOT NULL,
    error_code TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (scope, scope_id, failed_at, failure_id)
);
