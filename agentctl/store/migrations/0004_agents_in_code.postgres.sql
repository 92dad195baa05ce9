-- Columns for agents in code, for PostgreSQL.

-- The JSON objects `metadata` and `session_state` of the request, NULL for none.
ALTER TABLE runs ADD COLUMN metadata TEXT;
ALTER TABLE runs ADD COLUMN session_state TEXT;

-- The value of a structured result as JSON, and the thinking of the model as text.
ALTER TABLE runs ADD COLUMN output TEXT;
ALTER TABLE runs ADD COLUMN reasoning_content TEXT;

-- The messages of a run in the form of the library that executed it, for later runs of an agent of
-- the same kind. `native_kind` is the kind of runner.
ALTER TABLE runs ADD COLUMN native_kind TEXT;
ALTER TABLE runs ADD COLUMN native_history TEXT;
