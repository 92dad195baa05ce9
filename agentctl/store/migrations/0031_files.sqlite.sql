-- Files by reference (docs/files.md), for SQLite.

-- A JSON array of the references of the input of the run; NULL for none.
ALTER TABLE runs ADD COLUMN files TEXT;

-- A row for each file. Its bytes are in the store of `[files]` with the key `blob`. Without a session
-- it is deleted after a day, with one together with it.
CREATE TABLE files (
    file_id    TEXT NOT NULL PRIMARY KEY,
    user_id    TEXT,
    session_id TEXT REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT,
    name       TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size       INTEGER NOT NULL,
    sha256     TEXT NOT NULL,
    blob       TEXT NOT NULL,
    origin     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX files_created ON files (created_at, file_id);
CREATE INDEX files_user_created ON files (user_id, created_at, file_id);
CREATE INDEX files_session_created ON files (session_id, created_at, file_id);
CREATE INDEX files_session_name ON files (session_id, name, version);
CREATE INDEX files_blob ON files (blob);

-- The files without a session, which are few.
CREATE INDEX files_unbound ON files (created_at) WHERE session_id IS NULL;

-- Bytes that may have no file: of a deleted one, and of an upload that may not have ended. The
-- cleanup deletes those that have none.
CREATE TABLE blob_checks (
    seq  INTEGER PRIMARY KEY AUTOINCREMENT,
    blob TEXT NOT NULL
) STRICT;

CREATE TRIGGER files_check_blob AFTER DELETE ON files BEGIN
    INSERT INTO blob_checks (blob) VALUES (OLD.blob);
END;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('files', 'sqlite_autoindex_files_1', '1000000 1 noskipscan'),
    ('files', 'files_created',            '1000000 1 1 noskipscan'),
    ('files', 'files_user_created',       '1000000 1000 1 1 noskipscan'),
    ('files', 'files_session_created',    '1000000 5 1 1 noskipscan'),
    ('files', 'files_session_name',       '1000000 5 1 1 noskipscan'),
    ('files', 'files_blob',               '1000000 1 noskipscan'),
    ('files', 'files_unbound',            '1000 1 noskipscan');
ANALYZE sqlite_schema;
