"""The writer of the audit log (docs/contract.md "Audit").

A change in the system database and its audit entry are one transaction. A change in another
database has its entry committed first, and a second entry, `failed`, if the change fails. A failed
operation has one entry; a denied one has one too, unless the caller was denied the same operation
in the last minute: then it is counted. Calls that a busy server refuses are counted as well: an
entry for each would cost as much as the work that is refused. If the entry of a change cannot be
written, the change is not made. If nothing was changed, the caller gets the original error and the
log reports the missing entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from agentctl import errors
from agentctl.auth.policy import POLICY, authorize_call
from agentctl.auth.principal import Principal
from agentctl.errors import Unavailable
from agentctl.interface.requirements import Public
from agentctl.records.kinds import AuditOutcome
from agentctl.records.logs import RateLimitedLog, current_log_context
from agentctl.records.sessions import hash_ids
from agentctl.records.times import now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import audit
from agentctl.store.repositories.audit import AuditRow

FLUSH_SECONDS = 60.0
"""Seconds from the first request of a key until its count is written."""

MAXIMUM_KEYS = 10_000
"""Keys that are counted at the same time. The entries of further keys are written one by one."""

T = TypeVar("T")

MAXIMUM_TEXT = 1_000
"""Characters of the resource and of the reason of an entry."""

AppendEntry = Callable[[], Work[None]]
"""Builds the unit that appends an entry; called again for each try of the transaction."""


@cache
def list_changing_operations() -> frozenset[str]:
    """Return the operations that change data: they are always recorded."""
    from agentctl.interface.operations import OPERATIONS

    return frozenset(name for name, declared in OPERATIONS.items() if declared.changes_data)


@cache
def _get_resource_nouns(operation: str) -> Mapping[str, str]:
    """Return the nouns of the resources of an operation by path parameter."""
    from agentctl.interface.operations import OPERATIONS

    declared = OPERATIONS.get(operation)
    return {} if declared is None else declared.resource_nouns


_UNQUOTED = re.compile(r"[A-Za-z0-9._~@-]*", re.ASCII)
"""Texts that percent-encoding does not change."""

_log = RateLimitedLog(logging.getLogger("agentctl.service.audit"), level=logging.ERROR)


class EntryCounter:
    """The entries of the last minute by their keys, with their counts.

    Args:
        commit: writes entries and returns when they are on disk; raises Unavailable.
    """

    def __init__(
        self, commit: Callable[..., Awaitable[None]], *, seconds: float = FLUSH_SECONDS
    ) -> None:
        self._commit = commit
        self._seconds = seconds
        # None for a key that had its entry, and has counted nothing since.
        self._pending: dict[Hashable, AuditRow | None] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._log = RateLimitedLog(logging.getLogger("agentctl.service.audit"), level=logging.ERROR)

    def is_first(self, key: Hashable) -> bool:
        """Return True if a key had no entry in the last minute.

        The caller then writes the entry, and counts the next requests with `count`.
        """
        if key in self._pending:
            return False
        if len(self._pending) < MAXIMUM_KEYS:
            self._pending[key] = None
            self._start()
        return True

    def count(self, key: Hashable, entry: AuditRow) -> None:
        """Add an entry to the count of its key."""
        if key not in self._pending and len(self._pending) >= MAXIMUM_KEYS:
            self._log.log(
                "audit entries are lost: too many callers while the database is unavailable"
            )
            return
        counted_entry = self._pending.get(key)
        self._pending[key] = entry if counted_entry is None else _merge(counted_entry, entry)
        self._start()

    async def close(self) -> None:
        """Write the remaining counts."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])
        await self.flush()

    async def flush(self) -> None:
        """Write one entry for each counted key. If the database is unavailable, keep the counts.

        A counted key is also counted in the next minute, so that it has one entry a minute.
        """
        counted_entries = {key: entry for key, entry in self._pending.items() if entry is not None}
        self._pending = dict.fromkeys(counted_entries)
        if not counted_entries:
            return

        try:
            await asyncio.shield(self._commit(*counted_entries.values()))
        except Unavailable as error:
            for key, entry in counted_entries.items():
                # Further calls were counted while the entries were written.
                later_entry = self._pending.get(key)
                self._pending[key] = entry if later_entry is None else _merge(entry, later_entry)
            self._log.log(
                "audit entries wait for the database, which is not available: %s", error.cause
            )

    def _start(self) -> None:
        if self._flushing is None:
            # In an empty context, so that log lines of the task do not carry this request's id.
            self._flushing = asyncio.create_task(self._flush_later(), context=Context())

    async def _flush_later(self) -> None:
        while self._pending:
            await asyncio.sleep(self._seconds)
            await self.flush()
        self._flushing = None


def _merge(earlier: AuditRow, later: AuditRow) -> AuditRow:
    """Return one entry for the calls of two, without the values in which they differ."""
    has_one_resource = later.resource == earlier.resource
    has_one_reason = later.reason == earlier.reason
    return later._replace(
        resource=later.resource if has_one_resource else None,
        reason=later.reason if has_one_reason else None,
        request_id=None,
        trace_id=None,
        count=earlier.count + later.count,
    )


