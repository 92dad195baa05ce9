"""The base of the operations that read, with what the configuration says about a principal's call.

It imports nothing of the store but the audit log: a list of components loads no statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentctl import errors
from agentctl.auth.policy import authorize
from agentctl.auth.principal import Principal
from agentctl.records.document import Document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.text import new_id
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.service.audit_log import AuditedCall, AuditLog
from agentctl.store.databases import Databases

if TYPE_CHECKING:
    from agentctl.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredHosting:
    """The objects that the reads of every principal share."""

    settings: Settings
    databases: Databases
    catalog: Catalog
    audit_log: AuditLog

    listings: dict[ComponentKind, Document[list[Any]]] = field(default_factory=dict)
    """Documents of all components of a kind, filled by the first request for them."""


def find_component(catalog: Catalog, kind: ComponentKind, component_id: str) -> Component:
    """Return a configured component; NotFound if there is none."""
    component = catalog.get(kind, component_id)
    if component is None:
        raise errors.NotFound(f"{KINDS[kind].noun} not found")
    return component


class Access:
    """The access of one principal to a service or to its reads, for one request or command.

    All families of the operations of a request share it.

    Args:
        request_id: the id for the audit log; None for a new id, as for a command.
    """

    def __init__(
        self, hosting: ConfiguredHosting, principal: Principal, request_id: str | None = None
    ) -> None:
        self.hosting = hosting
        self.principal = principal
        self.request_id = new_id() if request_id is None else request_id
        # The operation that the policy has allowed, with its path parameters.
        self._admitted: tuple[str, Mapping[str, str]] | None = None
        # True if an operation was called: from then on it records its failures itself.
        self._called = False

    def admit(self, operation: str, path_params: Mapping[str, str]) -> None:
        """Ask the policy about a request before its parameters and its body are read.

        The operation with these path parameters does not ask again. The caller of this method
        refuses path parameters that cannot be ids (`policy.check_path_params`).

        Raises:
            Forbidden: the principal has none of the required scopes.
        """
        authorize(self.principal, operation, path_params)
        self._admitted = (operation, path_params)

    def audit(self, operation: str, **path_params: str) -> AuditedCall:
        """Return the context manager in which an operation executes.

        On entry it raises the errors of `policy.authorize_call`, unless the request was admitted,
        and Unavailable if an audit entry is required and cannot be written.
        """
        self._called = True
        call = self._build_call(operation, path_params)
        call.is_admitted = self._admitted == (operation, path_params)
        return call

    async def record_refusal(
        self, operation: str, path_params: Mapping[str, str], error: Exception
    ) -> None:
        """Write the audit entry of a request that failed before its operation was called."""
        if not self._called:
            await self._build_call(operation, path_params).record_failure(error)

    def _build_call(self, operation: str, path_params: Mapping[str, str]) -> AuditedCall:
        return AuditedCall(
            self.hosting.audit_log, self.principal, self.request_id, operation, path_params
        )


class ConfiguredFamily:
    """A family of operations that only read.

    Every operation executes inside `audit`, which asks the policy first. It raises NotFound for
    what does not exist or is not visible to the principal, ValidationFailed for a value that is not
    valid, and TooLarge for a value that is too large.
    """

    hosting: ConfiguredHosting

    def __init__(self, access: Access) -> None:
        self.hosting = access.hosting
        self.principal = access.principal
        self.audit = access.audit
