-- A lease for the sweep, an index for waiting runs, and events without notifications, for PostgreSQL.

-- The worker that sweeps for all; another one may take the row over when it has expired.
CREATE TABLE leases (
    name       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner      TEXT COLLATE "C",
    expires_at BIGINT NOT NULL
);

INSERT INTO leases (name, owner, expires_at) VALUES ('sweep', NULL, 0);

-- Each heartbeat asks whether a run waits for any worker.
CREATE INDEX runs_waiting ON runs (created_at) WHERE status = 'PENDING' AND owner IS NULL;

-- A commit with a notification waits for all others of its kind, in the whole cluster of PostgreSQL.
-- So stored events do not notify any more: the process that has stored them does, after the commit,
-- once for many runs, and only for runs with followers elsewhere. Servers of earlier versions do not
-- know these notifications; their followers poll every half second.
DROP TRIGGER run_events_announce ON run_events;
DROP FUNCTION agentctl_announce_events();