class AuditLog:
    """The audit log of a service.

    Args:
        reads: record reads as well.
    """

    counter: EntryCounter
    """The entries that are counted, not written one by one."""

    def __init__(self, databases: Databases, *, reads: bool) -> None:
        self._databases = databases
        self._reads = reads
        self.counter = EntryCounter(self.commit)

    @property
    def database(self) -> Database:
        """The system database."""
        return self._databases.system

    def records(self, operation: str) -> bool:
        """Return True if every call of an operation is recorded, not only denials.

        Public operations are never recorded: a monitor calls them every second.
        """
        if self._reads and not isinstance(POLICY[operation], Public):
            return True
        # Every `get_…` only reads: a command that reads does not import the declarations.
        return not operation.startswith("get_") and operation in list_changing_operations()

    async def commit(self, *entries: AuditRow) -> None:
        """Write entries and return when they are on disk.

        Raises:
            Unavailable: the entries cannot be written.
        """
        try:
            await self.database.write(_append_all(entries))
        except errors.AgentctlError as error:
            raise _build_unavailable(error) from error

    async def record_refusal(self, entry: AuditRow) -> None:
        """Write the first refusal of a caller and an operation in a minute; count further ones.

        A refusal that cannot be written is counted, so that it is written later.
        """
        key = (entry.principal, entry.via, entry.operation, entry.outcome, entry.status)
        if self.counter.is_first(key) and not self.database.write_failed:
            with contextlib.suppress(errors.Unavailable):
                await self.commit(entry)
                return
        self.counter.count(key, entry)

    async def try_commit(self, entry: AuditRow) -> None:
        """Write the entry of a refused operation, or log that it is missing."""
        try:
            await self.commit(entry)
        except errors.Unavailable as error:
            # The caller and the log already have the error of a database that does not respond.
            if entry.status is not None and entry.status < 500:
                _log.log("audit entry not written: %s (%s)", error.detail, error.cause)


class ResourceBatch(NamedTuple):
    """Many resources of one entry: their noun, their number, and the hash of their ids."""

    noun: str
    number: int
    digest: str


