-- The oldest program that works with the schema, for PostgreSQL.

-- Each row has the schema version from which on a program can work with its migration; the greatest
-- one holds for the schema. A migration that an older program cannot work with changes the value of
-- the first row, in the same transaction.
ALTER TABLE schema_version ADD COLUMN compatible_from BIGINT NOT NULL DEFAULT 15;
