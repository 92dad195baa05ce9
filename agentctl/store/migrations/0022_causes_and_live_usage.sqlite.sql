-- The causes of the failures of a run, and the usage of live runs, for SQLite.

-- A JSON array of the exceptions of the code of its agent and tools; NULL for none. Reads of runs
-- do not select it: it is for callers with the scope `runs:debug`.
ALTER TABLE runs ADD COLUMN causes TEXT;

-- What live runs with a budget have used so far, one row for each (docs/budgets.md). It counts until
-- the run has ended, when its row in usage_ends takes its place. cost is in billionths of a US dollar.
CREATE TABLE live_usage (
    run_id         TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    user_id        TEXT,
    component_type TEXT NOT NULL,
    component_id   TEXT NOT NULL,
    tokens         INTEGER NOT NULL,
    cost           INTEGER NOT NULL
) STRICT;
