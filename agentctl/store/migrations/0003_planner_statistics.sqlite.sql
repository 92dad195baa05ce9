-- Figures for the planner of queries, for SQLite (decision 36). It plans for the rows of each
-- index on average, and does not know the values of a query. The figures are those of a large
-- database, with the rows of a large user, and are the same in every database: so are the plans.
-- Each line: the rows of an index, then the rows that share its first column, its first two, ...

-- The runs that have not ended, in the order of lists, and their workers.
DROP INDEX runs_live_owner;
CREATE INDEX runs_live ON runs (status, created_at, run_id, owner)
    WHERE status IN ('PENDING', 'RUNNING');

DROP TABLE IF EXISTS sqlite_stat4;
DROP TABLE IF EXISTS sqlite_stat1;
ANALYZE sqlite_schema;
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('sessions', 'sqlite_autoindex_sessions_1', '1000000 1 noskipscan'),
    ('sessions', 'sessions_created',            '1000000 1 1 noskipscan'),
    ('sessions', 'sessions_updated',            '1000000 1 1 noskipscan'),
    ('sessions', 'sessions_type_created',       '1000000 700000 1 1 noskipscan'),
    ('sessions', 'sessions_type_updated',       '1000000 700000 1 1 noskipscan'),
    ('sessions', 'sessions_component_created',  '1000000 440000 1 1 1 noskipscan'),
    ('sessions', 'sessions_component_updated',  '1000000 440000 1 1 noskipscan'),
    ('sessions', 'sessions_start',              '1000000 50000 1 1 noskipscan'),
    ('sessions', 'sessions_user_created',       '1000000 20000 1 1 noskipscan'),
    ('sessions', 'sessions_user_updated',       '1000000 20000 1 1 1 1 noskipscan'),
    ('sessions', 'sessions_user_type',          '1000000 20000 16000 1 1 noskipscan'),
    ('sessions', 'sessions_user_component',     '1000000 20000 12000 1 1 1 noskipscan'),
    ('sessions', 'sessions_user_name',          '1000000 20000 2 1 1 1 1 noskipscan'),
    ('sessions', 'sessions_name',               '1000000 10 1 1 1 1 noskipscan'),
    ('runs', 'sqlite_autoindex_runs_1', '5000000 1 noskipscan'),
    ('runs', 'sqlite_autoindex_runs_2', '5000000 5 1 noskipscan'),
    ('runs', 'runs_created',            '5000000 1 1 noskipscan'),
    ('runs', 'runs_type_created',       '5000000 3000000 1 1 noskipscan'),
    ('runs', 'runs_status_created',     '5000000 2000000 1 1 1 noskipscan'),
    ('runs', 'runs_component_created',  '5000000 1500000 1 1 1 1 noskipscan'),
    ('runs', 'runs_user_created',       '5000000 50000 1 1 1 1 1 noskipscan'),
    ('runs', 'runs_session_created',    '5000000 5 1 1 noskipscan'),
    ('runs', 'runs_parent',             '100000 5 1 noskipscan'),
    ('runs', 'runs_live',               '50 25 1 1 1 noskipscan'),
    ('runs', 'runs_live_session',       '50 1 1 noskipscan'),
    ('audit_log', 'audit_log_principal', '1000000 10000 1 noskipscan'),
    ('audit_log', 'audit_log_operation', '1000000 50000 1 noskipscan'),
    ('audit_log', 'audit_log_outcome',   '1000000 500000 1 noskipscan');
ANALYZE sqlite_schema;
