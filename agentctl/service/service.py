"""The local backend: an open service, and its operations for each principal."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cached_property
from typing import TYPE_CHECKING

from agentctl import errors
from agentctl.auth.audit_chain import StatementKey, load_statement_key
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.account_tokens import AccountTokens
from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.extras import build_extra_command
from agentctl.config.outgoing import check_proxies
from agentctl.config.settings import Settings
from agentctl.interface.operations import Operations
from agentctl.interface.operations.components import ComponentsFamily
from agentctl.interface.operations.runs import RunsFamily
from agentctl.interface.operations.sessions import SessionsFamily
from agentctl.interface.operations.system import SystemFamily
from agentctl.interface.operations.usage import UsageFamily
from agentctl.interface.requests import DEFAULT_LOCATOR, SessionLocator
from agentctl.records.sessions import ExportFormat
from agentctl.runs.engine.cancel import Canceller
from agentctl.runs.engine.changes import DatabaseChanges, watch_cancel_requests
from agentctl.runs.engine.engine import Engine
from agentctl.runs.engine.versions import list_all_sides, list_served
from agentctl.runs.gate.breakers import Breakers
from agentctl.runs.gate.budgets import Budgets, Prices
from agentctl.runs.gate.gate import Gate
from agentctl.runs.gate.halts import Halts
from agentctl.runs.jobs.lanes import Jobs
from agentctl.runs.jobs.sweep import sweep_dead_workers
from agentctl.runs.jobs.usage import UsageSums
from agentctl.runs.life.admission import StoredVersions
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.runs.workers.worker import SweepLease, Worker
from agentctl.runtime.components.execute import prepare_components
from agentctl.service.family import ServiceAccess
from agentctl.service.hosting import (
    PROBE_SECONDS,
    Hosting,
    RateLimiter,
    SharedCall,
    probe_databases,
)
from agentctl.service.jobs import list_lanes
from agentctl.service.operations.accounts import AccountOperations, StoredAccounts
from agentctl.service.operations.approvals import ApprovalOperations, ContinuationOperations
from agentctl.service.operations.audit import AuditOperations
from agentctl.service.operations.authorization import AuthorizationOperations
from agentctl.service.operations.conversations import ConversationOperations
from agentctl.service.operations.deployment import DeploymentOperations, examine_disks
from agentctl.service.operations.files import FileOperations
from agentctl.service.operations.halts import HaltOperations
from agentctl.service.operations.memories import MemoryOperations
from agentctl.service.operations.personal_data import PersonalDataOperations
from agentctl.service.operations.retention import RetentionOperations
from agentctl.service.operations.sessions import SessionOperations
from agentctl.service.operations.usage import BudgetOperations, UsageOperations
from agentctl.service.operations.versions import VersionOperations
from agentctl.service.operations.webhooks import WebhookOperations
from agentctl.service.reads.components import ComponentReads, SystemReads
from agentctl.service.reads.stores import open_stores
from agentctl.service.runs.repeats import RepeatOperations
from agentctl.service.runs.run_parts import RunPartOperations
from agentctl.store.schema import describe_newer
from agentctl.store.threads import call_in_thread
from agentctl.transcripts import export
from agentctl.webhooks.deliveries import Deliveries
from agentctl.work.event_loop import Tasks

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier
    from agentctl.runs.desk.end import EndedRun
    from agentctl.telemetry.tracer import OtlpTracer

_log = logging.getLogger("agentctl.store")


class ServiceSessions(SessionOperations, RetentionOperations, SessionsFamily):
    """The operations on sessions, with their retention and their export."""

    def __init__(self, operations: ServiceOperations) -> None:
        super().__init__(operations.access)
        self._operations = operations

    async def export(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        format: ExportFormat = "jsonl",
        model_calls: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yield a session with all its runs as a file; its reads are counted too."""
        async with self.audit("export_session", session_id=session_id):
            operations = self._operations
            parts = export.export_session(
                operations, session_id, where, format, model_calls=model_calls
            )
            # The first part is read inside: a session that does not exist is a failed export.
            first_part = await anext(parts)
        async with contextlib.aclosing(parts):
            yield first_part
            async for part in parts:
                yield part


class ServiceRuns(RepeatOperations, RunPartOperations, ContinuationOperations, RunsFamily):
    """The operations on runs: their starts, repeats, continuations and parts."""


class ServiceComponents(ComponentReads, VersionOperations, ComponentsFamily):
    """The operations on components, with their versions."""


class ServiceUsage(UsageOperations, BudgetOperations, UsageFamily):
    """The operations on usage, with the budgets."""


class ServiceSystem(SystemReads, DeploymentOperations, AuthorizationOperations, SystemFamily):
    """The operations on the instance, and on the caller and its access."""


