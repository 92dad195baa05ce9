-- The object `input` of runs, for PostgreSQL.

-- The JSON object `input` of the request, NULL for none.
ALTER TABLE runs ADD COLUMN input_object TEXT;
