-- Halts: work that must not begin until an operator ends them (docs/halts.md), for SQLite.

-- `change_number` is that of the last change of a halt, greater than those of all earlier changes of
-- any halt. A row is never deleted, so the greatest number names the state of all halts.
CREATE TABLE halts (
    halt_id       TEXT NOT NULL PRIMARY KEY,
    scope         TEXT NOT NULL,
    scope_id      TEXT,
    reason        TEXT NOT NULL,
    stop_running  INTEGER NOT NULL DEFAULT 0,
    created_by    TEXT,
    created_at    INTEGER NOT NULL,
    until         INTEGER,
    ended_at      INTEGER,
    ended_by      TEXT,
    change_number INTEGER NOT NULL
) STRICT;
CREATE INDEX halts_change ON halts (change_number);
CREATE INDEX halts_created ON halts (created_at, halt_id);
CREATE INDEX halts_ended ON halts (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX halts_active ON halts (created_at, halt_id) WHERE ended_at IS NULL;

-- The change number of the halts that the process of a worker obeys.
ALTER TABLE workers ADD COLUMN halts_seen INTEGER NOT NULL DEFAULT 0;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('halts', 'sqlite_autoindex_halts_1', '10000 1 noskipscan'),
    ('halts', 'halts_change', '10000 1 noskipscan'),
    ('halts', 'halts_created', '10000 1 1 noskipscan'),
    ('halts', 'halts_ended', '10000 1 noskipscan'),
    ('halts', 'halts_active', '10 1 1 noskipscan');
ANALYZE sqlite_schema;
