-- The versions of components (docs/versions.md), for SQLite.

-- The version of the component that answers; NULL if it is not known.
ALTER TABLE runs ADD COLUMN version TEXT;
-- A JSON array of the changes of the version while the run waited, with their times; NULL for none.
ALTER TABLE runs ADD COLUMN version_changes TEXT;
-- The versions that a server executes, separated by spaces; NULL for a command.
ALTER TABLE workers ADD COLUMN versions TEXT;
-- Sums by version have everyone = 2, and the version in user_id: those of the users together. A
-- server of an earlier release adds none.
ALTER TABLE usage_ends ADD COLUMN version TEXT;

-- A row for each version that a program has started with. `configuration` is the JSON from which
-- the version is made, without secrets.
CREATE TABLE component_versions (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    component_type TEXT NOT NULL,
    component_id   TEXT NOT NULL,
    version        TEXT NOT NULL,
    first_seen_at  INTEGER NOT NULL,
    configuration  TEXT NOT NULL,
    UNIQUE (component_type, component_id, version)
) STRICT;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('component_versions', 'sqlite_autoindex_component_versions_1', '1000 500 50 1 noskipscan');
ANALYZE sqlite_schema;