class ServiceOperations(Operations):
    """All operations of one principal, by noun.

    The `require` methods raise the NotFound of an operation without executing it, because the
    server reports a resource that does not exist before an invalid value.
    """

    def __init__(
        self, hosting: Hosting, principal: Principal, request_id: str | None = None
    ) -> None:
        self.access = ServiceAccess(hosting, principal, request_id)

    @cached_property
    def system(self) -> ServiceSystem:
        return ServiceSystem(self.access)

    @cached_property
    def sessions(self) -> ServiceSessions:
        return ServiceSessions(self)

    @cached_property
    def conversations(self) -> ConversationOperations:
        """Sessions as other interfaces use them; no operations of the HTTP interface."""
        return ConversationOperations(self.access)

    @cached_property
    def memories(self) -> MemoryOperations:
        return MemoryOperations(self.access)

    @cached_property
    def usage(self) -> ServiceUsage:
        return ServiceUsage(self.access)

    @cached_property
    def accounts(self) -> AccountOperations:
        return AccountOperations(self.access)

    @cached_property
    def webhooks(self) -> WebhookOperations:
        return WebhookOperations(self.access)

    @cached_property
    def halts(self) -> HaltOperations:
        return HaltOperations(self.access)

    @cached_property
    def audit(self) -> AuditOperations:
        return AuditOperations(self.access)

    @cached_property
    def components(self) -> ServiceComponents:
        return ServiceComponents(self.access)

    @cached_property
    def runs(self) -> ServiceRuns:
        return ServiceRuns(self.access)

    @cached_property
    def approvals(self) -> ApprovalOperations:
        return ApprovalOperations(self.access)

    @cached_property
    def files(self) -> FileOperations:
        return FileOperations(self.access)

    @cached_property
    def users(self) -> PersonalDataOperations:
        return PersonalDataOperations(self.access)


class Service:
    """The opened databases, components and runs of a configuration, created by `open`."""

    def __init__(self, hosting: Hosting, worker: Worker) -> None:
        self.hosting = hosting
        self._worker = worker

    @property
    def settings(self) -> Settings:
        return self.hosting.settings

    def operations_for(
        self, principal: Principal, request_id: str | None = None
    ) -> ServiceOperations:
        """Return the operations of a principal; `request_id` as for `reads.configured.Access`."""
        return ServiceOperations(self.hosting, principal, request_id)

    async def prepare(self) -> None:
        """Prepare to serve: open the databases, load the tools, recover runs of dead workers.

        Raises:
            Unavailable: a database is missing, unreadable or not a database of agentctl.
            SchemaMismatch: a database is older or newer than this code.
            InvalidConfiguration: a tool, the store of files or a proxy of the environment cannot be
                used.
        """
        check_proxies(self.settings)
        databases = self.hosting.databases
        monitor = self.hosting.monitor

        await databases.open_all()
        self.hosting.uploads.open()

        for database in databases.values():
            if database.version.is_newer:
                _log.warning("database %s: %s", database.id, describe_newer(database.version))

        log_startup_warnings(self.settings)

        for name, problem in self.settings.left_out.items():
            _log.warning("%s is left out: %s", name, problem)

        prepare_components(self.hosting.catalog)
        await self.hosting.versions.store(list_all_sides(self.hosting.catalog))

        tracer = self.hosting.engine.tracer
        if tracer is not None:
            tracer.install()

        self.hosting.catalog.mcp.start()
        self.hosting.deliveries.prepare(self.settings)

        self._worker.versions = list_served(self.hosting.catalog)
        await self._worker.register()
        monitor.is_long_lived = True

        if await self.hosting.jobs.lease.acquire():
            await sweep_dead_workers(databases, monitor, self._worker.id)

        self.hosting.engine.claims.is_serving = True
        self.hosting.jobs.start(list_lanes(self.hosting, self._worker))

    async def drain(self) -> None:
        """Reject new runs and wait up to `server.drain_seconds` for the live runs."""
        await self.hosting.engine.drain(self.settings.server.drain_seconds)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, settings: Settings, *, create: bool = False) -> AsyncIterator[Service]:
        """Open a service and close it at the end, which cancels its live runs.

        A database is opened when it is first needed, or by `prepare`. A missing database is created
        with `create`, and an error without.
        """
        # The stack closes in the reverse order: the engine ends its runs before the databases are
        # closed, which it writes to.
        async with contextlib.AsyncExitStack() as stack:
            databases, audit_log, catalog = open_stores(stack, settings, create=create)

            worker = Worker(
                databases,
                on_lost=lambda owner: engine.handle_worker_lost(owner),
                has_live_runs=lambda: engine.has_live_runs(),
            )
            stack.push_async_callback(worker.unregister)

            changes = DatabaseChanges()
            monitor = WorkerMonitor(databases)

            deliveries = Deliveries(databases)
            stack.push_async_callback(deliveries.close)

            prices = Prices(settings)
            budgets = Budgets(settings, databases, prices)
            stack.push_async_callback(budgets.close)

            tracer = open_tracer(settings)
            if tracer is not None:
                stack.push_async_callback(tracer.close)

            halts = Halts(databases, worker)
            breakers = Breakers(settings, databases, halts)
            gate = Gate(settings, budgets, halts, breakers)

            engine = Engine(databases, catalog, settings, worker, gate, tracer)
            monitor.on_lost_run = functools.partial(_report_lost_run, engine, tracer)

            sums = UsageSums(databases, prices)
            stack.push_async_callback(_add_last_runs, sums, engine)

            background = Tasks()
            stack.push_async_callback(background.cancel_all)
            background.start(watch_cancel_requests(engine, worker, databases, changes, halts))

            jobs = Jobs(SweepLease(databases, monitor, worker))
            stack.push_async_callback(jobs.close)
            stack.push_async_callback(engine.close)

            canceller = Canceller(engine, monitor, changes)

            readiness = SharedCall(lambda: probe_databases(databases), PROBE_SECONDS)
            stack.push_async_callback(readiness.close)
            disks = SharedCall(lambda: call_in_thread(examine_disks, settings), PROBE_SECONDS)
            stack.push_async_callback(disks.close)

            stored_accounts = StoredAccounts(databases)
            stack.push_async_callback(stored_accounts.close)
            accounts = AccountTokens(
                stored_accounts, admin_scope=settings.authorization.admin_scope
            )

            @functools.cache
            def build_verifier() -> Verifier:
                from agentctl.auth.verifier import Verifier

                return Verifier(settings, accounts)

            hosting = Hosting(
                settings=settings,
                databases=databases,
                catalog=catalog,
                audit_log=audit_log,
                find_spans=engine.find_spans,
                find_metrics=engine.find_metrics,
                engine=engine,
                canceller=canceller,
                changes=changes,
                monitor=monitor,
                account_tokens=accounts,
                deliveries=deliveries,
                readiness=readiness,
                disks=disks,
                versions=StoredVersions(catalog, databases),
                prices=prices,
                sums=sums,
                gate=gate,
                uploads=engine.uploads,
                jobs=jobs,
                request_limit=RateLimiter(
                    settings.rate_limits.requests_per_minute, "sent more than {:,} requests"
                ),
                run_limit=RateLimiter(
                    settings.rate_limits.runs_per_minute, "started more than {:,} runs"
                ),
                background=background,
                verifier=build_verifier,
                statement_key=functools.cache(lambda: _load_statement_key(settings)),
            )
            yield cls(hosting, worker)


