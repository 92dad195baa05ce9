-- What many servers and a long history ask for, for PostgreSQL. Append only, until it is released.

-- Keys are kept for a day, and looked for by age.
CREATE INDEX idempotency_created ON idempotency (created_at);

-- The audit is read by each of its filters, newest first.
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
CREATE INDEX audit_log_operation ON audit_log (operation, seq);
CREATE INDEX audit_log_outcome ON audit_log (outcome, seq);

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

-- How many rows have ever left the lists. Of a list that had more rows than are counted this tells
-- that it still has, without counting again (docs/decisions/0036). One row.
CREATE TABLE removals (
    id       BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    sessions BIGINT NOT NULL,
    runs     BIGINT NOT NULL
);

INSERT INTO removals (id, sessions, runs) VALUES (1, 0, 0);

-- Lists of one user's sessions by a second filter; lists by the beginning of names that very many
-- share, in their order; and, behind what orders an index, whatever else can be asked for, so that
-- rows are counted without being read: PostgreSQL wants the column of an expression there as well.
CREATE INDEX sessions_user_type ON sessions (user_id, session_type, created_at, session_id);
CREATE INDEX sessions_user_component
    ON sessions (user_id, component_id, created_at, session_id, session_type);
CREATE INDEX sessions_user_name
    ON sessions (user_id, lower(session_name), created_at, session_id, session_type, component_id);
CREATE INDEX sessions_start ON sessions (substr(lower(session_name), 1, 3), created_at, session_id);
DROP INDEX sessions_name;
CREATE INDEX sessions_name
    ON sessions (lower(session_name), created_at, session_id, session_type, component_id)
    INCLUDE (session_name);
DROP INDEX sessions_component_created;
CREATE INDEX sessions_component_created
    ON sessions (component_id, created_at, session_id, session_type);
DROP INDEX sessions_user_updated;
CREATE INDEX sessions_user_updated
    ON sessions (user_id, updated_at, session_id, session_type, component_id);
DROP INDEX runs_user_created;
CREATE INDEX runs_user_created
    ON runs (user_id, created_at, run_id, status, component_type, component_id);
DROP INDEX runs_component_created;
CREATE INDEX runs_component_created
    ON runs (component_id, created_at, run_id, status, component_type);
DROP INDEX runs_status_created;
CREATE INDEX runs_status_created ON runs (status, created_at, run_id, component_type);