@dataclass(slots=True, eq=False)
class AuditedCall:
    """One call of an operation: an async context manager that writes its audit entries.

    On entry the policy allows or denies the call, unless it has allowed it before. Inside, a change
    is made with `write`, or within `change` by code that appends the entry of `prepare_entry`. An
    exception becomes the entry of a denial or failure. On exit an operation that is recorded and
    changed nothing gets its entry before the caller gets the response.

        async with self.audit("delete_memory", memory_id=memory_id) as call:
            await call.write(database, memories.delete(memory_id, visibility))
    """

    _audit: AuditLog
    _principal: Principal
    _request_id: str
    _operation: str
    _path_params: Mapping[str, str]

    is_admitted: bool = False
    """True if the policy has allowed the call before (`Access.admit`)."""

    _resources: list[str] = field(default_factory=list)
    """The resources that the path does not name, as `session:<id>`."""

    _created: list[str] = field(default_factory=list)
    """The resources that the change creates: they exist only if it succeeds."""

    _batch: ResourceBatch | None = None

    _appending: bool = False
    """True while the transaction of the change appends the entry."""

    _done: bool = False
    """True if the call has its entry, or is to have none."""

    _log_context: Mapping[str, str] = field(default_factory=current_log_context)
    """The ids of the request: entries are built in the thread of the database.

    A run adds its trace when it has one.
    """

    async def __aenter__(self) -> AuditedCall:
        if self.is_admitted:
            return self

        try:
            authorize_call(self._principal, self._operation, self._path_params)
        except errors.AgentctlError as error:
            await self.record_failure(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            await self.record_failure(error)
        elif error is None and not self._done and self._audit.records(self._operation):
            await self._commit_allowed()

    def add_resource(self, noun: str, *ids: str) -> None:
        """Add resources to the entry that the path does not name."""
        self._resources += _format_resources(noun, ids)

    def set_batch(self, noun: str, ids: Sequence[str]) -> None:
        """Set the resources of an entry that has their number and a hash instead of the ids."""
        self._batch = ResourceBatch(noun, len(ids), hash_ids(ids))

    async def write_batch(
        self, database: Database, work: Work[T], find_ids: Callable[[T], Sequence[str]]
    ) -> T:
        """Execute a change of the resources of `set_batch`, which may change some of them only.

        The entry has those that were changed. If it had to be committed first, a second one has
        them unless the change was complete.

        Args:
            find_ids: returns the ids of the resources that were changed.
        """
        planned_batch = self._batch
        assert planned_batch is not None

        @unit
        def change() -> Steps[T]:
            result = yield from work
            self.set_batch(planned_batch.noun, find_ids(result))
            return result

        result = await self.write(database, change())

        was_committed_first = database is not self._audit.database
        if was_committed_first and self._batch != planned_batch:
            await self._commit_allowed()
        return result

    def add_created(self, noun: str, id: str) -> None:
        """Add the resource that the change creates; an entry of a failure omits it."""
        self._created += _format_resources(noun, [id])

    async def write(self, database: Database, work: Work[T]) -> T:
        """Execute a change with its entry, in one transaction or with the entry committed first.

        Raises:
            Unavailable: the entry cannot be written; nothing was changed.
            AgentctlError: as the unit raises it. No `allowed` entry exists then, unless it was
                committed first.
        """
        append = await self.prepare_entry(database)
        if append is not None:
            work = _with_entry(work, append)
        with self.change():
            return await database.write(work)

    async def prepare_entry(self, database: Database) -> AppendEntry | None:
        """Return the unit that the transaction of a change in `database` has to append.

        Returns:
            None if the entry is already committed.
        """
        if database is self._audit.database and not self._done:
            return self._append
        await self.commit_first(database)
        return None

    async def commit_first(self, database: Database) -> None:
        """Commit the entry before its change, unless it is committed.

        For a change of several transactions, or in a database without the audit log.
        """
        if self._done:
            return
        if database is not self._audit.database:
            self.add_resource("database", database.id)
        await self._commit_allowed()

    def omit_entry(self) -> None:
        """Write no entry if the call succeeds: it repeats one with the same idempotency key."""
        self._done = True

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Enclose the change whose transaction appends the entry of `prepare_entry`.

        A request that turns out to change nothing, such as a repeat with the same idempotency key,
        has no entry.

        Raises:
            Unavailable: the entry cannot be written; nothing was changed.
            OutcomeUnknown: it is not known if the change and its entry were committed.
        """
        try:
            yield
        except errors.OutcomeUnknown:
            raise
        except errors.AgentctlError as error:
            # An error below 500 is from the change itself, even if an earlier try of the
            # transaction failed at its entry.
            if self._appending and error.status >= 500:
                raise _build_unavailable(error) from error
            raise
        self._done = True

    async def record_failure(self, error: Exception) -> None:
        """Write the entry of a denied or failed call, if it has to have one."""
        if isinstance(error, errors.Forbidden):
            scopes = ", ".join(quote(scope, safe=":*@") for scope in error.required_scopes)
            reason = scopes or error.error_code
            await self._audit.record_refusal(self._build_entry("denied", error.status, reason))
            return

        if not self._audit.records(self._operation):
            return

        public_error = error if isinstance(error, errors.AgentctlError) else errors.InternalError()
        entry = self._build_entry("failed", public_error.status, public_error.error_code)

        # The types themselves: a subclass has another reason than a busy server.
        refusals = (errors.TooManyRequests, errors.RateLimited, errors.Unavailable)
        if type(public_error) in refusals:
            await self._audit.record_refusal(entry)
        else:
            await self._audit.try_commit(entry)

    async def _commit_allowed(self) -> None:
        await self._audit.commit(self._build_entry("allowed"))
        self._done = True

    @unit
    def _append(self) -> Steps[None]:
        self._appending = True
        yield from audit.append_entry(self._build_entry("allowed"))
        self._appending = False

    def _build_entry(
        self, outcome: AuditOutcome, status: int | None = None, reason: str | None = None
    ) -> AuditRow:
        nouns = _get_resource_nouns(self._operation)
        resources = list[str]()
        for name, text in self._path_params.items():
            resources += _format_resources(nouns.get(name), (text,))
        resources += self._resources

        if self._batch is not None:
            resources.append(f"{self._batch.noun}:{self._batch.digest}")

        if outcome == "allowed" or self._done:
            resources += self._created

        return AuditRow(
            at=now(),
            principal=self._principal.identity,
            via=self._principal.via,
            operation=self._operation,
            resource=_truncate(",".join(resources)) or None,
            outcome=outcome,
            status=status,
            reason=None if reason is None else _truncate(reason),
            request_id=self._request_id,
            trace_id=self._log_context.get("trace_id"),
            count=1 if self._batch is None else self._batch.number,
        )


def _format_resources(noun: str | None, ids: Iterable[str]) -> list[str]:
    """Return `session:<id>` for each id, percent-encoded so that an id cannot add a resource.

    Args:
        noun: the noun of the resources; None for a parameter of a path that names none.
    """
    if noun is None:
        return []

    resources = list[str]()
    for text in ids:
        if not _UNQUOTED.fullmatch(text):
            text = quote(text, "@", errors="surrogatepass")
        resources.append(f"{noun}:{text}")
    return resources


def _truncate(text: str) -> str:
    return text if len(text) <= MAXIMUM_TEXT else f"{text[: MAXIMUM_TEXT - 3]}..."


@unit
def _append_all(entries: Iterable[AuditRow]) -> Steps[None]:
    for entry in entries:
        yield from audit.append_entry(entry)


@unit
def _with_entry(work: Work[T], append: AppendEntry) -> Steps[T]:
    result = yield from work
    yield from append()
    return result


def _build_unavailable(error: errors.AgentctlError) -> errors.Unavailable:
    """Return the error of a change that was not made because its entry cannot be written."""
    return errors.Unavailable(
        "The audit log cannot be written, so nothing was changed",
        cause=error.cause or error.detail,
        hint=error.hint,
    )
