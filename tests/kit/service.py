"""A service in the process of the test, its callers, and their frequent actions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson

from agentctl.auth.principal import Principal, local_principal
from agentctl.interface.requests import RunFilter, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.runs.life.live import LiveRun
from agentctl.service.service import Service, ServiceOperations
from tests.kit.callers import USER
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment

__all__ = [
    "ALL",
    "admin",
    "collect_run_events",
    "open_service",
    "streamed_run",
    "user",
    "wait_for_live_run",
    "wait_for_running",
]

ALL = frozenset(USER)


@contextlib.asynccontextmanager
async def open_service(deployment: Deployment) -> AsyncIterator[Service]:
    """Open the service of a deployment and create its databases."""
    async with Service.open(deployment.settings, create=True) as service:
        yield service


def user(
    service: Service, subject: str | None = "me", *, session_id: str | None = None
) -> ServiceOperations:
    """Return the operations of a user with all scopes, limited to their own data."""
    return service.operations_for(Principal(subject=subject, scopes=ALL, session_id=session_id))


def admin(service: Service) -> ServiceOperations:
    """Return the operations of an administrator."""
    return service.operations_for(local_principal("boss"))


async def collect_run_events(
    operations: ServiceOperations, kind: ComponentKind, component_id: str, **request: Any
) -> list[StreamEvent]:
    """Start a run and return all its events."""
    return [
        event async for event in operations.runs.stream(kind, component_id, RunRequest(**request))
    ]


async def wait_for_running(operations: ServiceOperations, **filters: Any) -> dict[str, Any]:
    """Wait for a RUNNING run and return its record."""
    wanted = RunFilter(status="RUNNING", **filters)

    async def look() -> Any:
        return (await operations.runs.list(wanted)).value["data"]

    return dict((await wait_until(look))[0])


async def wait_for_live_run(service: Service, run_id: str) -> LiveRun:
    """Wait for the execution of a run whose row may have been committed just before."""
    live: LiveRun = await wait_until(lambda: service.hosting.engine.find_run(run_id))
    return live


@contextlib.asynccontextmanager
async def streamed_run(
    operations: ServiceOperations, kind: ComponentKind, component_id: str, **request: Any
) -> AsyncIterator[tuple[dict[str, Any], asyncio.Task[list[StreamEvent]]]]:
    """Start a streamed run; yield its record and the task that collects its events."""
    events = asyncio.create_task(collect_run_events(operations, kind, component_id, **request))
    filters: dict[str, Any] = {"component_type": kind, "component_id": component_id}
    try:
        yield await wait_for_running(operations, **filters), events
    finally:
        events.cancel()
        await asyncio.gather(events, return_exceptions=True)


def event_data(event: StreamEvent) -> dict[str, Any]:
    """Return the parsed data of an event."""
    said: dict[str, Any] = orjson.loads(event.data)
    return said
