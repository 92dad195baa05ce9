-- Files by reference (docs/files.md), for PostgreSQL.

-- A JSON array of the references of the input of the run; NULL for none.
ALTER TABLE runs ADD COLUMN files TEXT;

-- A row for each file. Its bytes are in the store of `[files]` with the key `blob`. Without a session
-- it is deleted after a day, with one together with it.
CREATE TABLE files (
    file_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    user_id    TEXT COLLATE "C",
    session_id TEXT COLLATE "C" REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT COLLATE "C",
    name       TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size       BIGINT NOT NULL,
    sha256     TEXT COLLATE "C" NOT NULL,
    blob       TEXT COLLATE "C" NOT NULL,
    origin     TEXT NOT NULL,
    version    BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

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
    seq  BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    blob TEXT COLLATE "C" NOT NULL
);

CREATE FUNCTION agentctl_check_blob() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO blob_checks (blob) VALUES (OLD.blob);
    RETURN NULL;
END
$$;

CREATE TRIGGER files_check_blob AFTER DELETE ON files
    FOR EACH ROW EXECUTE FUNCTION agentctl_check_blob();
