"""Rows of the tables besides runs and sessions, enough for the planner of PostgreSQL to compare."""

from __future__ import annotations

from tests.generated.population import DENSE_USER, START, YEAR

COUNT = 50_000
"""Rows of each table."""

_AT = f"{START} + number * {YEAR // COUNT}"
_USER = f"CASE WHEN number % 500 = 0 THEN '{DENSE_USER}' ELSE 'user-' || number % 500 END"
_COMPONENT = "'agent', 'agent-' || to_char(number % 12, 'fm00')"
_FROM = f"FROM generate_series(1::bigint, {COUNT}) AS number"

_SUMS = ", ".join(["1, 0, 0, 0, 0, 1", *(["number % 100"] * 7), "0, '{}', '{}', '{}'"])

TABLES = (
    "approvals", "audit_log", "files", "halts", "memories", "memory_terms", "service_accounts",
    "usage_daily", "usage_hourly", "webhook_deliveries",
)  # fmt: skip

MANY_ROWS = f"""
INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,
                      history_bytes, created_at, updated_at, metrics)
SELECT 's-' || number, 'agent', '', 0, 1, 0, {_AT}, {_AT}, '{{}}' {_FROM};

INSERT INTO runs (run_id, session_id, seq, component_type, component_id, user_id, status,
                  background, attempt, created_at, finished_at, late_result, input)
SELECT 'r-' || number, 's-' || number, 1, {_COMPONENT}, {_USER}, 'COMPLETED', 0, 1, {_AT}, {_AT},
       0, 'hello' {_FROM};

INSERT INTO approvals (approval_id, kind, status, execution, policy, run_id, root_run_id,
                       session_id, component_type, component_id, user_id, tool_call_id, tool_name,
                       idempotent, arguments_hash, arguments, created_at, decided_at)
SELECT 'a-' || number, CASE WHEN number % 10 = 0 THEN 'input' ELSE 'approval' END,
       CASE number % 20 WHEN 0 THEN 'pending' WHEN 1 THEN 'rejected' ELSE 'approved' END,
       CASE WHEN number % 20 > 1 THEN 'done' END,
       CASE WHEN number % 10 = 1 THEN 'other' ELSE 'user' END, 'r-' || number, 'r-' || number,
       's-' || number, {_COMPONENT}, {_USER}, 'call',
       CASE WHEN number % 12 = 0 THEN 'deploy' ELSE 'pay' END, 0, 'hash', '{{}}', {_AT},
       CASE WHEN number % 20 > 0 THEN {_AT} + 1 END {_FROM};

INSERT INTO memories (memory_id, user_id, agent_id, created_at, updated_at, topics, memory)
SELECT 'm-' || number, {_USER}, 'agent-' || to_char(number % 12, 'fm00'), {_AT}, {_AT},
       '["travel"]', 'Likes travel' {_FROM};

INSERT INTO memory_terms (memory_id, term, user_id, updated_at)
SELECT 'm-' || number, term, {_USER}, {_AT}
{_FROM}, unnest(ARRAY['topic:travel', 'travel', 'likes']) AS term;

INSERT INTO files (file_id, user_id, session_id, name, media_type, size, sha256, blob, origin,
                   version, created_at)
SELECT 'f-' || number, {_USER}, 's-' || number, 'a.txt', 'text/plain', 1, 'hash', 'b-' || number,
       'upload', 1, {_AT} {_FROM};

INSERT INTO audit_log (at, principal, via, operation, resource, outcome, count)
SELECT {_AT}, {_USER}, 'http',
       CASE WHEN number % 4 = 0 THEN 'cancel_run' ELSE 'create_run' END, 'session:s-' || number,
       CASE WHEN number % 50 = 0 THEN 'denied' ELSE 'allowed' END, 1 {_FROM};

INSERT INTO halts (halt_id, scope, scope_id, reason, created_at, ended_at, change_number)
SELECT 'h-' || number, 'agent', 'agent-' || to_char(number % 12, 'fm00'), 'a test', {_AT},
       CASE WHEN number % 2000 > 0 THEN {_AT} + 1 END, number {_FROM};

INSERT INTO service_accounts (id, name, token_hash, token_hint, scopes, created_at)
SELECT 'account-' || number, 'robot-' || number, 'hash-' || number, 'hint', '[]', {_AT} {_FROM};

INSERT INTO webhook_deliveries (delivery_id, event_id, webhook_id, type, run_id, body, state,
                                attempts, next_at, created_at)
SELECT 'd-' || number, 'e-' || number, CASE WHEN number % 3 = 0 THEN 'orders' ELSE 'people' END,
       'run.completed', 'r-' || number, '{{"data": {{}}}}',
       CASE WHEN number % 50 = 0 THEN 'dead' ELSE 'delivered' END, 1, {_AT}, {_AT} {_FROM};

INSERT INTO usage_daily
SELECT everyone, CASE WHEN everyone = 1 THEN '' ELSE 'user-' || number % 500 END,
       {START} + number / 60 * 86400000000, {_COMPONENT}, 'model-' || number % 5, {_SUMS}
{_FROM}, unnest(ARRAY[0, 1]) AS everyone ON CONFLICT DO NOTHING;

INSERT INTO usage_hourly
SELECT everyone, CASE WHEN everyone = 1 THEN '' ELSE 'user-' || number % 500 END,
       {START + YEAR} - number / 30 * 3600000000, {_COMPONENT}, 'model-' || number % 5, {_SUMS}
{_FROM}, unnest(ARRAY[0, 1]) AS everyone ON CONFLICT DO NOTHING;

ANALYZE
"""
"""Fill an empty schema of PostgreSQL: `COUNT` rows of each of `TABLES`."""
