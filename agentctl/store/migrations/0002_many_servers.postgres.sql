-- What many servers and a long history ask for, for PostgreSQL. Append only, until it is released.

-- Keys are kept for a day, and looked for by age.
CREATE INDEX idempotency_created ON idempotency (created_at);

-- The audit is read by each of its filters, newest first.
CREATE INDEX audit_log_principal ON audit_log (principal, seq);
CREATE INDEX audit_log_operation ON audit_log (operation, seq);
CREATE INDEX audit_log_outcome ON audit_log (outcome, seq);
CREATE INDEX audit_log_at ON audit_log (at, seq);

-- Further statements of this migration stand below this line.
