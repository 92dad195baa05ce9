-- The copy of a database to another one (docs/databases.md), for PostgreSQL.

-- At most one row: the copy from this database (role 'source') or to it ('target'). `other` is the
-- place of the other database, without a password. `state` is copying, moved (of a source) or
-- complete (of a target). `copier` is the process that writes to a target: another one replaces it.
-- `compatible_from` is that of the schema, which is changed in a database that must not be served.
-- Until `drains_until` no run starts: a finish waits for the end of the live runs.
CREATE TABLE copy_state (
    id              BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    copy_id         TEXT COLLATE "C" NOT NULL,
    role            TEXT COLLATE "C" NOT NULL,
    other           TEXT COLLATE "C" NOT NULL,
    state           TEXT COLLATE "C" NOT NULL,
    copier          TEXT COLLATE "C",
    compatible_from BIGINT NOT NULL,
    drains_until    BIGINT NOT NULL,
    started_at      BIGINT NOT NULL,
    finished_at     BIGINT
);

-- Of a target: the copied part of each table. `cursor` is the key of the last copied row as a JSON
-- array; later changes of rows up to it are copied, too.
CREATE TABLE copy_tables (
    table_name  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    cursor      TEXT COLLATE "C",
    copied_rows BIGINT NOT NULL,
    is_complete BIGINT NOT NULL
);

-- Of a source: the changed rows that the target does not have yet, written by triggers that exist
-- while a copy is under way. `row_key` is the key of a row as a JSON array.
CREATE TABLE copy_changes (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_name TEXT COLLATE "C" NOT NULL,
    row_key    TEXT COLLATE "C" NOT NULL
);
