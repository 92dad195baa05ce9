-- The origin of a run that repeats another one, for SQLite.

-- The id of the run that it repeats, which may have been deleted since; NULL for none.
ALTER TABLE runs ADD COLUMN origin_run_id TEXT;
-- `retry`, or `fork`.
ALTER TABLE runs ADD COLUMN origin_kind TEXT;
-- The number of messages of the origin, or steps of a workflow, that it began with.
ALTER TABLE runs ADD COLUMN origin_at INTEGER;

-- The runs that repeat a run.
CREATE INDEX runs_by_origin ON runs (origin_run_id) WHERE origin_run_id IS NOT NULL;
