"""The operations whose requests or responses differ in the interface of AgentOS."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from agentctl.interop.agentos.server.bodies import BuiltBodies
from agentctl.interop.agentos.server.directory import Directory
from agentctl.interop.agentos.server.operation import AdaptedOperation
from agentctl.interop.agentos.server.run_endpoints import RunEndpoints
from agentctl.interop.agentos.server.session_endpoints import SessionEndpoints
from agentctl.interop.agentos.server.system_endpoints import BODIES, SystemEndpoints
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import AGENTOS_ROUTES, operation_ids
from agentctl.server.routing import Endpoint, Operation

if TYPE_CHECKING:
    from agentctl.config.settings import Settings


def adapt_operations(operations: Iterable[Operation], settings: Settings) -> list[Operation]:
    """Return the operations in the interface of AgentOS, and those that only it has.

    Args:
        operations: the operations of the contract.
        settings: the configuration.
    """
    by_name = {operation.operation: operation for operation in operations}
    directory = Directory(settings)
    bodies = BuiltBodies()
    runs, sessions = RunEndpoints(directory, bodies), SessionEndpoints(directory, bodies)
    system = SystemEndpoints(directory, bodies)
    endpoints = _list_endpoints(system, sessions)
    for kind in KINDS:
        endpoints |= _list_run_endpoints(kind, runs, system)
    adapted: list[Operation] = [
        AdaptedOperation(native, endpoints[name], BODIES.get(name)) if name in endpoints else native
        for name, native in by_name.items()
    ]
    extra: dict[str, Endpoint] = {"get_session_runs": sessions.get_session_run_previews}
    for kind in KINDS:
        extra[operation_ids(kind).cancel_run] = partial(runs.continue_run, kind)
    adapted += [
        AdaptedOperation(by_name[operation], extra[operation], route=route)
        for operation, route in AGENTOS_ROUTES.items()
    ]
    return adapted


def _list_endpoints(
    system: SystemEndpoints, sessions: SessionEndpoints
) -> dict[str, Endpoint | None]:
    return {
        "get_health": system.get_health,
        "get_info": system.get_info,
        "get_config": system.get_config,
        "create_service_account": system.create_service_account,
        "list_service_accounts": system.list_service_accounts,
        "update_memory": None,
        "get_sessions": sessions.get_sessions,
        "create_session": None,
        "get_session_by_id": sessions.get_session_by_id,
        "update_session": None,
        "rename_session": None,
        "delete_session": sessions.delete_session,
        "delete_sessions": sessions.delete_sessions,
        "get_session_runs": sessions.get_session_runs,
        "get_session_run": sessions.get_session_run,
    }


def _list_run_endpoints(
    kind: ComponentKind, runs: RunEndpoints, system: SystemEndpoints
) -> dict[str, Endpoint]:
    ids = operation_ids(kind)
    return {
        ids.list: partial(system.list_components, kind),
        ids.get: partial(system.get_component, kind),
        ids.create_run: partial(runs.create_run, kind),
        ids.list_runs: partial(runs.list_runs, kind),
        ids.get_run: partial(runs.get_run, kind),
        ids.cancel_run: partial(runs.cancel_run, kind),
        ids.resume_run: partial(runs.resume_run, kind),
    }
