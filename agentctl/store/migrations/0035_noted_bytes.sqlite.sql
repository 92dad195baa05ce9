-- An index for the question of `db check` whether bytes are noted, for SQLite.

CREATE INDEX blob_checks_blob ON blob_checks (blob);

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('blob_checks', 'blob_checks_blob', '100000 1 noskipscan');
ANALYZE sqlite_schema;
