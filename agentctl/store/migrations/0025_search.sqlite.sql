-- Search in the texts of sessions, for SQLite.

-- The texts that a search finds: the message and the answer of an ended run, or the name of a session
-- (run_id is NULL). `place` is in the order of the creation of sessions: the milliseconds of created_at
-- times 2^20, and a number within them. `owner` identifies the user (store/search.py), `tokenizer`
-- names the index below that has the text.
CREATE TABLE search_texts (
    place      INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (session_id) ON DELETE CASCADE,
    run_id     TEXT REFERENCES runs (run_id) ON DELETE CASCADE,
    owner      TEXT NOT NULL,
    tokenizer  TEXT NOT NULL,
    text       TEXT NOT NULL
) STRICT;

CREATE INDEX search_texts_session ON search_texts (session_id, run_id);
CREATE INDEX search_texts_run ON search_texts (run_id);

-- The indexes of words and of sequences of three characters. Their content is the table above.
CREATE VIRTUAL TABLE search_words USING fts5 (
    owner, text, content = 'search_texts', content_rowid = 'place', columnsize = 0,
    tokenize = 'unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE search_trigrams USING fts5 (
    owner, text, content = 'search_texts', content_rowid = 'place', columnsize = 0,
    tokenize = 'trigram'
);

-- Remove deleted texts from the pages of the indexes at once, not at a later merge.
INSERT INTO search_words (search_words, rank) VALUES ('secure-delete', 1);
INSERT INTO search_trigrams (search_trigrams, rank) VALUES ('secure-delete', 1);

-- Triggers, so that the indexes follow every change, also of earlier releases and of other programs.
CREATE TRIGGER search_texts_added AFTER INSERT ON search_texts BEGIN
    INSERT INTO search_words (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'words';
    INSERT INTO search_trigrams (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'trigram';
END;
CREATE TRIGGER search_texts_removed AFTER DELETE ON search_texts BEGIN
    INSERT INTO search_words (search_words, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'words';
    INSERT INTO search_trigrams (search_trigrams, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'trigram';
END;
CREATE TRIGGER search_texts_changed AFTER UPDATE ON search_texts BEGIN
    INSERT INTO search_words (search_words, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'words';
    INSERT INTO search_trigrams (search_trigrams, rowid, owner, text)
        SELECT 'delete', OLD.place, OLD.owner, OLD.text WHERE OLD.tokenizer = 'trigram';
    INSERT INTO search_words (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'words';
    INSERT INTO search_trigrams (rowid, owner, text)
        SELECT NEW.place, NEW.owner, NEW.text WHERE NEW.tokenizer = 'trigram';
END;
CREATE TRIGGER search_sessions_renamed AFTER UPDATE OF session_name ON sessions
WHEN OLD.session_name <> NEW.session_name BEGIN
    UPDATE search_texts SET text = NEW.session_name
        WHERE session_id = NEW.session_id AND run_id IS NULL;
END;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('search_texts', 'search_texts_session', '6000000 6 1 noskipscan'),
    ('search_texts', 'search_texts_run',     '6000000 1 noskipscan');
ANALYZE sqlite_schema;
