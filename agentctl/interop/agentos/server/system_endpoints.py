"""The instance, its components, service accounts and memories, for clients of AgentOS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NotRequired, Required

from starlette.responses import Response

from agentctl import INTERFACE_VERSION
from agentctl.config.settings import Settings
from agentctl.errors import NotFound
from agentctl.interface.bodies import BodyRecord, GrantBody, UpdateMemoryBody
from agentctl.interface.declarations import Query
from agentctl.interface.operations.memories import MemoryId
from agentctl.interface.requests import DEFAULT_LIMIT, Limit, Page, PageNumber, SortOrder
from agentctl.interface.requests.administration import AccountFilter, NewAccount
from agentctl.interop.agentos.mapping import write_account, write_session
from agentctl.interop.agentos.server.directory import Directory, build_config
from agentctl.interop.mcp import is_enabled
from agentctl.interop.mcp.settings import MCP_PATH
from agentctl.records.kinds import KINDS
from agentctl.records.routes import operation_ids
from agentctl.records.times import format_rfc3339, now
from agentctl.server.answers import Call, json_response, no_content_response
from agentctl.server.requests import RequestBody

DEFAULT_SCOPES = ("agents:run", "teams:run", "workflows:run", "sessions:read", "config:read")
"""Scopes of a new service account without `scopes`."""


class AccountForm(BodyRecord):
    """A service account to create; without scopes it gets `DEFAULT_SCOPES`."""

    name: Required[str]
    scopes: NotRequired[list[GrantBody] | None]
    expires_in_days: NotRequired[int | None]
    never_expires: NotRequired[bool]
    allow_privileged_scopes: NotRequired[bool]


class MemoryForm(UpdateMemoryBody, total=False):
    """A changed memory. The user is not read, because an id is unique."""

    user_id: str | None


def _add_scopes(body: Mapping[str, Any], _: object) -> Mapping[str, Any]:
    if body.get("scopes") is not None:
        return body
    return {**body, "scopes": [{"scope": scope} for scope in DEFAULT_SCOPES]}


BODIES: dict[str, dict[str, Any]] = {
    "create_service_account": {"body": RequestBody(AccountForm), "adapt_body": _add_scopes},
    "update_memory": {"body": RequestBody(MemoryForm)},
}
"""The bodies that differ from those of the contract, by operation id."""


def list_shapes(settings: Settings, directory: Directory) -> dict[str, Callable[[Any], Any]]:
    """Return the builders of the bodies that follow from a document alone, by operation id."""
    enabled = is_enabled(settings)
    mcp = {"enabled": enabled, "path": MCP_PATH if enabled else None, "oauth": None}
    started = {"instantiated_at": format_rfc3339(now())}
    shapes: dict[str, Callable[[Any], Any]] = {
        "get_health": lambda record: record | started,
        "get_info": lambda record: record | {"agno_version": INTERFACE_VERSION, "mcp": mcp},
        "get_config": build_config,
        "get_session_by_id": write_session,
    }
    for kind in KINDS:
        shapes[operation_ids(kind).list] = partial(directory.build_components, kind)
        shapes[operation_ids(kind).get] = partial(directory.build_component, kind)
    return shapes


async def create_service_account(call: Call, account: NewAccount) -> Response:
    created = (await call.operations.accounts.create(account)).value
    return json_response({**write_account(created), "token": created["token"]}, 201)


async def list_service_accounts(
    call: Call,
    include_revoked: Annotated[bool, Query("With revoked accounts")] = True,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    sort_order: SortOrder = "desc",
) -> Response:
    selected = AccountFilter(page=Page(limit, page, sort_order=sort_order))
    accounts = (await call.operations.accounts.list(selected)).value
    rows = [
        write_account(account)
        for account in accounts["data"]
        if include_revoked or account["revoked_at"] is None
    ]
    return json_response({"data": rows, "meta": {**accounts["meta"], "search_time_ms": 0.0}})


async def delete_memory(call: Call, memory_id: MemoryId) -> Response:
    """Handle `DELETE /memories/{memory_id}`; one that is not found is none, as on AgentOS."""
    with contextlib.suppress(NotFound):
        await call.operations.memories.delete(memory_id)
    return no_content_response()
