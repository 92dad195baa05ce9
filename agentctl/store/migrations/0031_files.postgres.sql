-- Files by reference (docs/files.md), for PostgreSQL.

-- A JSON array of the references of the input of the run; NULL for none.
ALTER TABLE runs ADD COLUMN files TEXT;

-- A row for each file. Its bytes are in the store of `[files]`, at a key of its user and its
-- sha256. Without a session it is deleted after a day, with one together with it.
CREATE TABLE files (
    file_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    user_id    TEXT COLLATE "C",
    session_id TEXT COLLATE "C" REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT COLLATE "C",
    name       TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size       BIGINT NOT NULL,
    sha256     TEXT COLLATE "C" NOT NULL,
    origin     TEXT NOT NULL,
    version    BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE INDEX files_created ON files (created_at, file_id);
CREATE INDEX files_user_created ON files (user_id, created_at, file_id);
CREATE INDEX files_session_created ON files (session_id, created_at, file_id);
CREATE INDEX files_session_name ON files (session_id, name, version);
CREATE INDEX files_sha256 ON files (sha256, user_id);

-- The files without a session, which are few.
CREATE INDEX files_unbound ON files (created_at) WHERE session_id IS NULL;
