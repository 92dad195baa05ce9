-- Memories of users, and the terms by which they are found (decision 41), for SQLite.

CREATE TABLE memories (
    memory_id  TEXT NOT NULL PRIMARY KEY,
    user_id    TEXT NOT NULL,
    agent_id   TEXT,
    team_id    TEXT,
    run_id     TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    topics     TEXT NOT NULL,
    memory     TEXT NOT NULL
) STRICT;

CREATE INDEX memories_updated ON memories (updated_at, memory_id);
CREATE INDEX memories_created ON memories (created_at, memory_id);
CREATE INDEX memories_user_updated ON memories (user_id, updated_at, memory_id);
CREATE INDEX memories_user_created ON memories (user_id, created_at, memory_id);

-- One row for each word of a memory, and for each topic with the prefix "topic:". The user and the
-- time are those of the memory, so that one index finds the newest memories of a user with a term.
CREATE TABLE memory_terms (
    memory_id  TEXT NOT NULL REFERENCES memories (memory_id) ON DELETE CASCADE,
    term       TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (memory_id, term)
) STRICT;

CREATE INDEX memory_terms_user ON memory_terms (user_id, term, updated_at, memory_id);

-- The topics of all users.
CREATE INDEX memory_terms_topic ON memory_terms (term) WHERE term >= 'topic:' AND term < 'topic;';
