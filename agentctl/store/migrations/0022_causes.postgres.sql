-- The causes of the failures of a run, for PostgreSQL.

-- A JSON array of the exceptions of the code of its agent and tools; NULL for none. Reads of runs
-- do not select it: it is for callers with the scope `runs:debug`.
ALTER TABLE runs ADD COLUMN causes TEXT;
