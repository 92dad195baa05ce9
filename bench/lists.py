"""CPU time of the lists of a service with few sessions and with very many.

`python -m bench.lists URL ...` reads databases that `bench.seed --related` has filled, of any
number of sessions, and changes nothing but the row of its own worker. The table has the
microseconds of all threads for a page of 20 rows, the least of many, the rows of the page, and the
totals.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.auth.principal import local_principal
from agentctl.interface.requests import SUMMARY_VIEW, Page, RunFilter, SessionFilter, SessionLocator
from agentctl.interface.requests.administration import (
    AuditFilter,
    DeliveryFilter,
    OverviewFilter,
    UsageFilter,
)
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.halts import HaltFilter
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.document import Document
from agentctl.service.service import Service, ServiceOperations
from tests.generated.population import COMPONENTS, DENSE_USER
from tests.kit.deployment import create_deployment

SECONDS = 0.5
"""Time in which a list is read again and again."""

LEAST_READS = 10

COMPONENT = COMPONENTS[0][1]

BY_UPDATE = Page(limit=20, sort_by="updated_at")

List = Callable[[ServiceOperations], Awaitable[Document[Any]]]


class Cost(NamedTuple):
    """The cost of a page."""

    microseconds: float

    rows: str
    """The number of its rows; empty for a read of other data."""

    total: str
    """The total of the list, with `+` if it is capped; empty without one."""


def _list_sessions(page: Page | None = None, **filters: Any) -> List:
    locator = SessionLocator(type=filters.pop("type", None), user_id=filters.pop("user_id", None))
    wanted = SessionFilter(locator, page=page or Page(limit=20), **filters)
    return lambda operations: operations.sessions.list(wanted)


def _list_runs(**filters: Any) -> List:
    wanted = RunFilter(page=Page(limit=20), form=SUMMARY_VIEW, **filters)
    return lambda operations: operations.runs.list(wanted)


LISTS: dict[str, List] = {
    "sessions": _list_sessions(),
    "sessions, type": _list_sessions(type="agent"),
    "sessions, type, by change": _list_sessions(BY_UPDATE, type="agent"),
    "sessions, component": _list_sessions(component_id=COMPONENT),
    "sessions, component and type": _list_sessions(component_id=COMPONENT, type="agent"),
    "sessions, component, by change": _list_sessions(BY_UPDATE, component_id=COMPONENT),
    "sessions, user": _list_sessions(user_id=DENSE_USER),
    "sessions, user and type": _list_sessions(user_id=DENSE_USER, type="agent"),
    "sessions, last status": _list_sessions(status="COMPLETED"),
    "runs": _list_runs(),
    "runs, type": _list_runs(component_type="agent"),
    "runs, component": _list_runs(component_id=COMPONENT),
    "runs, user": _list_runs(user_id=DENSE_USER),
    "runs, COMPLETED": _list_runs(status="COMPLETED"),
    "runs, CANCELLED": _list_runs(status="CANCELLED"),
    "runs, user, COMPLETED": _list_runs(user_id=DENSE_USER, status="COMPLETED"),
    "approvals": lambda operations: operations.approvals.list(ApprovalFilter()),
    "approvals, user": lambda operations: operations.approvals.list(
        ApprovalFilter(user_id=DENSE_USER)
    ),
    "approvals, approved": lambda operations: operations.approvals.list(
        ApprovalFilter(status="approved")
    ),
    "files": lambda operations: operations.files.list(FileFilter()),
    "files, user": lambda operations: operations.files.list(FileFilter(user_id=DENSE_USER)),
    "memories": lambda operations: operations.memories.list(MemoryFilter(page=BY_UPDATE)),
    "audit log": lambda operations: operations.audit.list(AuditFilter(limit=20)),
    "audit log, outcome": lambda operations: operations.audit.list(
        AuditFilter(outcome="allowed", limit=20)
    ),
    "deliveries": lambda operations: operations.webhooks.list_deliveries(DeliveryFilter()),
    "halts": lambda operations: operations.halts.list(HaltFilter()),
    "usage, by day": lambda operations: operations.usage.get(UsageFilter()),
    "overview of 30 days": lambda operations: operations.usage.get_overview(
        OverviewFilter(step="day")
    ),
}


async def _measure(operations: ServiceOperations, read: List) -> Cost:
    document = await read(operations)
    rows = document.value.get("data", ())
    meta = document.value.get("meta", {})
    total = f"{meta.get('total_count', '')}{'+' * meta.get('total_is_capped', False)}"

    least = float("inf")
    reads = 0
    end = time.monotonic() + SECONDS
    gc.collect()
    gc.disable()
    try:
        while reads < LEAST_READS or time.monotonic() < end:
            began = time.process_time()
            await read(operations)
            least = min(least, time.process_time() - began)
            reads += 1
    finally:
        gc.enable()
    return Cost(least * 1_000_000, str(len(rows) or ""), total)


async def _measure_all(url: str, names: list[str]) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory() as folder:
        databases = {"main": f'url = "{url}"', "second": 'url = "sqlite:///second.db"'}
        # No model is called.
        deployment = create_deployment(Path(folder), "http://127.0.0.1:1/v1", databases=databases)
        async with Service.open(deployment.settings, create=True) as service:
            operations = service.operations_for(local_principal("bench"))
            return {name: await _measure(operations, LISTS[name]) for name in names}


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("urls", nargs="+", metavar="URL", help="URL of a filled database")
    parser.add_argument("--only", default="", help="only lists with this in their name")
    options = parser.parse_args()

    names = [name for name in LISTS if options.only in name]
    found = [await _measure_all(url, names) for url in options.urls]
    print(f"| |{' us | rows | total |' * len(found)}")
    print(f"| --- |{' ---: | ---: | ---: |' * len(found)}")
    for name in names:
        cells = [
            f"{cost.microseconds:,.0f} | {cost.rows} | {cost.total}"
            for cost in (costs[name] for costs in found)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
