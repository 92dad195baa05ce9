-- What many servers and a long history ask for, for PostgreSQL. Append only, until it is released.

-- Keys are kept for a day, and looked for by age.
CREATE INDEX idempotency_created ON idempotency (created_at);

-- The audit is read by each of its filters, newest first.
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
CREATE INDEX audit_log_operation ON audit_log (operation, seq);
CREATE INDEX audit_log_outcome ON audit_log (outcome, seq);
CREATE INDEX audit_log_at ON audit_log (at, seq);

-- Further statements of this migration stand below this line.

-- What other servers may wait for is announced at the commit: a cancel that is requested and the end
-- of what it was requested for, stored events, and the end of an account. The rows are the truth;
-- who hears nothing finds them by looking.
CREATE FUNCTION agentctl_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE TRIGGER runs_announce AFTER UPDATE OF cancel_requested_at, status ON runs
    FOR EACH ROW WHEN (NEW.cancel_requested_at IS NOT NULL
                       AND (OLD.cancel_requested_at IS NULL OR NEW.status <> OLD.status))
    EXECUTE FUNCTION agentctl_announce();

CREATE TRIGGER run_events_announce AFTER INSERT ON run_events
    FOR EACH STATEMENT EXECUTE FUNCTION agentctl_announce();

CREATE TRIGGER service_accounts_announce AFTER UPDATE OF revoked_at ON service_accounts
    FOR EACH STATEMENT EXECUTE FUNCTION agentctl_announce();

-- A beat is a time of the database, whose clock all who look at it share.
CREATE FUNCTION agentctl_beat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.beat := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    RETURN NEW;
END
$$;

CREATE TRIGGER workers_beat BEFORE INSERT OR UPDATE OF beat ON workers
    FOR EACH ROW EXECUTE FUNCTION agentctl_beat();
