"""The operations whose requests or responses differ in the interface of AgentOS."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from starlette.responses import Response

from agentctl.config.settings import Settings
from agentctl.interface.operations import OPERATIONS
from agentctl.interop.agentos.routes import AGENTOS_ROUTES
from agentctl.interop.agentos.server import system_endpoints
from agentctl.interop.agentos.server.directory import Directory
from agentctl.interop.agentos.server.operation import AdaptedOperation, BuiltBodies
from agentctl.interop.agentos.server.run_endpoints import RunEndpoints
from agentctl.interop.agentos.server.session_endpoints import ApprovalEndpoints, SessionEndpoints
from agentctl.records.kinds import KINDS
from agentctl.records.routes import operation_ids
from agentctl.server.answers import Call
from agentctl.server.routing import Endpoint, Operation

_SAME_ENDPOINT = ("create_session", "update_session", "rename_session", "update_memory")
"""Operations of which only the errors differ, or the body, too."""


def adapt_operations(operations: Iterable[Operation], settings: Settings) -> list[Operation]:
    """Return the operations in the interface of AgentOS, and those that only it has."""
    by_name = {operation.operation: operation for operation in operations}
    directory = Directory(settings)
    bodies = BuiltBodies()
    runs = RunEndpoints(directory, bodies)
    sessions = SessionEndpoints(directory, bodies)
    approvals = ApprovalEndpoints(directory, bodies)

    endpoints: dict[str, Endpoint | None] = dict.fromkeys(_SAME_ENDPOINT)
    # Their functions have the names of operations.
    for owner in (system_endpoints, sessions, approvals):
        endpoints |= {name: getattr(owner, name) for name in by_name if hasattr(owner, name)}

    endpoints["get_session_runs"] = partial(sessions.list_runs, False)
    other_endpoints: dict[str, Endpoint] = {
        "get_session_run_previews": partial(sessions.list_runs, True),
        "get_session_media": sessions.get_media,
    }

    for kind in KINDS:
        for name, operation_id in operation_ids(kind)._asdict().items():
            if hasattr(runs, name):
                endpoints[operation_id] = partial(getattr(runs, name), kind)

    adapted: dict[str, Operation] = by_name | {
        name: AdaptedOperation(by_name[name], endpoint, **system_endpoints.BODIES.get(name, {}))
        for name, endpoint in endpoints.items()
    }
    for name, build in system_endpoints.list_shapes(settings, directory).items():
        endpoint = _build_endpoint(name, build, bodies)
        signature = OPERATIONS[name].signature
        adapted[name] = AdaptedOperation(by_name[name], endpoint, signature=signature)

    added_operations = [
        AdaptedOperation(
            by_name[operation], other_endpoints.get(name) or getattr(approvals, name), route=route
        )
        for name, (operation, route) in AGENTOS_ROUTES.items()
    ]
    return [*adapted.values(), *added_operations]


def _build_endpoint(name: str, build: Callable[[Any], Any], bodies: BuiltBodies) -> Endpoint:
    find_method = attrgetter(OPERATIONS[name].address)
    kind = OPERATIONS[name].kind
    bound = () if kind is None else (kind,)

    async def endpoint(call: Call, **arguments: Any) -> Response:
        document = await find_method(call.operations)(*bound, **arguments)
        return bodies.respond((name, document.raw), lambda: build(document.value))

    return endpoint
