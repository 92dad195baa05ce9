-- Memories of users, and the terms by which they are found (decision 41), for PostgreSQL.

CREATE TABLE memories (
    memory_id  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    user_id    TEXT COLLATE "C" NOT NULL,
    agent_id   TEXT COLLATE "C",
    team_id    TEXT COLLATE "C",
    run_id     TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    topics     TEXT NOT NULL,
    memory     TEXT NOT NULL
);

CREATE INDEX memories_updated ON memories (updated_at, memory_id);
CREATE INDEX memories_created ON memories (created_at, memory_id);
CREATE INDEX memories_user_updated ON memories (user_id, updated_at, memory_id);
CREATE INDEX memories_user_created ON memories (user_id, created_at, memory_id);

-- One row for each word of a memory, and for each topic with the prefix "topic:". The user and the
-- time are those of the memory, so that one index finds the newest memories of a user with a term.
CREATE TABLE memory_terms (
    memory_id  TEXT COLLATE "C" NOT NULL REFERENCES memories (memory_id) ON DELETE CASCADE,
    term       TEXT COLLATE "C" NOT NULL,
    user_id    TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (memory_id, term)
);

CREATE INDEX memory_terms_user ON memory_terms (user_id, term, updated_at, memory_id);

-- The topics of all users.
CREATE INDEX memory_terms_topic ON memory_terms (term) WHERE term >= 'topic:' AND term < 'topic;';
