-- The request that started a run, for PostgreSQL.

-- The id of the request, as in `X-Request-ID`, the log and the audit log; NULL for older runs.
ALTER TABLE runs ADD COLUMN request_id TEXT;
