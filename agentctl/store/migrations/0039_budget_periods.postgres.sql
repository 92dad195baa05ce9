-- What people have decided about the present periods of budgets (docs/budgets.md), for PostgreSQL.

-- A row for each budget, subject and period of which something is known. `subject` is a hash of the
-- user or the component that has a separate sum, empty for the server. Limits are in tokens, or in
-- billionths of a US dollar: that which a person has approved, and that beyond which a person has
-- refused to continue. Rows of past periods are deleted when another one is written.
CREATE TABLE budget_periods (
    budget_id  TEXT COLLATE "C" NOT NULL,
    subject    TEXT COLLATE "C" NOT NULL,
    since      BIGINT NOT NULL,
    raised_to  BIGINT,
    refused_at BIGINT,
    warned_at  BIGINT,
    PRIMARY KEY (budget_id, subject, since)
);
