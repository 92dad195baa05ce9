-- Halts: work that must not begin until an operator ends them (docs/halts.md), for PostgreSQL.

-- `change_number` is that of the last change of a halt, greater than those of all earlier changes of
-- any halt. A row is never deleted, so the greatest number names the state of all halts.
CREATE TABLE halts (
    halt_id       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    scope         TEXT COLLATE "C" NOT NULL,
    scope_id      TEXT COLLATE "C",
    reason        TEXT NOT NULL,
    stop_running  BIGINT NOT NULL DEFAULT 0,
    created_by    TEXT COLLATE "C",
    created_at    BIGINT NOT NULL,
    until         BIGINT,
    ended_at      BIGINT,
    ended_by      TEXT COLLATE "C",
    change_number BIGINT NOT NULL
);
CREATE INDEX halts_change ON halts (change_number);
CREATE INDEX halts_created ON halts (created_at, halt_id);
CREATE INDEX halts_ended ON halts (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX halts_active ON halts (created_at, halt_id) WHERE ended_at IS NULL;

-- The change number of the halts that the process of a worker obeys.
ALTER TABLE workers ADD COLUMN halts_seen BIGINT NOT NULL DEFAULT 0;

-- All servers read the halts again at once.
CREATE FUNCTION agentctl_announce_halts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('agentctl', TG_TABLE_SCHEMA || ' halts');
    RETURN NULL;
END
$$;
CREATE TRIGGER halts_announce AFTER INSERT OR UPDATE ON halts
    FOR EACH STATEMENT EXECUTE FUNCTION agentctl_announce_halts();
