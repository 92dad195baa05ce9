-- An index of the held sessions, which are few, for SQLite.

-- By user, in the order in which an erasure names them.
CREATE INDEX sessions_held ON sessions (user_id, created_at, session_id) WHERE hold IS NOT NULL;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('sessions', 'sessions_held', '1000 10 1 1 noskipscan');
ANALYZE sqlite_schema;
