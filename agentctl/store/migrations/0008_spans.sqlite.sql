-- Work after the end of a run, and the times of its parts, for SQLite.

-- JSON array of the names of the tools that still work although the run has ended, NULL for none.
ALTER TABLE runs ADD COLUMN holding TEXT;
CREATE INDEX runs_holding ON runs (owner, holding) WHERE holding IS NOT NULL;

-- JSON array of the spans of model calls, tool calls, members and steps.
ALTER TABLE runs ADD COLUMN spans TEXT;
