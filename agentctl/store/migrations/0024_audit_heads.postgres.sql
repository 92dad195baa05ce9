-- The signed heads of the audit log, for PostgreSQL.

-- A head covers the entries after those of the head before it, up to `last_seq`. `token` is the
-- signed statement with all that a verifier needs; the other columns are for its writer.
CREATE TABLE audit_heads (
    number      BIGINT NOT NULL PRIMARY KEY,
    at          BIGINT NOT NULL,
    first_seq   BIGINT NOT NULL,
    last_seq    BIGINT NOT NULL,
    entries     BIGINT NOT NULL,
    expired_seq BIGINT NOT NULL,
    token       TEXT COLLATE "C" NOT NULL
);
