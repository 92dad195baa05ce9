-- Background work for a session is a run with a purpose, for PostgreSQL.

ALTER TABLE runs ADD COLUMN purpose TEXT COLLATE "C";
