-- Items that graphs of LangGraph keep for users (docs/agents.md "LangGraph"), for SQLite.

-- The namespace is "own." or "shared." and the labels, each with a period at its end. Items that
-- users share, and those of runs without a user, have the user ''. An item with a `ttl`, in
-- microseconds, ends at `expires_at`. The value is a JSON object; it is the last column, because
-- SQLite reads a row up to the columns that it needs.
CREATE TABLE store_items (
    item_id    TEXT NOT NULL PRIMARY KEY,
    user_id    TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    key        TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ttl        INTEGER,
    expires_at INTEGER,
    value      TEXT NOT NULL,
    UNIQUE (user_id, namespace, key)
) STRICT;

-- A search reads the items of a user from the newest one, from this index alone.
CREATE INDEX store_items_updated
    ON store_items (user_id, updated_at, item_id, namespace, expires_at);
CREATE INDEX store_items_expires ON store_items (expires_at) WHERE expires_at IS NOT NULL;

-- One row for each word of an item, as those of memories.
CREATE TABLE store_terms (
    item_id    TEXT NOT NULL REFERENCES store_items (item_id) ON DELETE CASCADE,
    term       TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    namespace  TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (item_id, term)
) STRICT;

CREATE INDEX store_terms_user ON store_terms (user_id, term, updated_at, item_id, namespace);
