-- Steps of the members of durable teams and workflows, for PostgreSQL.

-- The attempt of the root run when a step was stored; NULL in rows of earlier releases.
ALTER TABLE run_steps ADD COLUMN root_attempt BIGINT;
