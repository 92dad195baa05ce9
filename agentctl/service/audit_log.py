"""No record, no change: how operations come into the audit (contract.md 6).

A change in the system database and its row are one transaction. A change in another database has
its row committed before it, and a second one, `failed`, should it fail after all. What is refused
or fails has a row of its own. A row of a change that cannot be written keeps the change from being
made; where nothing was changed anyway, the refusal stands and the log says what is missing.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from agentctl import errors
from agentctl.auth.policy import POLICY, Public
from agentctl.records.audit import AuditOutcome
from agentctl.records.kinds import KINDS
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.records.routes import ROUTES, operation_ids
from agentctl.records.times import now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import audit
from agentctl.store.repositories.audit import NewAuditEntry

if TYPE_CHECKING:
    from agentctl.service.access import Access

__all__ = ["CHANGING_OPERATIONS", "MAXIMUM_TEXT", "AppendEntry", "AuditLog", "AuditedCall"]

T = TypeVar("T")

MAXIMUM_TEXT = 1_000
"""Characters of a resource or a reason."""

AppendEntry = Callable[[], Work[None]]
"""Makes the row of a change, to be appended in the change's transaction: once for each try."""

CHANGING_OPERATIONS = frozenset(
    {operation for operation, route in ROUTES.items() if route.method != "GET"}
    - {operation_ids(kind).resume_run for kind in KINDS}
    - {"explain_auth"}
)
"""The operations that change anything: they are always recorded. Some others are POST as well."""

_RESOURCE_NOUNS = {
    **{names.id_field: kind for kind, names in KINDS.items()},
    "session_id": "session",
    "run_id": "run",
    "account_id": "service_account",
}
"""What the parameters of paths name; others name nothing that the audit is about."""

_UNQUOTED = re.compile(r"[A-Za-z0-9._~@-]*", re.ASCII)
"""What stays as it is when it is percent-encoded."""

_complaints = RateLimitedLog(logging.getLogger("agentctl.service"), level=logging.ERROR)


class AuditLog:
    """The audit of a service, for those who write to it.

    Args:
        databases: the first of them has it.
        reads: whether reads are recorded.
    """

    def __init__(self, databases: Databases, *, reads: bool) -> None:
        self._databases = databases
        self._reads = reads

    @property
    def database(self) -> Database:
        """Where it is kept."""
        return self._databases.system

    def records(self, operation: str) -> bool:
        """Whether every call of an operation is recorded, and not only those that are denied.

        What is open to everybody is not: whoever watches the process asks for it every second.
        """
        if operation in CHANGING_OPERATIONS:
            return True
        return self._reads and not isinstance(POLICY[operation], Public)

    async def commit(self, *entries: NewAuditEntry) -> None:
        """Write rows, and return when they are on the disk.

        Raises:
            Unavailable: that cannot be done.
        """
        try:
            await self.database.write(_append_all(entries))
        except errors.AgentctlError as error:
            raise _audit_unavailable(error) from error

    async def try_commit(self, entry: NewAuditEntry) -> None:
        """Write the row of what is refused in any case; what keeps it out goes to the log."""
        try:
            await self.commit(entry)
        except errors.Unavailable as error:
            # Of a database that does not answer the caller and the log are told already.
            if entry.status is not None and entry.status < 500:
                _complaints.make("the audit lacks a row: %s (%s)", error.detail, error.cause)


