"""The base of the operation families."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial

from agentctl.auth import policy
from agentctl.auth.principal import Principal
from agentctl.interface.requests import StreamEvent
from agentctl.records.ids import new_id
from agentctl.records.validation import check_text
from agentctl.runs.follow.follow import follow_run
from agentctl.service.audit_log import AuditedCall
from agentctl.service.hosting import Hosting
from agentctl.service.lookups import Lookups
from agentctl.store.database import Database


class OperationFamily:
    """Operations of one principal on the shared objects of a service.

    Every operation executes inside `audit`, which asks the policy first, and finds resources with
    `lookups`.

    Args:
        request_id: for the audit log; None: a new id, as for a command.
    """

    def __init__(
        self, hosting: Hosting, principal: Principal, request_id: str | None = None
    ) -> None:
        self.hosting = hosting
        self.principal = principal
        self.lookups = Lookups(hosting, principal)
        self._request_id = new_id() if request_id is None else request_id
        self._called = False

    def audit(self, operation: str, **path_params: str) -> AuditedCall:
        """Return the context manager in which an operation executes.

        On entry it raises the errors of `require`. It raises Unavailable if an audit entry is
        required and cannot be written.
        """
        self._called = True
        return self._audited_call(operation, path_params)

    def require(self, operation: str, **path_params: str) -> None:
        """Require that the policy allows the operation (docs/contract.md "Routes").

        Raises:
            Forbidden: the principal lacks the scopes.
            ValidationFailed: an id contains NUL or a lone surrogate.
        """
        policy.authorize(self.principal, operation, path_params)
        for name, text in path_params.items():
            check_text(name, text)

    def follow(
        self, database: Database, run_id: str, after: int, *, is_started: bool = False
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Yield the events of a run in portions, see `follow_run`."""
        hosting = self.hosting
        return follow_run(
            hosting.engine, database, hosting.changes, run_id, after, is_started=is_started
        )

    async def record_refusal(
        self, operation: str, path_params: Mapping[str, str], error: Exception
    ) -> None:
        """Write the audit entry of a request that failed before its operation was called."""
        if not self._called:
            await self._audited_call(operation, path_params).record_failure(error)

    def _audited_call(self, operation: str, path_params: Mapping[str, str]) -> AuditedCall:
        return AuditedCall(
            self.hosting.audit_log,
            self.principal,
            self._request_id,
            partial(self.require, operation, **path_params),
            operation,
            path_params,
        )
