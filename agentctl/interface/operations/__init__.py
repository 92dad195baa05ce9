"""Operations: the things that a caller can do, on the local backend or over HTTP.

`Operations` is the table of the HTTP interface, with a module for each noun: each method declares
its method and path, what its caller needs, its parameters, its body, its responses and its texts.
The server, the policy, the audit log and the remote backend follow these declarations. Both
backends, `Service.operations_for(principal)` and `RemoteOperations(url, token)`, implement
`Operations`. No document names a path, host, process or backend, except `get_deployment`, which is
for administrators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from agentctl.interface.declarations import list_declarations
from agentctl.interface.operations.accounts import AccountDeclarations
from agentctl.interface.operations.approvals import ApprovalDeclarations
from agentctl.interface.operations.audit import AuditDeclarations
from agentctl.interface.operations.components import ComponentDeclarations
from agentctl.interface.operations.files import FileDeclarations
from agentctl.interface.operations.halts import HaltDeclarations
from agentctl.interface.operations.memories import MemoryDeclarations
from agentctl.interface.operations.personal_data import PersonalDataDeclarations
from agentctl.interface.operations.runs import RunDeclarations
from agentctl.interface.operations.sessions import SessionDeclarations
from agentctl.interface.operations.system import SystemDeclarations
from agentctl.interface.operations.usage import UsageDeclarations
from agentctl.interface.operations.webhooks import WebhookDeclarations
from agentctl.interface.pages import PAGES
from agentctl.interface.requirements import Requirement
from agentctl.records.routes import Route, RouteTable


class Operations(
    SystemDeclarations,
    SessionDeclarations,
    MemoryDeclarations,
    UsageDeclarations,
    AccountDeclarations,
    WebhookDeclarations,
    HaltDeclarations,
    AuditDeclarations,
    ComponentDeclarations,
    RunDeclarations,
    ApprovalDeclarations,
    FileDeclarations,
    PersonalDataDeclarations,
):
    """The operations of one principal. They raise `errors.AgentctlError`.

    The docstring of a method is its text in the OpenAPI document.
    """

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Execute an operation that the backend does not override: the method of this name.

        The arguments are by name, with defaults. The result is an awaitable or an iterator.
        """
        raise NotImplementedError(name)


OPERATIONS = {declared.name: declared for declared in list_declarations(Operations)}
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