class AuditedCall:
    """One call of an operation, on its way into the audit: an async context manager.

    Entered, it asks the policy. Inside, a change is made with `write`, or elsewhere with `note`
    within `kept`. What is raised becomes the row of a denial or a failure. Left, what is recorded
    without being a change has its row before the answer.

    Args:
        access: who calls, on what.
        operation: operation id.
        path_params: the parameters of its path.
    """

    __slots__ = ("_access", "_appending", "_done", "_made", "_operation", "_path_params", "_things")

    def __init__(self, access: Access, operation: str, path_params: Mapping[str, str]) -> None:
        self._access = access
        self._operation = operation
        self._path_params = path_params
        self._things: list[str] = []
        self._made: list[str] = []
        self._appending = False
        self._done = False

    async def __aenter__(self) -> AuditedCall:
        try:
            self._access.require(self._operation, **self._path_params)
        except errors.AgentctlError as error:
            await self.refused(error)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            await self.refused(error)
        elif error is None and not self._done and self._audit.records(self._operation):
            await self._allow()

    @property
    def _audit(self) -> AuditLog:
        return self._access.hosting.audit

    def name(self, noun: str, *ids: str) -> None:
        """Add what the operation turns out to be about, beside what its path names."""
        self._things += _format_resources(noun, ids)

    def add_created(self, noun: str, id: str) -> None:
        """Add what the change makes, which is not there if it fails."""
        self._made += _format_resources(noun, [id])

    async def write(self, database: Database, work: Work[T]) -> T:
        """Make a change, which has its row: in the transaction, or committed before.

        Raises:
            Unavailable: the row cannot be written; nothing was changed.
            AgentctlError: as the unit raises it; then no row says that it was allowed, unless it
                had to be committed before.
        """
        note = await self.note(database)
        with self.kept():
            return await database.write(work if note is None else _with_entry(work, note))

    async def note(self, database: Database) -> AppendEntry | None:
        """What the transaction of a change in this database is to append; None: nothing more, the
        row is there.

        Raises:
            Unavailable: it had to be there before, and cannot be written.
        """
        if database is self._audit.database and not self._done:
            return self._append
        await self.commit_first(database)
        return None

    async def commit_first(self, database: Database) -> None:
        """Commit the row now, unless it is there: for a change of more than one transaction, or in
        another database than the audit's.

        Raises:
            Unavailable: that cannot be done.
        """
        if self._done:
            return
        if database is not self._audit.database:
            self.name("database", database.id)
        await self._allow()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Make, inside, the change that `note` is appended to. One that turns out to be none, such
        as a repeated request, has no row.

        Raises:
            Unavailable: the row cannot be written; nothing was changed.
            OutcomeUnknown: nobody knows whether both were, or neither.
        """
        try:
            yield
        except errors.OutcomeUnknown:
            raise
        except errors.AgentctlError as error:
            # What is refused was refused by the change itself, whatever an earlier try came to.
            if self._appending and error.status >= 500:
                raise _audit_unavailable(error) from error
            raise
        self._done = True

    async def _allow(self) -> None:
        await self._audit.commit(self._entry("allowed"))
        self._done = True

    async def refused(self, error: Exception) -> None:
        """Write the row of a call that is denied or has failed, if it is to have one."""
        if isinstance(error, errors.Forbidden):
            scopes = ", ".join(quote(scope, safe=":*@") for scope in error.required_scopes)
            entry = self._entry("denied", error.status, scopes or error.error_code)
        elif not self._audit.records(self._operation):
            return
        elif isinstance(error, errors.AgentctlError):
            entry = self._entry("failed", error.status, error.error_code)
        else:
            entry = self._entry("failed", 500, errors.InternalError.error_code)
        await self._audit.try_commit(entry)

    @unit
    def _append(self) -> Steps[None]:
        self._appending = True
        yield from audit.append_entry(self._entry("allowed"))
        self._appending = False

    def _entry(
        self, outcome: AuditOutcome, status: int | None = None, reason: str | None = None
    ) -> NewAuditEntry:
        principal = self._access.principal
        things = [
            *(
                thing
                for name, text in self._path_params.items()
                for thing in _format_resources(_RESOURCE_NOUNS.get(name), (text,))
            ),
            *self._things,
            *(self._made if outcome == "allowed" or self._done else ()),
        ]
        return NewAuditEntry(
            at=now(),
            principal=principal.identity,
            via=principal.via,
            operation=self._operation,
            resource=_truncate(",".join(things)) or None,
            outcome=outcome,
            status=status,
            reason=None if reason is None else _truncate(reason),
            request_id=self._access.request_id,
        )


def _format_resources(noun: str | None, ids: Iterable[str]) -> list[str]:
    """Things as rows name them: `session:<id>`. Nothing in an id can pass for another name."""
    if noun is None:
        return []
    return [
        f"{noun}:{each}"
        if _UNQUOTED.fullmatch(each)
        else f"{noun}:{quote(each, safe='@', errors='surrogatepass')}"
        for each in ids
    ]


def _truncate(text: str) -> str:
    return text if len(text) <= MAXIMUM_TEXT else f"{text[: MAXIMUM_TEXT - 3]}..."


@unit
def _append_all(entries: Iterable[NewAuditEntry]) -> Steps[None]:
    for entry in entries:
        yield from audit.append_entry(entry)


@unit
def _with_entry(work: Work[T], note: AppendEntry) -> Steps[T]:
    result = yield from work
    yield from note()
    return result


def _audit_unavailable(error: errors.AgentctlError) -> errors.Unavailable:
    """What is told of a change that was not made because its row could not be written."""
    return errors.Unavailable(
        "The audit cannot be written, and nothing is done without it",
        cause=error.cause or error.detail,
        hint=error.hint,
    )
