-- Audit entries that represent several requests, for PostgreSQL.

-- The number of requests that an entry represents. Denials and rejected credentials are counted.
ALTER TABLE audit_log ADD COLUMN count BIGINT NOT NULL DEFAULT 1;
