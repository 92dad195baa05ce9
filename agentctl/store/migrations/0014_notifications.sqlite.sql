-- An index for cancel requests, for SQLite.

-- A worker asks for the cancel requests of its runs: without this index that reads the live runs of
-- all workers.
CREATE INDEX runs_live_cancels ON runs (owner, cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND status IN ('PENDING', 'RUNNING');
