"""Operations: the things that a caller can do, on the local backend or over HTTP.

`Operations` has a family of operations for each noun, in a module of its own. Each method of a
family declares its method and path, what its caller needs, its parameters, its body, its responses
and its texts. The server, the policy, the audit log and the remote backend follow these
declarations. Both backends, `Service.operations_for(principal)` and `RemoteOperations(url, token)`,
are `Operations`. No document names a path, host, process or backend, except
`system.get_deployment`, which is for administrators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from agentctl.interface.declarations import list_declarations
from agentctl.interface.operations.accounts import AccountsFamily
from agentctl.interface.operations.approvals import ApprovalsFamily
from agentctl.interface.operations.audit import AuditFamily
from agentctl.interface.operations.components import ComponentsFamily
from agentctl.interface.operations.files import FilesFamily
from agentctl.interface.operations.halts import HaltsFamily
from agentctl.interface.operations.memories import MemoriesFamily
from agentctl.interface.operations.runs import RunsFamily
from agentctl.interface.operations.sessions import SessionsFamily
from agentctl.interface.operations.system import SystemFamily
from agentctl.interface.operations.usage import UsageFamily
from agentctl.interface.operations.users import UsersFamily
from agentctl.interface.operations.webhooks import WebhooksFamily
from agentctl.interface.pages import PAGES
from agentctl.interface.requirements import Requirement
from agentctl.records.routes import Route, RouteTable


class Operations:
    """The operations of one principal, by noun. They raise `errors.AgentctlError`.

    The docstring of an operation is its text in the OpenAPI document.
    """

    def execute(self, method: Any, arguments: Mapping[str, Any]) -> Any:
        """Execute an operation of a family that the backend does not replace by its own.

        Args:
            method: the declared method, such as `SessionsFamily.get`.
            arguments: the arguments by name, with defaults.

        Returns:
            An awaitable, or an iterator of events or bytes.
        """
        raise NotImplementedError(method.__qualname__)

    @cached_property
    def system(self) -> SystemFamily:
        return SystemFamily(self.execute)

    @cached_property
    def sessions(self) -> SessionsFamily:
        return SessionsFamily(self.execute)

    @cached_property
    def memories(self) -> MemoriesFamily:
        return MemoriesFamily(self.execute)

    @cached_property
    def usage(self) -> UsageFamily:
        return UsageFamily(self.execute)

    @cached_property
    def accounts(self) -> AccountsFamily:
        return AccountsFamily(self.execute)

    @cached_property
    def webhooks(self) -> WebhooksFamily:
        return WebhooksFamily(self.execute)

    @cached_property
    def halts(self) -> HaltsFamily:
        return HaltsFamily(self.execute)

    @cached_property
    def audit(self) -> AuditFamily:
        return AuditFamily(self.execute)

    @cached_property
    def components(self) -> ComponentsFamily:
        return ComponentsFamily(self.execute)

    @cached_property
    def runs(self) -> RunsFamily:
        return RunsFamily(self.execute)

    @cached_property
    def approvals(self) -> ApprovalsFamily:
        return ApprovalsFamily(self.execute)

    @cached_property
    def files(self) -> FilesFamily:
        return FilesFamily(self.execute)

    @cached_property
    def users(self) -> UsersFamily:
        return UsersFamily(self.execute)


FAMILIES = (
    SystemFamily,
    SessionsFamily,
    MemoriesFamily,
    UsageFamily,
    AccountsFamily,
    WebhooksFamily,
    HaltsFamily,
    AuditFamily,
    ComponentsFamily,
    RunsFamily,
    ApprovalsFamily,
    FilesFamily,
    UsersFamily,
)

OPERATIONS = {declared.name: declared for declared in list_declarations(FAMILIES)}
"""The declared operations by operation id, in the order of the OpenAPI document."""

ROUTES: dict[str, Route] = {
    **{name: declared.route for name, declared in OPERATIONS.items()},
    **{name: page.route for name, page in PAGES.items()},
}
"""Method and path of every operation and page (docs/contract.md "Routes").

The server, `auth explain` and the remote backend use this table.
"""

REQUIREMENTS: dict[str, Requirement] = {
    **{name: declared.needs for name, declared in OPERATIONS.items()},
    **{name: page.needs for name, page in PAGES.items()},
}
"""Requirement for the caller of each of them; `agentctl.auth.policy` decides."""


@cache
def route_table() -> RouteTable:
    """Return the table of all operations and pages."""
    return RouteTable(ROUTES)