def _report_lost_run(engine: Engine, tracer: OtlpTracer | None, lost_run: EndedRun) -> None:
    engine.counters.count_finished(lost_run.run.component_type, lost_run.ending)
    if tracer is not None:
        tracer.end_lost(lost_run)


async def _add_last_runs(sums: UsageSums, engine: Engine) -> None:
    """Add the last runs of this process to the sums: a command may be the only process."""
    if engine.counters.finished:
        with contextlib.suppress(errors.AgentctlError):
            await sums.add_ended_runs()


def open_tracer(settings: Settings) -> OtlpTracer | None:
    """Return the tracer of a service; None if `tracing` is off.

    Raises:
        InvalidConfiguration: the packages of the extra are missing.
    """
    if not settings.tracing.enabled:
        return None
    try:
        from agentctl.telemetry.tracer import OtlpTracer
    except ModuleNotFoundError as error:
        raise errors.InvalidConfiguration(
            "tracing needs packages that are not installed",
            cause=f"there is no module {error.name}",
            hint=f"install them with: {build_extra_command('otel')}",
        ) from None
    return OtlpTracer(settings)


def _load_statement_key(settings: Settings) -> StatementKey | None:
    key_file = settings.audit.key_file
    if key_file is None:
        return None
    return load_statement_key(key_file)


def log_startup_warnings(settings: Settings) -> None:
    """Log conditions that can damage a database; `agentctl doctor` reports the remedies."""
    paths = [sqlite_path(entry.url) for entry in settings.databases if is_sqlite_url(entry.url)]
    if not paths:
        return

    from agentctl.store.sqlite.inspect import NETWORK_FILESYSTEMS, detect_filesystem

    for path in paths:
        kind = detect_filesystem(path)
        if kind in NETWORK_FILESYSTEMS:
            message = "%s is on a network filesystem (%s), where SQLite locks are not reliable"
            _log.warning(message, path, kind)
