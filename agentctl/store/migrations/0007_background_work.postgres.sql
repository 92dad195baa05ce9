-- Background work for a session is a run with a purpose (docs/decisions/0047), for PostgreSQL.

ALTER TABLE runs ADD COLUMN purpose TEXT COLLATE "C";
