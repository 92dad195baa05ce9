-- Audit entries that represent several requests, for SQLite.

-- The number of requests that an entry represents. Denials and rejected credentials are counted.
ALTER TABLE audit_log ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
