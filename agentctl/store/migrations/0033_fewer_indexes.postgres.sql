-- Fewer and smaller indexes of runs and sessions (decision 118), for PostgreSQL.

-- Runs in the order of lists. The columns after the id are those of other filters. Columns that
-- change are left out if it can be: the two entries of a run with one key take the space of one.
CREATE INDEX runs_by_created ON runs (created_at, run_id, component_type);
CREATE INDEX runs_by_component ON runs (component_id, created_at, run_id, component_type);
-- The runs with a status that few have.
CREATE INDEX runs_by_status ON runs (status, created_at, run_id, component_type, component_id)
    WHERE status IN ('PAUSED', 'ERROR', 'CANCELLED');
CREATE INDEX runs_by_finished ON runs (finished_at) WHERE finished_at IS NOT NULL;

DROP INDEX runs_created;
DROP INDEX runs_type_created;
DROP INDEX runs_component_created;
DROP INDEX runs_status_created;
DROP INDEX runs_finished;

-- Sessions in the order of lists, and by the beginning of their name.
CREATE INDEX sessions_by_created ON sessions (created_at, session_id, session_type);
CREATE INDEX sessions_by_updated ON sessions (updated_at, session_id, session_type, component_id);
CREATE INDEX sessions_by_user
    ON sessions (user_id, created_at, session_id, session_type, component_id);
CREATE INDEX sessions_by_name ON sessions (lower(session_name));
CREATE INDEX sessions_by_user_name ON sessions (user_id, lower(session_name));

DROP INDEX sessions_created;
DROP INDEX sessions_type_created;
DROP INDEX sessions_user_created;
DROP INDEX sessions_user_type;
DROP INDEX sessions_user_component;
DROP INDEX sessions_updated;
DROP INDEX sessions_type_updated;
DROP INDEX sessions_component_updated;
DROP INDEX sessions_name;
DROP INDEX sessions_start;
DROP INDEX sessions_user_name;
