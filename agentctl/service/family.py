"""The base of the operation families, with find-or-404 lookups for one principal.

Every lookup of a resource raises NotFound if it does not exist. A resource that the principal may
not see raises the same error (docs/contract.md "Errors"). docs/contract.md "Runs" has the rules of
requests with an idempotency key.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import orjson

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.interface.requests import StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunState
from agentctl.records.text import is_idempotency_key
from agentctl.records.times import now
from agentctl.runs.follow.follow import follow_run
from agentctl.runs.life.admission import Idempotency, build_key_conflict
from agentctl.service.audit_log import AppendEntry, AuditedCall
from agentctl.service.hosting import Hosting
from agentctl.service.reads.family import Lookups, ReadAccess, ReadFamily
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import idempotency


class RunLookups(Lookups):
    """The lookups of a service, which follows the states of runs as they change."""

    _hosting: Hosting

    async def find_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str | None
    ) -> tuple[Database, RunState]:
        """Return database and state of a run of this component, and of this session unless None."""
        read = self._hosting.changes.states.read
        databases = self._hosting.databases

        # The run may have begun when the component had another database.
        present_name = self.component(kind, component_id).database
        for name in dict.fromkeys((present_name, *databases)):
            state = await read(databases[name], run_id, self.visibility)
            if state is None:
                continue
            is_of_component = (state.component_type, state.component_id) == (kind, component_id)
            if is_of_component and session_id in (None, state.session_id):
                return databases[name], state

        raise errors.NotFound("Run not found")

    async def find_named_run(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        session_id: str | None,
        action: str,
    ) -> tuple[Database, RunState]:
        """Return database and state of a run whose session the caller must name.

        Administrators may omit the session (docs/contract.md "Authentication", rule 8). The
        `session_id` claim of the token is the default.

        Args:
            action: the verb for the error: `cancel` or `resume`.

        Raises:
            BadRequest: the session is missing.
        """
        session = session_id or self._principal.session_id
        if session is None and not self._principal.admin:
            raise errors.BadRequest(f"session_id is required to {action} a run")
        return await self.find_run(kind, component_id, run_id, session)


class ServiceAccess(ReadAccess):
    """The access of one principal to a service."""

    hosting: Hosting
    lookups: RunLookups

    def __init__(
        self, hosting: Hosting, principal: Principal, request_id: str | None = None
    ) -> None:
        super().__init__(hosting, principal, request_id)
        self.lookups = RunLookups(hosting, principal)


class OperationFamily(ReadFamily):
    """A family of operations on the shared objects of a service; see `ReadFamily`."""

    hosting: Hosting
    lookups: RunLookups

    def __init__(self, access: ServiceAccess) -> None:
        super().__init__(access)
        self._request_id = access.request_id

    def follow_events(
        self, database: Database, run_id: str, after: int, *, is_started: bool = False
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Yield the events of a run in portions, see `follow_run`."""
        hosting = self.hosting
        return follow_run(
            hosting.engine, database, hosting.changes, run_id, after, is_started=is_started
        )

    def build_idempotency(self, key: str | None, request: Sequence[Any]) -> Idempotency | None:
        """Return the identity of a request; None if it has no key.

        Args:
            request: everything that two equal requests have in common, as JSON values.
        """
        if key is None:
            return None
        if not is_idempotency_key(key):
            raise errors.ValidationFailed(
                "Idempotency-Key must be 1 to 255 visible ASCII characters"
            )

        # A subject is never empty, so the empty owner represents callers without a subject.
        owner = self.principal.subject or ""
        request_hash = hashlib.sha256(orjson.dumps(list(request))).hexdigest()
        return Idempotency(owner, key, request_hash)

    async def prepare_keyed_entry(
        self, call: AuditedCall, database: Database, request: Idempotency | None
    ) -> AppendEntry | None:
        """Return the unit that the transaction of a change in `database` has to append.

        In a database without the audit log the entry is committed first, but not for a repeated
        request.

        Raises:
            ValidationFailed: the key was used for a request in another database
                (docs/contract.md "Runs"). A database that is unavailable is left out.
        """
        if request is None:
            return await call.prepare_entry(database)

        is_claimed = idempotency.is_claimed(request.principal, request.key, now())
        if database is not self.hosting.audit_log.database and await database.read(is_claimed):
            return _refuse_new_change

        for other_database in self.hosting.databases.get_open().values():
            if other_database is database:
                continue
            with contextlib.suppress(errors.Unavailable):
                if await other_database.read(is_claimed):
                    raise build_key_conflict()

        return await call.prepare_entry(database)


async def find_repeated(database: Database, request: Idempotency | None) -> bool:
    """Return True if the same request with its key was executed in the database before.

    Raises:
        ValidationFailed: another request had the key.
    """
    if request is None:
        return False

    claim = await database.read(idempotency.get_claim(request.principal, request.key, now()))
    if claim is None:
        return False
    if claim.body_hash != request.body_hash:
        raise build_key_conflict()
    return True


@unit
def _refuse_new_change() -> Steps[None]:
    """Fail instead of an audit entry: the key of a repeated request expired in between.

    The change would be made without an entry in the audit log.
    """
    yield from ()
    raise errors.Unavailable("The Idempotency-Key expired just now")
