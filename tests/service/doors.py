"""Callers of the port, and what they do often."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson

from agentctl.auth.principal import Principal, local_principal
from agentctl.operations import RunFilter, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import Service, ServiceOperations
from tests.deployment import Deployment
from tests.loops import wait_until

__all__ = ["ALL", "boss", "collect", "hosted", "running", "started", "user"]

ALL = frozenset(
    {
        "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
        "sessions:read", "sessions:write", "sessions:delete", "config:read",
    }
)  # fmt: skip


@contextlib.asynccontextmanager
async def hosted(deployment: Deployment) -> AsyncIterator[Service]:
    """The world's service, its databases made."""
    async with Service.open(deployment.settings, create=True) as service:
        yield service


def user(
    service: Service, subject: str | None = "me", *, session_id: str | None = None
) -> ServiceOperations:
    """A caller who may do everything, with their own data."""
    return service.operations_for(Principal(subject=subject, scopes=ALL, session_id=session_id))


def boss(service: Service) -> ServiceOperations:
    """An administrator."""
    return service.operations_for(local_principal("boss"))


async def collect(
    port: ServiceOperations, kind: ComponentKind, component_id: str, **request: Any
) -> list[StreamEvent]:
    """All events of a run, to its end."""
    return [event async for event in port.stream_run(kind, component_id, RunRequest(**request))]


async def running(port: ServiceOperations, **filters: Any) -> dict[str, Any]:
    """The one run that is RUNNING, once there is one."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        page = (await port.get_runs(RunFilter(status="RUNNING", **filters))).value
        found[:] = page["data"]  # type: ignore[assignment]
        return bool(found)

    await wait_until(look)
    return found[0]


@contextlib.asynccontextmanager
async def started(
    port: ServiceOperations, kind: ComponentKind, component_id: str, **request: Any
) -> AsyncIterator[tuple[dict[str, Any], asyncio.Task[list[StreamEvent]]]]:
    """A streamed run under way: its record, and the task that collects its events."""
    events = asyncio.create_task(collect(port, kind, component_id, **request))
    filters: dict[str, Any] = {"component_type": kind, "component_id": component_id}
    try:
        yield await running(port, **filters), events
    finally:
        events.cancel()
        await asyncio.gather(events, return_exceptions=True)


def data(event: StreamEvent) -> dict[str, Any]:
    """What an event says."""
    said: dict[str, Any] = orjson.loads(event.data)
    return said
