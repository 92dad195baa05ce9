-- Search in the texts of sessions, for PostgreSQL.

-- The texts that a search finds: the message and the answer of an ended run, or the name of a session
-- (run_id is NULL). `place` is in the order of the creation of sessions: the milliseconds of created_at
-- times 2^20, and a number within them. `owner` identifies the user (store/search.py). `tokenizer`
-- is `words`.
CREATE TABLE search_texts (
    place      BIGINT NOT NULL,
    session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT COLLATE "C" REFERENCES runs (run_id) ON DELETE CASCADE,
    owner      TEXT COLLATE "C" NOT NULL,
    tokenizer  TEXT COLLATE "C" NOT NULL,
    text       TEXT NOT NULL,
    words      TSVECTOR GENERATED ALWAYS AS
        (to_tsvector('simple', text) || array_to_tsvector(ARRAY[owner])) STORED
);

CREATE INDEX search_texts_session ON search_texts (session_id, run_id);
CREATE INDEX search_texts_run ON search_texts (run_id);
-- The order of places; in SQLite they are the key of the table.
CREATE INDEX search_texts_place ON search_texts USING btree (place);
CREATE INDEX search_texts_owner ON search_texts USING btree (owner, place);
-- The index exists before the first text, so no writer ever waits until it is built.
CREATE INDEX search_texts_words ON search_texts USING gin (words);

-- A trigger, so that the text follows every change, also of earlier releases.
CREATE FUNCTION agentctl_search_rename() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE search_texts SET text = NEW.session_name
        WHERE session_id = NEW.session_id AND run_id IS NULL;
    RETURN NULL;
END
$$;
CREATE TRIGGER search_sessions_renamed AFTER UPDATE OF session_name ON sessions
FOR EACH ROW WHEN (OLD.session_name <> NEW.session_name)
EXECUTE FUNCTION agentctl_search_rename();
