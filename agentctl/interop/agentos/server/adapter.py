"""The operations whose requests or responses differ in the interface of AgentOS."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from agentctl.interop.agentos.routes import AGENTOS_ROUTES
from agentctl.interop.agentos.server.bodies import BuiltBodies
from agentctl.interop.agentos.server.directory import Directory
from agentctl.interop.agentos.server.operation import AdaptedOperation
from agentctl.interop.agentos.server.run_endpoints import RunEndpoints
from agentctl.interop.agentos.server.session_endpoints import SessionEndpoints
from agentctl.interop.agentos.server.system_endpoints import BODIES, SystemEndpoints
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.server.routing import Endpoint, Operation

if TYPE_CHECKING:
    from agentctl.config.settings import Settings

_SAME_ENDPOINT = ("create_session", "update_session", "rename_session", "update_memory")
"""Operations of which only the errors differ, or the body, too."""


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
    endpoints: dict[str, Endpoint | None] = dict.fromkeys(_SAME_ENDPOINT)
    for owner in (system, sessions):  # their methods have the names of operations
        endpoints |= {name: getattr(owner, name) for name in by_name if hasattr(owner, name)}
    endpoints["get_session_runs"] = partial(sessions.list_runs, False)
    extra: dict[str, Endpoint] = {"get_session_runs": partial(sessions.list_runs, True)}
    for kind in KINDS:
        endpoints |= _list_run_endpoints(kind, runs, system)
        extra[operation_ids(kind).cancel_run] = partial(runs.continue_run, kind)
    adapted: list[Operation] = [
        AdaptedOperation(native, endpoints[name], BODIES.get(name)) if name in endpoints else native
        for name, native in by_name.items()
    ]
    adapted += [
        AdaptedOperation(by_name[operation], extra[operation], route=route)
        for operation, route in AGENTOS_ROUTES.items()
    ]
    return adapted


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
