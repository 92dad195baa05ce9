"""The port, here: one object for what is hosted, one view of it a principal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agentctl.auth.principal import Principal
from agentctl.config.settings import Settings
from agentctl.runs.engine import Engine
from agentctl.runs.watch import watch_requests
from agentctl.runtime.catalog import Catalog
from agentctl.service.access import Hosting
from agentctl.service.components import ComponentOperations
from agentctl.service.runs import RunOperations
from agentctl.service.sessions import SessionOperations
from agentctl.store.databases import Databases

__all__ = ["Acting", "Service"]


class Acting(ComponentOperations, RunOperations, SessionOperations):
    """`operations.Operations` as one principal, on what is hosted here."""


class Service:
    """What a configuration hosts, open for use. Made by `Service.open`."""

    def __init__(self, hosting: Hosting) -> None:
        self.hosting = hosting

    @property
    def settings(self) -> Settings:
        """The configuration behind it."""
        return self.hosting.settings

    def acting_as(self, principal: Principal) -> Acting:
        """The port as this principal."""
        return Acting(self.hosting, principal)

    def prepare(self) -> None:
        """Open the databases, and load what runs need: tool modules, the model library, models.

        Raises:
            Unavailable: a database is missing, unreadable or not one of ours.
            SchemaMismatch: a database is older or newer than this code.
            InvalidConfiguration: a tool cannot be used.
        """
        self.hosting.databases.open_each()
        self.hosting.catalog.prepare()

    @property
    def runs_under_way(self) -> int:
        """How many runs are worked on here, without those that other runs asked for."""
        return len(self.hosting.engine.roots())

    async def drain(self) -> None:
        """Refuse new runs, give those under way `server.drain_seconds`, cancel what is left."""
        await self.hosting.engine.drain(self.settings.server.drain_seconds)

    async def stop_runs(self) -> None:
        """End what is worked on here, as a recorded request, before the doors close."""
        await self.hosting.engine.close()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, settings: Settings, *, create: bool = False) -> AsyncIterator[Service]:
        """Open what is configured, and close everything at the end; live runs are cancelled then.

        A database is opened when it is first needed, or by `prepare`.

        Args:
            settings: the configuration.
            create: make databases that are not there; else a missing one is an error.
        """
        async with contextlib.AsyncExitStack() as stack:
            databases = Databases(settings, create=create)
            stack.push_async_callback(databases.close)
            catalog = Catalog.from_settings(settings)
            stack.push_async_callback(catalog.close)
            engine = Engine(databases, catalog, settings)
            stack.push_async_callback(
                _ended, asyncio.create_task(watch_requests(engine, databases))
            )
            stack.push_async_callback(engine.close)
            yield cls(Hosting(settings, databases, catalog, engine))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
