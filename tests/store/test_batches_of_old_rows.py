"""Old rows are deleted in batches, however PostgreSQL plans the statement."""

from __future__ import annotations

import pytest

from agentctl.store.database import Sql, Steps, Work, unit
from agentctl.store.repositories import events, idempotency, webhooks
from tests.kit.postgres import PostgresUnderTest

ADD_OLD_ROWS = {
    "events": (
        "INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,"
        " history_bytes, created_at, updated_at, metrics)"
        " VALUES ('s', 'agent', '', 0, 0, 0, 1, 1, '{}')",
        "INSERT INTO runs (run_id, session_id, seq, component_type, component_id, status,"
        " background, attempt, created_at, late_result, input, finished_at)"
        " SELECT '00000000-0000-' || n, 's', n, 'agent', 'echo', 'COMPLETED', 0, 1, 1, 0, '', 1"
        " FROM generate_series(101, 115) n",
        # In the order of the batch: each row could be deleted before the next one is selected.
        "INSERT INTO run_events (run_id, first_seq, last_seq, events)"
        " SELECT '00000000-0000-' || n, seq, seq, '[]'"
        " FROM generate_series(101, 115) n, generate_series(1, 50) seq ORDER BY n, seq",
    ),
    "keys": (
        "INSERT INTO idempotency (principal, key, body_hash, run_id, created_at)"
        " SELECT 'ann', n, 'hash', 'r', 1 FROM generate_series(1, 600) n",
    ),
    "deliveries": (
        "INSERT INTO webhook_deliveries"
        " (delivery_id, event_id, webhook_id, type, run_id, body, state, attempts, next_at,"
        " created_at)"
        " SELECT n, n, 'ops', 'run.failed', 'r', '{}', 'dead', 1, 1, 1"
        " FROM generate_series(1, 600) n",
    ),
}

DELETE_OLD_ROWS: dict[str, Work[int]] = {
    "events": events.delete_older(2),
    "keys": idempotency.delete_older(2),
    "deliveries": webhooks.delete_older(2, 2),
}

FORBID_PLANS = Sql(
    "SELECT set_config(name, 'off', true) FROM pg_settings WHERE name IN"
    " ('enable_hashagg', 'enable_hashjoin', 'enable_material', 'enable_mergejoin', 'enable_sort')"
)
"""Leaves the planner a loop over all rows that selects the rows to delete again for each of them.

PostgreSQL chooses the loop by itself for a table whose statistics are of a time with few rows.
"""


@pytest.mark.parametrize("kind", DELETE_OLD_ROWS)
def test_one_batch_is_deleted_in_any_plan(postgres: PostgresUnderTest, kind: str) -> None:
    @unit
    def delete_in_a_loop() -> Steps[int]:
        for text in ADD_OLD_ROWS[kind]:
            yield from Sql(text).execute()
        yield from FORBID_PLANS.has_rows()
        return (yield from DELETE_OLD_ROWS[kind])

    postgres.runner.run(postgres.empty())
    removed = postgres.runner.run(postgres.database.write(delete_in_a_loop()))

    assert removed == 500
