"""The records of components (docs/contract.md "Component records"), and their part of a session.

A record without tools needs the configuration only. The module of a tool is imported when its
record is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentctl.records.components import (
    AgentRecord,
    ComponentMemory,
    MemberRecord,
    ModelRecord,
    StepRecord,
    TeamRecord,
    ToolRecord,
    WorkflowRecord,
)
from agentctl.records.sessions import SESSION_TABLE
from agentctl.runtime.component import Component
from agentctl.runtime.components.delegations import delegation_tools

if TYPE_CHECKING:
    from agentctl.runtime.components.catalog import Catalog

MEMORY_TABLE = "memories"
"""The only name of a table of memories."""


def build_record(
    catalog: Catalog, component: Component
) -> AgentRecord | TeamRecord | WorkflowRecord:
    """Return the record of a component (docs/contract.md "Component records")."""
    if component.kind == "team":
        return _team_record(catalog, component)

    if component.kind == "workflow":
        return {
            "workflow_id": component.id,
            "id": component.id,
            "name": component.name,
            "description": component.description,
            "steps": _step_records(catalog, component),
            "db_id": component.database,
        }

    return {
        "agent_id": component.id,
        "id": component.id,
        "name": component.name,
        "description": component.description,
        "model": _agent_model(catalog, component),
        "tools": _tool_records(catalog, component),
        "session_table": SESSION_TABLE,
        "db_id": component.database,
    }


def build_session_data(catalog: Catalog, component: Component) -> dict[str, Any]:
    """Return the `agent_data`, `team_data` or `workflow_data` of a session."""
    identity = {"name": component.name, f"{component.kind}_id": component.id}

    if component.kind == "workflow":
        return {**identity, "steps": _step_records(catalog, component)}
    return {**identity, "model": _agent_model(catalog, component)}


def dump_session_data(catalog: Catalog, component: Component) -> str:
    """Return `build_session_data` as JSON text, built once in a process."""
    session_data = catalog.session_data
    data_key = (component.id, component.key)

    if data_key not in session_data:
        session_data[data_key] = orjson.dumps(build_session_data(catalog, component)).decode()
    return session_data[data_key]


def _team_record(catalog: Catalog, team: Component) -> TeamRecord:
    spec = team.team
    return {
        "team_id": team.id,
        "id": team.id,
        "name": team.name,
        "description": team.description,
        "mode": spec.mode,
        "model": _model_record(catalog, team),
        "tools": [*delegation_tools(spec), *_tool_records(catalog, team)],
        "members": [_member_record(catalog, member) for member in catalog.members(team).values()],
        "enable_agentic_context": spec.enable_agentic_context,
        "knowledge": None,
        "memory": _memory_record(catalog, team),
        "async_mode": True,
        "session_table": SESSION_TABLE,
        "memory_table": _memory_table(team),
        "db_id": team.database,
    }


def _member_record(catalog: Catalog, member: Component) -> MemberRecord | TeamRecord:
    if member.kind == "team":
        return _team_record(catalog, member)

    return {
        "agent_id": member.id,
        "name": member.name,
        "model": _agent_model(catalog, member),
        "memory": _member_memory(catalog, member),
        "session_table": SESSION_TABLE,
        "memory_table": _memory_table(member),
    }


def _step_records(catalog: Catalog, workflow: Component) -> list[StepRecord]:
    return [
        {"name": name, "agent_id": worker.id}
        if worker.kind == "agent"
        else {"name": name, "team_id": worker.id}
        for name, worker in catalog.steps(workflow)
    ]


def _agent_model(catalog: Catalog, agent: Component) -> ModelRecord | None:
    return None if catalog.is_hosted(agent) else _model_record(catalog, agent)


def _model_record(catalog: Catalog, component: Component) -> ModelRecord:
    model = catalog.model(component)
    return {"name": model.id, "model": model.model, "provider": model.provider}


def list_own_tools(catalog: Catalog, component: Component) -> list[ToolRecord]:
    """Return the tools of an agent or of a team's leader, without delegations and MCP servers."""
    spec = component.worker
    records = [tool.record() for tool in catalog.tools(component)]
    records += [action.record() for action in catalog.external_tools(component)]
    if spec.memory.mode == "tool":
        from agentctl.runtime.tools.memories import build_memory_actions

        records += [action.record() for action in build_memory_actions(spec.memory)]
    return records


def _tool_records(catalog: Catalog, component: Component) -> list[ToolRecord]:
    return [*list_own_tools(catalog, component), *catalog.mcp.records(component.worker.tools)]


def _memory_record(catalog: Catalog, component: Component) -> ComponentMemory | None:
    member = _member_memory(catalog, component)
    return member and {**member, "app_url": catalog.settings.server.address}


def _member_memory(catalog: Catalog, component: Component) -> ComponentMemory | None:
    if _memory_table(component) is None:
        return None
    return {"app_name": catalog.settings.server.name, "model": _model_record(catalog, component)}


def _memory_table(component: Component) -> str | None:
    return None if component.worker.memory.mode == "off" else MEMORY_TABLE
