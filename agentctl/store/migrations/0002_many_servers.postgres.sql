-- Tables and indexes for several servers and long histories, for PostgreSQL.

-- Keys are stored for a day, and found by age.
CREATE INDEX idempotency_created ON idempotency (created_at);

-- The audit log is read by each of its filters, newest first.
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
CREATE INDEX audit_log_operation ON audit_log (operation, seq);
CREATE INDEX audit_log_outcome ON audit_log (outcome, seq);

-- A notification at the commit announces the changes that other servers may wait for: the request for
-- a cancel and the end of its run, stored events, and a revoked account. A server that receives no
-- notification finds the changes when it polls.
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

-- A heartbeat is a time of the database server, whose clock all servers share.
CREATE FUNCTION agentctl_beat() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.beat := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    RETURN NEW;
END
$$;

CREATE TRIGGER workers_beat BEFORE INSERT OR UPDATE OF beat ON workers
    FOR EACH ROW EXECUTE FUNCTION agentctl_beat();

-- Number of rows that have ever left the lists, in one row. It shows that a long list is still long,
-- without counting it again (decision 36).
CREATE TABLE removals (
    id       BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    sessions BIGINT NOT NULL,
    runs     BIGINT NOT NULL
);

INSERT INTO removals (id, sessions, runs) VALUES (1, 0, 0);

-- Lists of one user's sessions by a second filter, and lists by a name prefix that many sessions
-- share, in their order. Other filter columns at the end of an index let rows be counted without
-- reading them.
-- PostgreSQL needs the column of an expression in the index as well.
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
