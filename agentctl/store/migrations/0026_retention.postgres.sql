-- Holds of sessions, and what belongs to a session (docs/retention.md), for PostgreSQL.

-- A JSON object with `held_at`, `held_by` and `reason`; NULL for a session that may be deleted.
ALTER TABLE sessions ADD COLUMN hold TEXT;

-- A server of an earlier version does not know holds: its deletion fails.
CREATE FUNCTION agentctl_keep_held() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the session is held';
END
$$;

CREATE TRIGGER sessions_keep_held BEFORE DELETE ON sessions
    FOR EACH ROW WHEN (OLD.hold IS NOT NULL) EXECUTE FUNCTION agentctl_keep_held();

-- The keys of a run, which are deleted with it.
CREATE INDEX idempotency_run ON idempotency (run_id);
