-- The versions of components (docs/versions.md), for PostgreSQL.

-- The version of the component that answers; NULL if it is not known.
ALTER TABLE runs ADD COLUMN version TEXT COLLATE "C";
-- A JSON array of the changes of the version while the run waited, with their times; NULL for none.
ALTER TABLE runs ADD COLUMN version_changes TEXT;
-- The versions that a server executes, separated by spaces; NULL for a command.
ALTER TABLE workers ADD COLUMN versions TEXT;
-- Sums by version have everyone = 2, and the version in user_id: those of the users together. A
-- server of an earlier release adds none.
ALTER TABLE usage_ends ADD COLUMN version TEXT COLLATE "C";

-- A row for each version that a program has started with. `configuration` is the JSON from which
-- the version is made, without secrets.
CREATE TABLE component_versions (
    seq            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    component_type TEXT COLLATE "C" NOT NULL,
    component_id   TEXT COLLATE "C" NOT NULL,
    version        TEXT COLLATE "C" NOT NULL,
    first_seen_at  BIGINT NOT NULL,
    configuration  TEXT NOT NULL,
    UNIQUE (component_type, component_id, version)
);
