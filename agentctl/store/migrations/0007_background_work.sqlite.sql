-- Background work for a session is a run with a purpose (docs/decisions/0047), for SQLite.

ALTER TABLE runs ADD COLUMN purpose TEXT;
