-- The traces of runs and of requests, for PostgreSQL.

-- The span of the first leg, then the span that caused the run if there is one, each as a
-- `traceparent` (W3C Trace Context); NULL if the run is not traced.
ALTER TABLE runs ADD COLUMN trace TEXT;
-- The trace of the caller, or of the run that the request has started; NULL for none.
ALTER TABLE audit_log ADD COLUMN trace_id TEXT;
