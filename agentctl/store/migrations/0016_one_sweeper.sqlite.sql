-- A lease for the sweep, and an index for waiting runs, for SQLite.

-- The worker that sweeps for all; another one may take the row over when it has expired.
CREATE TABLE leases (
    name       TEXT NOT NULL PRIMARY KEY,
    owner      TEXT,
    expires_at INTEGER NOT NULL
) STRICT;

INSERT INTO leases (name, owner, expires_at) VALUES ('sweep', NULL, 0);

-- Each heartbeat asks whether a run waits for any worker.
CREATE INDEX runs_waiting ON runs (created_at) WHERE status = 'PENDING' AND owner IS NULL;
