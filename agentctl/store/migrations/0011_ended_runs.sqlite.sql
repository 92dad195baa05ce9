-- Indexes for counts of runs that have ended, and for the turns of a session, for SQLite.

-- The runs that ended at a time, of any age.
CREATE INDEX runs_finished ON runs (finished_at, status, user_id, component_type, component_id)
    WHERE finished_at IS NOT NULL;

-- The runs that have ended while their work goes on.
CREATE INDEX runs_at_work ON runs (status, created_at, run_id, stopped_at)
    WHERE status IN ('COMPLETED', 'ERROR', 'CANCELLED') AND stopped_at IS NULL;

-- The runs of a session without those of members and background work.
CREATE INDEX runs_turns ON runs (session_id, seq) WHERE parent_run_id IS NULL;

-- As in migration 3: the rows of a period that lists ask for, which is short.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('runs', 'runs_finished', '2000 1 1 1 1 1 noskipscan'),
    ('runs', 'runs_at_work',  '50 20 1 1 1 noskipscan'),
    ('runs', 'runs_turns',    '4000000 4 1 noskipscan');
ANALYZE sqlite_schema;
