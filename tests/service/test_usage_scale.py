"""The cost of an overview does not depend on the number of runs."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentctl.interface.requests import RunFilter
from agentctl.interface.requests.administration import OverviewFilter, UsageFilter
from agentctl.records.times import HOUR, now
from agentctl.service.service import Service
from agentctl.store.repositories import usage
from tests.kit.deployment import Deployment
from tests.kit.service import admin, open_service

LONG = bool(os.environ.get("AGENTCTL_TEST_LONG"))

FEW, MANY = (1_000, 1_000_000) if LONG else (400, 1_200)

METRICS = json.dumps({"input_tokens": 90, "output_tokens": 10, "total_tokens": 100})

ADD_SESSION = (
    "INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,"
    " history_bytes, created_at, updated_at, metrics)"
    " VALUES ('s', 'agent', '', 0, 0, 0, 1, 1, '{}') ON CONFLICT DO NOTHING"
)

# The runs ended evenly in the last 20 hours: of 40 users, 5 agents and 2 models, one of 10 failed.
ADD_RUNS = f"""
WITH RECURSIVE numbers (number) AS (
    SELECT :first UNION ALL SELECT number + 1 FROM numbers WHERE number + 1 < :end
)
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, user_id, status,
    background, attempt, created_at, finished_at, stopped_at, late_result, error_code, metrics,
    input, model, counted)
SELECT 'r' || number, 's', number, 'agent', 'agent-' || (number % 5), 'user-' || (number % 40),
    CASE number % 10 WHEN 7 THEN 'ERROR' ELSE 'COMPLETED' END, 0, 1,
    :newest - number % 20 * {HOUR} - number % 53 * 60000000 - 1000000 * (1 + number % 4),
    :newest - number % 20 * {HOUR} - number % 53 * 60000000, :newest, 0,
    CASE number % 10 WHEN 7 THEN 'TIMEOUT' END, '{METRICS}', 'hello',
    CASE number % 3 WHEN 0 THEN 'fast' ELSE 'deep' END, 1
FROM numbers
"""


ADD_ENDS = f"{usage.APPEND} FROM runs WHERE seq >= :first AND seq < :end"


async def add_runs(service: Service, path: Path, first: int, end: int, newest: int) -> None:
    """Store runs that have ended, and add them to the sums."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.set_busy_timeout(60_000)
        with connection:
            connection.execute(ADD_SESSION)
            values = {"first": first, "end": end, "newest": newest}
            connection.execute(ADD_RUNS, values)
            called = {"first": first, "end": end, "first_token_at": None, "model_calls": 1}
            connection.execute(ADD_ENDS, called)
    await service.hosting.sums.add_ended_runs()


async def measure(service: Service) -> float:
    """Return the seconds of CPU of an overview with all its groups: the fewest of several."""
    operations = admin(service)
    found = []
    for _ in range(7):
        begin = time.process_time()
        for by in ("component", "model", "user"):
            await operations.usage.get_overview(OverviewFilter(by=by))  # type: ignore[arg-type]
        found.append(time.process_time() - begin)
    return min(found)


async def check_numbers(service: Service, count: int) -> None:
    operations = admin(service)
    overview: Any = (await operations.usage.get_overview(OverviewFilter(by="user"))).value
    total = overview["total"]
    assert (total["runs"], total["total_tokens"]) == (count, 100 * count)
    assert total["failures"] == [{"error_code": "TIMEOUT", "runs": total["failed"]}]
    assert total["failed"] == sum(number % 10 == 7 for number in range(count))
    assert total["duration"]["p50"] == pytest.approx(2, rel=0.05)
    assert total["duration"]["p99"] == pytest.approx(4, rel=0.05)
    assert overview["groups"] == 40
    report: Any = (await operations.usage.get(UsageFilter(by=("model",)))).value
    models = {row["model"]: row["runs"] for row in report["data"]}
    assert models == {
        "fast": sum(number % 3 == 0 for number in range(count)),
        "deep": sum(number % 3 != 0 for number in range(count)),
    }
    point = overview["points"][-3]
    page: Any = (await operations.runs.list(RunFilter(finished_after=1))).value
    meta = page["meta"]
    assert meta["total_count"] == count or (meta["total_is_capped"] and meta["total_count"] >= 250)
    assert point["runs"] > 0


async def test_overview_costs_the_same_with_more_runs(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    newest = now() - now() % HOUR
    async with open_service(deployment) as service:
        await service.hosting.databases.open_all()
        await add_runs(service, path, 0, FEW, newest)
        await check_numbers(service, FEW)
        with_few = await measure(service)
        for first in range(FEW, MANY, 100_000):
            await add_runs(service, path, first, min(first + 100_000, MANY), newest)
        await check_numbers(service, MANY)
        with_many = await measure(service)
        print(f"{FEW} runs: {with_few * 1e3:.1f} ms, {MANY} runs: {with_many * 1e3:.1f} ms")
        assert with_many < 5 * with_few
