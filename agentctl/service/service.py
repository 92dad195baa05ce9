"""The port, here: one object for what is hosted, one view of it a principal."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from agentctl.auth.principal import Principal
from agentctl.auth.tokens.account_lookup import AccountTokens
from agentctl.config.settings import Settings
from agentctl.runs.cancel import Canceller
from agentctl.runs.changes import DatabaseChanges, watch_cancel_requests
from agentctl.runs.engine import Engine
from agentctl.runs.liveness import WorkerMonitor
from agentctl.runs.sweep import sweep_dead_workers, watch_workers
from agentctl.runs.tasks import Tasks
from agentctl.runs.worker import Worker
from agentctl.runtime.catalog import Catalog
from agentctl.service.access import Hosting
from agentctl.service.accounts import AccountOperations
from agentctl.service.audit import AuditOperations
from agentctl.service.audit_log import AuditLog
from agentctl.service.authorization import AuthorizationOperations
from agentctl.service.components import ComponentOperations
from agentctl.service.directory import StoredAccounts
from agentctl.service.readiness import Readiness
from agentctl.service.startup_warnings import log_startup_warnings
from agentctl.store.databases import Databases

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier

__all__ = ["Service", "ServiceOperations"]


class ServiceOperations(
    ComponentOperations, AuthorizationOperations, AccountOperations, AuditOperations
):
    """`operations.Operations` as one principal, on what is hosted here."""


class Service:
    """What a configuration hosts, open for use. Made by `Service.open`."""

    def __init__(self, hosting: Hosting, worker: Worker, watches: Tasks) -> None:
        self.hosting = hosting
        self._worker = worker
        self._watches = watches

    @property
    def settings(self) -> Settings:
        """The configuration behind it."""
        return self.hosting.settings

    @property
    def verifier(self) -> Verifier:
        """What turns credentials into principals, for every door.

        Raises:
            InvalidKey: authorization is on and the keys are refused, or there are none.
        """
        return self.hosting.verifier()

    def operations_for(
        self, principal: Principal, request_id: str | None = None
    ) -> ServiceOperations:
        """The port as this principal.

        Args:
            principal: who calls.
            request_id: of what is asked, for the audit; None: one is made.
        """
        return ServiceOperations(self.hosting, principal, request_id)

    async def prepare(self) -> None:
        """Get ready to serve: open the databases, load what runs need, end the runs of the dead.

        Raises:
            Unavailable: a database is missing, unreadable or not one of ours.
            SchemaMismatch: a database is older or newer than this code.
            InvalidConfiguration: a tool cannot be used.
        """
        databases, observer = self.hosting.databases, self.hosting.observer
        await databases.open_all()
        log_startup_warnings(self.settings)
        self.hosting.catalog.prepare()
        await self._worker.enlist()
        observer.is_long_lived = True
        await sweep_dead_workers(databases, observer, self._worker.id)
        keep_days = self.settings.audit.keep_days
        watch = watch_workers(databases, observer, self._worker, audit_days=keep_days)
        self._watches.start(watch)

    @property
    def runs_under_way(self) -> int:
        """How many runs are worked on here, without those that other runs asked for."""
        return len(self.hosting.engine.roots())

    async def drain(self) -> None:
        """Refuse new runs, and give those under way `server.drain_seconds`."""
        await self.hosting.engine.drain(self.settings.server.drain_seconds)

    async def cancel_runs(self) -> None:
        """End what is worked on here, as a recorded request; runs elsewhere are still followed."""
        await self.hosting.engine.cancel_runs()

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
            worker = Worker(databases, lost=lambda owner: engine.handle_worker_lost(owner))
            stack.push_async_callback(worker.retire)
            changes, observer = DatabaseChanges(), WorkerMonitor(databases)
            engine = Engine(databases, catalog, settings, worker)
            watches = Tasks()
            stack.push_async_callback(watches.end)
            watches.start(watch_cancel_requests(engine, databases, changes))
            stack.push_async_callback(engine.close)
            canceller = Canceller(engine, observer, changes)
            readiness = Readiness(databases)
            stack.push_async_callback(readiness.close)
            directory = StoredAccounts(databases)
            stack.push_async_callback(directory.close)
            accounts = AccountTokens(directory, admin_scope=settings.authorization.admin_scope)
            verifier = functools.cache(lambda: _build_verifier(settings, accounts))
            hosting = Hosting(
                settings, databases, catalog, engine, canceller, changes, observer, accounts,
                audit=AuditLog(databases, reads=settings.audit.reads), readiness=readiness,
                verifier=verifier,
            )  # fmt: skip
            yield cls(hosting, worker, watches)


def _build_verifier(settings: Settings, accounts: AccountTokens) -> Verifier:
    """Loaded when it is needed: most local commands verify nothing."""
    from agentctl.auth.verifier import Verifier

    return Verifier(settings, accounts)
