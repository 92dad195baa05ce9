-- Background work for a session is a run with a purpose, for SQLite.

ALTER TABLE runs ADD COLUMN purpose TEXT;
