"""Who may see and use what: policy, data scoping and addresses, the same for every door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentctl import errors
from agentctl.auth import policy
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.account_lookup import AccountTokens
from agentctl.config.settings import Settings
from agentctl.operations import SessionLocator
from agentctl.records.document import Document
from agentctl.records.ids import is_session_id, new_id
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.text import is_storable
from agentctl.runs.cancel import Canceller
from agentctl.runs.changes import DatabaseChanges
from agentctl.runs.engine import Engine
from agentctl.runs.liveness import WorkerMonitor
from agentctl.runtime.catalog import SESSION_TABLE, Catalog, Component
from agentctl.service.audit_log import AuditedCall, AuditLog
from agentctl.service.readiness import Readiness
from agentctl.store.database import Database
from agentctl.store.databases import Databases
from agentctl.store.visibility import Visibility

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier

__all__ = [
    "Access",
    "Hosting",
    "check_json",
    "check_session_id",
    "check_text",
    "check_texts",
]


MAXIMUM_USER_ID_LENGTH = 255
"""Characters of a user, as of a token's `sub` (contract.md 6)."""


@dataclass(frozen=True, slots=True)
class Hosting:
    """What stands behind the port, whoever calls.

    `verifier` answers the one verifier of the configuration, which is made when it is first asked
    for: that raises InvalidKey when its keys are refused. `listings` are those of all configured
    components of a kind, once they were asked for.
    """

    settings: Settings
    databases: Databases
    catalog: Catalog
    engine: Engine
    canceller: Canceller
    changes: DatabaseChanges
    observer: WorkerMonitor
    accounts: AccountTokens
    audit: AuditLog
    readiness: Readiness
    verifier: Callable[[], Verifier]
    listings: dict[ComponentKind, Document[list[Any]]] = field(default_factory=dict)


class Access:
    """One principal in front of what is hosted: the base of every group of operations.

    Every method of the port works inside `audited`, which asks the policy first, and looks things
    up through the helpers here, so that what a principal may not see is not found, and both read
    the same.

    Args:
        hosting: what is hosted.
        principal: who calls.
        request_id: in the audit; None: one is made, for a command.

    Attributes:
        entered: whether an operation was asked for, which then sees to its row itself.
    """

    def __init__(
        self, hosting: Hosting, principal: Principal, request_id: str | None = None
    ) -> None:
        self.hosting = hosting
        self.principal = principal
        self.request_id = new_id() if request_id is None else request_id
        self.entered = False

    def audit(self, operation: str, **path_params: str) -> AuditedCall:
        """The call of an operation: to be entered before anything else is done.

        Entering and leaving it raise what `require` does, and Unavailable where there must be a
        row in the audit and it cannot be written.
        """
        self.entered = True
        return AuditedCall(self, operation, path_params)

    async def refused(
        self, operation: str, path_params: Mapping[str, str], error: Exception
    ) -> None:
        """Record what a door refuses before it asks for the operation."""
        if not self.entered:
            await AuditedCall(self, operation, path_params).refused(error)

    def require(self, operation: str, **path_params: str) -> None:
        """Refuse the operation unless the policy allows it (contract.md 1).

        Raises:
            Forbidden: the principal lacks the scopes.
            ValidationFailed: an id is no text that could be one.
        """
        policy.authorize(self.principal, operation, path_params)
        for name, text in path_params.items():
            check_text(name, text)

    @property
    def visibility(self) -> Visibility:
        """Whose data the principal sees (contract.md 6)."""
        return Visibility(everyone=self.principal.sees_all_users, user_id=self.principal.subject)

    @property
    def _may_set_owner(self) -> bool:
        """Whether the principal may say who owns something: administrators, unless they act for a
        user. Seeing everybody's data (`user_isolation` off) does not do.
        """
        return self.principal.admin and self.principal.sees_all_users

    def owner(self, asked_for: str | None) -> str | None:
        """Who is to own what the principal makes: its subject, unless it may say (contract.md 5).

        Raises:
            ValidationFailed: nobody can be named so.
        """
        if self._may_set_owner and asked_for is not None:
            if not 1 <= len(asked_for) <= MAXIMUM_USER_ID_LENGTH:
                raise errors.ValidationFailed(
                    f"user_id must be 1 to {MAXIMUM_USER_ID_LENGTH} characters"
                )
            return check_text("user_id", asked_for)
        return self.principal.subject

    def run_visibility(self, asked_for: str | None) -> Visibility:
        """The existing sessions in which a run may be started (contract.md 4)."""
        if self._may_set_owner and asked_for is not None:
            return Visibility(everyone=False, user_id=asked_for)
        return self.visibility

    def database(self, db_id: str | None) -> Database:
        """The database of this id, or the default one.

        Raises:
            NotFound: there is no such database.
        """
        databases = self.hosting.databases
        wanted = next(iter(databases)) if db_id is None else db_id
        if wanted not in databases.ids:
            raise errors.NotFound("Database not found")
        return databases[wanted]

    def database_of(self, where: SessionLocator) -> Database:
        """The database that `where` names, its table checked.

        Raises:
            NotFound: there is no such database or table.
        """
        if where.table is not None and where.table != SESSION_TABLE:
            raise errors.NotFound("Table not found")
        return self.database(where.db_id)

    def component(self, kind: ComponentKind, component_id: str) -> Component:
        """The configured component.

        Raises:
            NotFound: there is none of this kind and id.
        """
        found = self.hosting.catalog.get(kind, component_id)
        if found is None:
            raise errors.NotFound(f"{KINDS[kind].noun} not found")
        return found


def check_text(name: str, text: str) -> str:
    """Text from outside that every database keeps as it is (contract.md 7).

    Raises:
        ValidationFailed: it holds NUL or a lone surrogate.
    """
    if not is_storable(text):
        raise errors.ValidationFailed(f"{name} must not contain NUL or lone surrogates")
    return text


def check_texts(**given: str | None) -> None:
    """Refuse texts that no row can have: some databases do not even look for them.

    Raises:
        ValidationFailed: as `checked_text` does, by the name of the first one.
    """
    for name, text in given.items():
        if text is not None:
            check_text(name, text)


def check_json(name: str, value: Any) -> Any:
    """A JSON value from outside, every text in it checked as `checked_text` does.

    Raises:
        ValidationFailed: also for an integer that not everybody reads back as it was.
    """
    if isinstance(value, str):
        check_text(name, value)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise errors.ValidationFailed(f"{name} holds an integer of more than 64 bits")
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(name, key)
            check_json(name, inner)
    elif isinstance(value, list):
        for inner in value:
            check_json(name, inner)
    return value


def check_session_id(session_id: str) -> str:
    """A session id from a client (contract.md 3).

    Raises:
        ValidationFailed: it breaks the grammar.
    """
    if not is_session_id(session_id):
        raise errors.ValidationFailed(
            "session_id must be 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -"
        )
    return session_id
