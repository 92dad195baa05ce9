-- The signed heads of the audit log, for SQLite.

-- A head covers the entries after those of the head before it, up to `last_seq`. `token` is the
-- signed statement with all that a verifier needs; the other columns are for its writer.
CREATE TABLE audit_heads (
    number      INTEGER NOT NULL PRIMARY KEY,
    at          INTEGER NOT NULL,
    first_seq   INTEGER NOT NULL,
    last_seq    INTEGER NOT NULL,
    entries     INTEGER NOT NULL,
    expired_seq INTEGER NOT NULL,
    token       TEXT NOT NULL
) STRICT;
