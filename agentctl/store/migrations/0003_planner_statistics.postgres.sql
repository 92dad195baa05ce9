-- The same indexes as in SQLite, for PostgreSQL, which gathers its statistics itself.

-- The runs that have not ended, in the order of lists, and their workers.
DROP INDEX runs_live_owner;
CREATE INDEX runs_live ON runs (status, created_at, run_id, owner)
    WHERE status IN ('PENDING', 'RUNNING');
