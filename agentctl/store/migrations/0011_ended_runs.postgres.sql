-- Indexes for counts of runs that have ended, and for the turns of a session, for PostgreSQL.

-- The runs that ended at a time, of any age.
CREATE INDEX runs_finished ON runs (finished_at, status, user_id, component_type, component_id)
    WHERE finished_at IS NOT NULL;

-- The runs that have ended while their work goes on.
CREATE INDEX runs_at_work ON runs (status, created_at, run_id, stopped_at)
    WHERE status IN ('COMPLETED', 'ERROR', 'CANCELLED') AND stopped_at IS NULL;

-- The runs of a session without those of members and background work.
CREATE INDEX runs_turns ON runs (session_id, seq) WHERE parent_run_id IS NULL;
