"""The instance, its components, service accounts and memories, for clients of AgentOS."""

from __future__ import annotations

from typing import Annotated, NotRequired, Required

from starlette.responses import Response
from typing_extensions import TypedDict

from agentctl import INTERFACE_VERSION
from agentctl.declarations import Query
from agentctl.interop.agentos.mapping import write_account
from agentctl.interop.agentos.server.bodies import BuiltBodies
from agentctl.interop.agentos.server.directory import Directory, build_config
from agentctl.interop.mcp import is_enabled
from agentctl.interop.mcp.settings import MCP_PATH
from agentctl.operations import ComponentId
from agentctl.records.kinds import ComponentKind
from agentctl.records.times import format_rfc3339, now
from agentctl.requests import (
    DEFAULT_LIMIT,
    AccountFilter,
    Grant,
    Limit,
    NewAccount,
    Page,
    PageNumber,
    SortOrder,
)
from agentctl.server.answers import json_response
from agentctl.server.bodies import RequestBody
from agentctl.server.requests import GrantBody, UpdateMemoryBody
from agentctl.server.state import Call

DEFAULT_SCOPES = ("agents:run", "teams:run", "workflows:run", "sessions:read", "config:read")
"""Scopes of a new service account without `scopes`."""


class AccountForm(TypedDict):
    """A service account to create; without scopes it gets `DEFAULT_SCOPES`."""

    name: Required[str]
    scopes: NotRequired[list[GrantBody] | None]
    expires_in_days: NotRequired[int | None]
    never_expires: NotRequired[bool]
    allow_privileged_scopes: NotRequired[bool]


class MemoryForm(UpdateMemoryBody, total=False):
    """A changed memory. The user is not read, because an id is unique."""

    user_id: str | None


BODIES = {
    "create_service_account": RequestBody(AccountForm),
    "update_memory": RequestBody(MemoryForm),
}
"""The bodies that differ from those of the contract, by operation id."""


class SystemEndpoints:
    """The endpoints of the instance, its components, service accounts and memories.

    Args:
        directory: the configured components.
        bodies: keeps the bodies of responses.
    """

    def __init__(self, directory: Directory, bodies: BuiltBodies) -> None:
        self._directory, self._bodies = directory, bodies
        self._started = format_rfc3339(now())

    async def get_health(self, call: Call) -> Response:
        """Handle `GET /health`."""
        found = await call.operations.get_health()
        return json_response({**found.value, "instantiated_at": self._started})

    async def get_info(self, call: Call) -> Response:
        """Handle `GET /info`."""
        found = await call.operations.get_info()
        enabled = is_enabled(call.caller.app_state.settings)
        mcp = {"enabled": enabled, "path": MCP_PATH if enabled else None, "oauth": None}
        return json_response({**found.value, "agno_version": INTERFACE_VERSION, "mcp": mcp})

    async def get_config(self, call: Call) -> Response:
        """Handle `GET /config`."""
        return json_response(build_config((await call.operations.get_config()).value))

    async def list_components(self, kind: ComponentKind, call: Call) -> Response:
        """Handle `GET /agents` and the same of the other kinds."""
        found = await call.operations.get_components(kind)
        build = self._directory.build_component
        return self._bodies.respond(
            ("components", kind, found.raw), lambda: [build(kind, each) for each in found.value]
        )

    async def get_component(
        self, kind: ComponentKind, call: Call, component_id: ComponentId
    ) -> Response:
        """Handle `GET /agents/{agent_id}` and the same of the other kinds."""
        found = await call.operations.get_component(kind, component_id)
        return self._bodies.respond(
            ("component", kind, found.raw),
            lambda: self._directory.build_component(kind, found.value),
        )

    async def create_service_account(self, call: Call) -> Response:
        """Handle `POST /service-accounts`."""
        body = await BODIES["create_service_account"].read(call)
        scopes = body.get("scopes")
        grants = [Grant(each) for each in DEFAULT_SCOPES]
        if scopes is not None:
            grants = [Grant(**grant) for grant in scopes]
        account = NewAccount(
            name=body["name"],
            scopes=tuple(grants),
            expires_in_days=body.get("expires_in_days"),
            never_expires=body.get("never_expires", False),
            allow_privileged_scopes=body.get("allow_privileged_scopes", False),
        )
        created = (await call.operations.create_service_account(account)).value
        return json_response({**write_account(created), "token": created["token"]}, 201)

    async def list_service_accounts(
        self,
        call: Call,
        include_revoked: Annotated[bool, Query("With revoked accounts")] = True,
        limit: Limit = DEFAULT_LIMIT,
        page: PageNumber = 1,
        sort_order: SortOrder = "desc",
    ) -> Response:
        """Handle `GET /service-accounts`."""
        wanted = AccountFilter(page=Page(limit, page, sort_order=sort_order))
        found = (await call.operations.list_service_accounts(wanted)).value
        shown = [
            write_account(account)
            for account in found["data"]
            if include_revoked or account["revoked_at"] is None
        ]
        return json_response({"data": shown, "meta": {**found["meta"], "search_time_ms": 0.0}})
