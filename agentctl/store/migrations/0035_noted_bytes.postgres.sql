-- An index for the question of `db check` whether bytes are noted, for PostgreSQL.

CREATE INDEX blob_checks_blob ON blob_checks (blob);
