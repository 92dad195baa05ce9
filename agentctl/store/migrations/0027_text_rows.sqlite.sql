-- The programs of the servers, for SQLite.

-- The schema version of the program of a worker; NULL for programs before this migration. An upgrade
-- is finished only if no server is left that cannot read rows of events with pieces of text.
ALTER TABLE workers ADD COLUMN schema_version INTEGER;
