"""A service whose jobs run with short pauses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from agentctl.config.settings import Settings
from agentctl.service.jobs import list_lanes
from agentctl.service.service import Service


@contextlib.asynccontextmanager
async def open_service(settings: Settings, *, create: bool = True) -> AsyncIterator[Service]:
    """Open a service and its databases, for `start_jobs`; a missing one fails without `create`."""
    async with Service.open(settings, create=create) as service:
        if create:
            await service.hosting.databases.open_all()
        yield service


def start_jobs(service: Service, seconds: float) -> None:
    """Run the jobs of a server, each of them every few seconds."""
    lanes = list_lanes(service.hosting, service._worker)
    service.hosting.jobs.start(replace(lane, seconds=seconds) for lane in lanes)
