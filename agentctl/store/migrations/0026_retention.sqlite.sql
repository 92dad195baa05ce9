-- Holds of sessions, and what belongs to a session (docs/retention.md), for SQLite.

-- A JSON object with `held_at`, `held_by` and `reason`; NULL for a session that may be deleted.
ALTER TABLE sessions ADD COLUMN hold TEXT;

-- A server of an earlier version does not know holds: its deletion fails.
CREATE TRIGGER sessions_keep_held BEFORE DELETE ON sessions WHEN OLD.hold IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the session is held');
END;

-- The keys of a run, which are deleted with it.
CREATE INDEX idempotency_run ON idempotency (run_id);
