-- Tables and indexes for several servers and long histories, for SQLite.

-- Keys are stored for a day, and found by age.
CREATE INDEX idempotency_created ON idempotency (created_at);

-- The audit log is read by each of its filters, newest first.
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
CREATE INDEX audit_log_operation ON audit_log (operation, seq);
CREATE INDEX audit_log_outcome ON audit_log (outcome, seq);

-- Number of rows that have ever left the lists, in one row. It shows that a long list is still long,
-- without counting it again (decision 36).
CREATE TABLE removals (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    sessions INTEGER NOT NULL,
    runs     INTEGER NOT NULL
) STRICT;

INSERT INTO removals (id, sessions, runs) VALUES (1, 0, 0);

-- Lists of one user's sessions by a second filter, and lists by a name prefix that many sessions
-- share, in their order. Other filter columns at the end of an index let rows be counted without
-- reading them.
CREATE INDEX sessions_user_type ON sessions (user_id, session_type, created_at, session_id);
CREATE INDEX sessions_user_component
    ON sessions (user_id, component_id, created_at, session_id, session_type);
CREATE INDEX sessions_user_name
    ON sessions (user_id, lower(session_name), created_at, session_id, session_type, component_id);
CREATE INDEX sessions_start ON sessions (substr(lower(session_name), 1, 3), created_at, session_id);
DROP INDEX sessions_name;
CREATE INDEX sessions_name
    ON sessions (lower(session_name), created_at, session_id, session_type, component_id);
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
