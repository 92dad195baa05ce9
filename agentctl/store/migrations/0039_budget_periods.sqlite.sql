-- What people have decided about the present periods of budgets (docs/budgets.md), for SQLite.

-- A row for each budget, subject and period of which something is known. `subject` is a hash of the
-- user or the component that has a separate sum, empty for the server. Limits are in tokens, or in
-- billionths of a US dollar: that which a person has approved, and that beyond which a person has
-- refused to continue. Rows of past periods are deleted when another one is written.
CREATE TABLE budget_periods (
    budget_id  TEXT NOT NULL,
    subject    TEXT NOT NULL,
    since      INTEGER NOT NULL,
    raised_to  INTEGER,
    refused_at INTEGER,
    warned_at  INTEGER,
    PRIMARY KEY (budget_id, subject, since)
) STRICT;

-- Figures for the planner, as in migration 3.
INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES
    ('budget_periods', 'sqlite_autoindex_budget_periods_1', '10000 1000 10 1 noskipscan');
ANALYZE sqlite_schema;
