"""What a request names: not found comes before what is wrong with a value (contract.md 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.operations import Where
from agentctl.records.kinds import KINDS
from agentctl.server.door import Call

__all__ = ["require_named"]


async def require_named(call: Call, values: Mapping[str, Any]) -> None:
    """Look for the database, component, session and run that a refused request names.

    Args:
        call: of an operation that the policy allows.
        values: its parameters; a default stands for what could not be read.

    Raises:
        NotFound: one of them is not there for the caller.
    """
    path = call.scope["path_params"]
    where = Where(*(values.get(name) for name in ("type", "user_id", "db_id", "table")))
    if "session_id" in path:
        await _require_session(call, path, where)
    else:
        call.operations.database_of(where)
        await _require_component(call, path, values.get("session_id"))


async def _require_session(call: Call, path: Mapping[str, str], where: Where) -> None:
    if "run_id" in path:
        await call.operations.get_session_run(path["session_id"], path["run_id"], where)
    else:
        await call.operations.require_session(path["session_id"], where)


async def _require_component(call: Call, path: Mapping[str, str], session_id: str | None) -> None:
    for kind, names in KINDS.items():
        if names.id_field not in path:
            continue
        component_id = path[names.id_field]
        call.operations.component(kind, component_id)
        if "run_id" in path:
            await call.operations.require_run(kind, component_id, path["run_id"], session_id)
