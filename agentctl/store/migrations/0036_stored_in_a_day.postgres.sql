-- What users store in a day, and places for bytes before they are kept (docs/limits.md), for PostgreSQL.

-- The bytes of an upload that has no file yet, which count in the quota of their user, and the time
-- at which they were noted. Both are 0 for the bytes of a deleted file.
ALTER TABLE blob_checks ADD COLUMN size BIGINT NOT NULL DEFAULT 0;
ALTER TABLE blob_checks ADD COLUMN noted_at BIGINT NOT NULL DEFAULT 0;

-- The files that a user has stored in one day, UTC, deleted ones included: days since 1970. The owner
-- is the first part of the keys of its bytes. Rows of earlier days are deleted.
CREATE TABLE file_days (
    owner TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    day   BIGINT NOT NULL,
    files BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
