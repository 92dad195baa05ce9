-- Webhooks (docs/webhooks.md), for SQLite.

-- Facts that are sent to the endpoints of the configuration, one row for each endpoint. A row is
-- written in the transaction of its fact and has no reference to the run, which may be deleted.
-- `state` is waiting, delivered or dead. `next_at` is the time of the next attempt. During an attempt
-- `lease_by` names its process, and `next_at` is the end of its lease.
CREATE TABLE webhook_deliveries (
    delivery_id  TEXT NOT NULL PRIMARY KEY,
    event_id     TEXT NOT NULL,
    webhook_id   TEXT NOT NULL,
    type         TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    body         TEXT NOT NULL,
    state        TEXT NOT NULL,
    attempts     INTEGER NOT NULL,
    next_at      INTEGER NOT NULL,
    lease_by     TEXT,
    last_status  INTEGER,
    last_error   TEXT,
    created_at   INTEGER NOT NULL,
    delivered_at INTEGER
) STRICT;

CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (webhook_id, next_at)
    WHERE state = 'waiting';
CREATE INDEX webhook_deliveries_created ON webhook_deliveries (created_at, delivery_id);
CREATE INDEX webhook_deliveries_state ON webhook_deliveries (state, created_at, delivery_id);
CREATE INDEX webhook_deliveries_webhook
    ON webhook_deliveries (webhook_id, state, created_at, delivery_id);
CREATE INDEX webhook_deliveries_run ON webhook_deliveries (run_id, created_at, delivery_id);

-- Endpoints that nothing is sent to, in the system database.
CREATE TABLE disabled_webhooks (
    webhook_id  TEXT NOT NULL PRIMARY KEY,
    disabled_at INTEGER NOT NULL,
    reason      TEXT NOT NULL
) STRICT;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('webhook_deliveries', 'sqlite_autoindex_webhook_deliveries_1', '100000 1 noskipscan'),
    ('webhook_deliveries', 'webhook_deliveries_waiting', '1000 100 1 noskipscan'),
    ('webhook_deliveries', 'webhook_deliveries_created', '100000 1 1 noskipscan'),
    ('webhook_deliveries', 'webhook_deliveries_state',   '100000 50000 1 1 noskipscan'),
    ('webhook_deliveries', 'webhook_deliveries_webhook', '100000 20000 10000 1 1 noskipscan'),
    ('webhook_deliveries', 'webhook_deliveries_run',     '100000 2 1 1 noskipscan'),
    ('disabled_webhooks', 'sqlite_autoindex_disabled_webhooks_1', '10 1 noskipscan');
ANALYZE sqlite_schema;
