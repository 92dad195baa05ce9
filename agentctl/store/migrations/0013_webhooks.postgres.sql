-- Webhooks (docs/webhooks.md), for PostgreSQL.

-- Facts that are sent to the endpoints of the configuration, one row for each endpoint. A row is
-- written in the transaction of its fact and has no reference to the run, which may be deleted.
-- `state` is waiting, delivered or dead. `next_at` is the time of the next attempt. During an attempt
-- `lease_by` names its process, and `next_at` is the end of its lease.
CREATE TABLE webhook_deliveries (
    delivery_id  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    event_id     TEXT COLLATE "C" NOT NULL,
    webhook_id   TEXT COLLATE "C" NOT NULL,
    type         TEXT COLLATE "C" NOT NULL,
    run_id       TEXT COLLATE "C" NOT NULL,
    body         TEXT NOT NULL,
    state        TEXT COLLATE "C" NOT NULL,
    attempts     BIGINT NOT NULL,
    next_at      BIGINT NOT NULL,
    lease_by     TEXT COLLATE "C",
    last_status  BIGINT,
    last_error   TEXT,
    created_at   BIGINT NOT NULL,
    delivered_at BIGINT
);

CREATE INDEX webhook_deliveries_waiting ON webhook_deliveries (webhook_id, next_at)
    WHERE state = 'waiting';
CREATE INDEX webhook_deliveries_created ON webhook_deliveries (created_at, delivery_id);
CREATE INDEX webhook_deliveries_state ON webhook_deliveries (state, created_at, delivery_id);
CREATE INDEX webhook_deliveries_webhook
    ON webhook_deliveries (webhook_id, state, created_at, delivery_id);
CREATE INDEX webhook_deliveries_run ON webhook_deliveries (run_id, created_at, delivery_id);

-- Endpoints that nothing is sent to, in the system database.
CREATE TABLE disabled_webhooks (
    webhook_id  TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    disabled_at BIGINT NOT NULL,
    reason      TEXT NOT NULL
);
