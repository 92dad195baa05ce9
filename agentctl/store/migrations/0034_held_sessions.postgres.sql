-- An index of the held sessions, which are few, for PostgreSQL.

-- By user, in the order in which an erasure names them.
CREATE INDEX sessions_held ON sessions (user_id, created_at, session_id) WHERE hold IS NOT NULL;
