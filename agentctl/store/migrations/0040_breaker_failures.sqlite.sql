-- Failures that breakers count (docs/halts.md "Breakers"), for SQLite.

-- A row for each failed run of a component, or failed call of a model, that has a breaker. The rows of
-- a scope are deleted when a halt of this scope ends; a later failure deletes those that are too old.
CREATE TABLE breaker_failures (
    scope      TEXT NOT NULL,
    scope_id   TEXT NOT NULL,
    failed_at  INTEGER NOT NULL,
    failure_id TEXT NOT NULL,
    error_code TEXT NOT NULL,
    PRIMARY KEY (scope, scope_id, failed_at, failure_id)
) STRICT;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('breaker_failures', 'sqlite_autoindex_breaker_failures_1', '100 50 10 1 1 noskipscan');
ANALYZE sqlite_schema;
