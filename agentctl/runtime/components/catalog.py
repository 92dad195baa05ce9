"""The catalog: the configured components and their records.

This module does not import pydantic_ai. The module of a tool is imported when a record or a run
needs it, so a list of components without tools does not need pydantic either.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentctl.config.mcp_servers import parse_mcp_reference
from agentctl.config.settings import Agent, Team, Workflow
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.component import Component
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.mcp.servers import McpServers
from agentctl.runtime.models.attempts import ModelCounters
from agentctl.runtime.tools.delegation import delegation_tools
from agentctl.runtime.unstopped import abandon_task

if TYPE_CHECKING:
    from pathlib import Path

    from agentctl.config import settings as config
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
    from agentctl.records.kinds import ComponentKind
    from agentctl.runtime.components.configured import ConfiguredRunner
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.models.calls import ModelConnection
    from agentctl.runtime.models.structured_output import OutputSchema
    from agentctl.runtime.runners.base import Runner
    from agentctl.runtime.tools.functions import Tool

MEMORY_TABLE = "memories"
SESSION_TABLE = "sessions"
"""The only name of a session table. Names from requests never reach SQL (docs/contract.md
"Sessions")."""


CLOSE_SECONDS = 5.0
"""Maximum time that the end of a process waits for the runner of an agent."""

_log = logging.getLogger("agentctl.runtime")


class Catalog:
    """The components of one configuration, with the models and tools that their runs share.

    A process creates one and closes it at the end. The model connections belong to one event loop.

    Attributes:
        model_counters: counts of further attempts of model calls.
        mcp: the MCP servers.
    """

    def __init__(self, settings: config.Settings, components: Iterable[Component]) -> None:
        self.settings = settings
        self.mcp = McpServers(settings)
        self._models = {model.id: model for model in settings.models}
        self._components: dict[ComponentKind, dict[str, Component]] = {
            "agent": {},
            "team": {},
            "workflow": {},
        }
        for component in components:
            self._components[component.kind][component.id] = component
        self._tools: dict[tuple[ComponentKind, str], tuple[Tool, ...]] = {}
        self._connections: dict[str, ModelConnection] = {}
        self.model_counters = ModelCounters(self._models)
        self._runners: dict[tuple[ComponentKind, str], ConfiguredRunner] = {}
        self._outputs: dict[str, OutputSchema] = {}
        self._hosted: dict[str, Runner] = {}
        self._openings: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def from_settings(cls, settings: config.Settings) -> Catalog:
        """Build the catalog of a loaded configuration, whose references were checked."""
        default = settings.databases[0].id if settings.databases else ""
        specs: list[tuple[ComponentKind, Agent | Team | Workflow]] = [
            *(("agent", agent) for agent in settings.agents),
            *(("team", team) for team in settings.teams),
            *(("workflow", workflow) for workflow in settings.workflows),
        ]
        return cls(settings, (_build_component(kind, spec, default) for kind, spec in specs))

    def components(self, kind: ComponentKind) -> dict[str, Component]:
        """Return the components of a kind by id, in the order of the configuration."""
        return dict(self._components[kind])

    def get(self, kind: ComponentKind, component_id: str) -> Component | None:
        """Return the component with this id, or None."""
        return self._components[kind].get(component_id)

    def members(self, team: Component) -> dict[str, Component]:
        """Return the members of a team by id, in the order of the configuration."""
        assert isinstance(team.spec, Team)
        members: dict[str, Component] = {}
        for member_id in team.spec.members:
            # Agents have precedence over teams of the same id.
            member = self.get("agent", member_id) or self.get("team", member_id)
            if member is None:
                raise _unknown_reference_error(team, "member", member_id)
            members[member_id] = member
        return members

    def steps(self, workflow: Component) -> list[tuple[str, Component]]:
        """Return the steps of a workflow in order: the name, and the agent or team."""
        assert isinstance(workflow.spec, Workflow)
        steps: list[tuple[str, Component]] = []
        for step in workflow.spec.steps:
            kind: ComponentKind = "agent" if step.agent else "team"
            component_id = step.agent or step.team
            component = self.get(kind, component_id)
            if component is None:
                raise _unknown_reference_error(workflow, kind, component_id)
            steps.append((step.name, component))
        return steps

    def model(self, component: Component) -> config.Model:
        """Return the configured model of an agent or of a team's leader."""
        assert not isinstance(component.spec, Workflow)
        model = self._models.get(component.spec.model)
        if model is None:
            raise _unknown_reference_error(component, "model", component.spec.model)
        return model

    def tools(self, component: Component) -> tuple[Tool, ...]:
        """Return the functions that are tools of an agent or of a team's leader; import them.

        Raises:
            InvalidConfiguration: a tool is not usable; names the component and the tool.
        """
        assert not isinstance(component.spec, Workflow)
        functions = tuple(
            each for each in component.spec.tools if parse_mcp_reference(each) is None
        )
        if not functions:
            return ()
        key = (component.kind, component.id)
        if key not in self._tools:
            from agentctl.runtime.tools.functions import load_tools

            owner = f"{component.kind} {component.id}"
            self._tools[key] = load_tools(owner, functions, self._folder)
        return self._tools[key]

    @property
    def _folder(self) -> Path | None:
        return self.settings.path.parent if self.settings.path is not None else None

    def is_hosted(self, component: Component) -> bool:
        """Return True for an agent in code: an object executes it, not a configured model."""
        return isinstance(component.spec, Agent) and bool(component.spec.object)

    def hosted_runner(self, agent: Component) -> Runner:
        """Return the runner of an agent in code; imports its module.

        Raises:
            InvalidConfiguration: the object is not usable; names the agent and the object.
        """
        assert isinstance(agent.spec, Agent)
        if agent.id not in self._hosted:
            from agentctl.runtime.runners.loading import load_runner

            owner = f"agent {agent.id}"
            self._hosted[agent.id] = load_runner(
                owner, agent.spec.object, self._folder, agent.spec.deps
            )
        return self._hosted[agent.id]

    def native_kind(self, component: Component) -> str | None:
        """Return the kind of runner of an agent in code, None for other components.

        Also None if the object is not usable: the run itself reports that.
        """
        if not self.is_hosted(component):
            return None
        try:
            return self.hosted_runner(component).kind
        except InvalidConfiguration:
            return None

    def load_code(self) -> None:
        """Import the modules of all tools and of all agents in code.

        Raises:
            InvalidConfiguration: a tool or an object is not usable; names the component.
        """
        for kind in ("agent", "team"):
            for component in self._components[kind].values():
                if self.is_hosted(component):
                    self.hosted_runner(component)
                else:
                    self.tools(component)

    async def open_runner(self, agent: Component) -> Runner:
        """Return the runner of an agent in code, opened once. Runs that arrive meanwhile wait.

        Raises:
            InvalidConfiguration: as for `hosted_runner`.
            Exception: opening failed; the next call tries again.
        """
        runner = self.hosted_runner(agent)
        opening = self._openings.get(agent.id)
        if opening is None:
            opening = self._openings[agent.id] = asyncio.create_task(_contain(runner.open()))
        if not opening.done():
            # Shielded: the cancel of one run must not disturb the others.
            await asyncio.wait({opening})
        if opening.cancelled() or opening.exception() is not None:
            if self._openings.get(agent.id) is opening:
                del self._openings[agent.id]
            await opening
        return runner

    def runner(self, component: Component) -> ConfiguredRunner:
        """Return the prepared model, tools and instructions of an agent or of a team's leader.

        Raises:
            ExecutionError: the API key of the model is not set.
            InvalidConfiguration: a tool or the model is not usable.
        """
        key = (component.kind, component.id)
        if key not in self._runners:
            from agentctl.runtime.components.configured import build_actions, build_runner

            tools = self.tools(component)
            members = self.members(component) if component.kind == "team" else {}
            instructions, actions = build_actions(component, tools, members)
            model = self.model(component)
            connections = [(model, self._connect(model)), *self._connect_fallbacks(model)]
            self._runners[key] = build_runner(
                component, connections, instructions, actions, self.model_counters
            )
        return self._runners[key]

    def output_schema(self, component: Component, requested: str | None) -> OutputSchema | None:
        """Return the schema of the result of a run; None for text.

        Args:
            requested: the JSON Schema of the request, which was checked; None for none.

        Raises:
            InvalidConfiguration: the pydantic model of the agent is not usable.
        """
        from agentctl.runtime.models.structured_output import RequestSchema, load_output_model

        if requested is not None:
            return RequestSchema(json.loads(requested))
        if not isinstance(component.spec, Agent) or not component.spec.output:
            return None
        if component.id not in self._outputs:
            self._outputs[component.id] = load_output_model(
                f"agent {component.id}", component.spec.output, self._folder
            )
        return self._outputs[component.id]

    def takes_output_schema(self, component: Component) -> bool:
        """Return True if a request may have a schema: the model of the component answers."""
        if isinstance(component.spec, Team):
            return component.spec.mode != "route"
        return component.kind == "agent" and not self.is_hosted(component)

    def _connect_fallbacks(self, model: config.Model) -> list[tuple[config.Model, ModelConnection]]:
        found: dict[str, tuple[config.Model, ModelConnection]] = {}
        for fallback in (self._models[name] for name in model.fallbacks):
            with suppress(ExecutionError):
                found.setdefault(fallback.id, (fallback, self._connect(fallback)))
            for entry in self._connect_fallbacks(fallback):
                found.setdefault(entry[0].id, entry)
        return list(found.values())

    async def prepare_runner(
        self, component: Component, context: RunEnvironment
    ) -> ConfiguredRunner:
        """Return the runner of a component with the tools of its MCP servers for one run.

        Raises:
            ExecutionError: the API key of the model is not set.
            InvalidConfiguration: a tool or the model is not usable.
        """
        runner = self.runner(component)
        assert not isinstance(component.spec, Workflow)
        if all(parse_mcp_reference(each) is None for each in component.spec.tools):
            return runner
        from agentctl.runtime.components.configured import add_actions
        from agentctl.runtime.mcp.values import get_user

        user, taken = get_user(context), runner.actions
        actions = await self.mcp.build_actions(component.spec.tools, user, taken)
        return add_actions(runner, actions)

    def _connect(self, model: config.Model) -> ModelConnection:
        if model.id not in self._connections:
            from agentctl.runtime.models.providers import connect_model

            self._connections[model.id] = connect_model(model, self.settings.limits.run_bytes)
        return self._connections[model.id]

    async def close(self) -> None:
        """Close the connections to models and MCP servers, and the runners of agents in code."""
        await self.mcp.close()
        connections, self._connections = self._connections, {}
        hosted, self._hosted = self._hosted, {}
        self._runners.clear()
        for connection in connections.values():
            await connection.close()
        for opening in self._openings.values():
            opening.cancel()
        for agent_id, runner in hosted.items():
            await _close_runner(agent_id, runner)

    def record(self, component: Component) -> AgentRecord | TeamRecord | WorkflowRecord:
        """Return the record of a component (docs/contract.md "Component records")."""
        if component.kind == "agent":
            return self._agent_record(component)
        if component.kind == "team":
            return self._team_record(component)
        return self._workflow_record(component)

    def data(self, component: Component) -> dict[str, Any]:
        """Return the `agent_data`, `team_data` or `workflow_data` of a session."""
        named = {"name": component.name, f"{component.kind}_id": component.id}
        if component.kind == "workflow":
            return {**named, "steps": self._step_records(component)}
        return {**named, "model": self._agent_model(component)}

    def _agent_record(self, agent: Component) -> AgentRecord:
        return {
            "agent_id": agent.id,
            "id": agent.id,
            "name": agent.name,
            "description": agent.description,
            "model": self._agent_model(agent),
            "tools": self._tool_records(agent),
            "session_table": SESSION_TABLE,
            "db_id": agent.database,
        }

    def _team_record(self, team: Component) -> TeamRecord:
        assert isinstance(team.spec, Team)
        return {
            "team_id": team.id,
            "id": team.id,
            "name": team.name,
            "description": team.description,
            "mode": team.spec.mode,
            "model": self._model_record(team),
            "tools": [*delegation_tools(team.spec), *self._tool_records(team)],
            "members": [self._member_record(member) for member in self.members(team).values()],
            "enable_agentic_context": team.spec.enable_agentic_context,
            "memory": self._memory_record(team),
            "async_mode": True,
            "session_table": SESSION_TABLE,
            "memory_table": _memory_table(team),
            "db_id": team.database,
        }

    def _member_record(self, member: Component) -> MemberRecord | TeamRecord:
        if member.kind == "team":
            return self._team_record(member)
        return {
            "agent_id": member.id,
            "name": member.name,
            "model": self._agent_model(member),
            "memory": self._member_memory(member),
            "session_table": SESSION_TABLE,
            "memory_table": _memory_table(member),
        }

    def _workflow_record(self, workflow: Component) -> WorkflowRecord:
        return {
            "workflow_id": workflow.id,
            "id": workflow.id,
            "name": workflow.name,
            "description": workflow.description,
            "steps": self._step_records(workflow),
            "db_id": workflow.database,
        }

    def _step_records(self, workflow: Component) -> list[StepRecord]:
        return [
            {"name": name, "agent_id": worker.id}
            if worker.kind == "agent"
            else {"name": name, "team_id": worker.id}
            for name, worker in self.steps(workflow)
        ]

    def _agent_model(self, agent: Component) -> ModelRecord | None:
        return None if self.is_hosted(agent) else self._model_record(agent)

    def _model_record(self, component: Component) -> ModelRecord:
        model = self.model(component)
        return {"name": model.id, "model": model.model, "provider": model.provider}

    def _tool_records(self, component: Component) -> list[ToolRecord]:
        assert isinstance(component.spec, Agent | Team)
        records = [tool.record() for tool in self.tools(component)]
        if component.spec.memory.mode == "tool":
            from agentctl.runtime.tools.memories import build_memory_actions

            records += [action.record() for action in build_memory_actions(component.spec.memory)]
        return [*records, *self.mcp.records(component.spec.tools)]

    def _memory_record(self, component: Component) -> ComponentMemory | None:
        member = self._member_memory(component)
        return member and {**member, "app_url": _server_url(self.settings.server)}

    def _member_memory(self, component: Component) -> ComponentMemory | None:
        if _memory_table(component) is None:
            return None
        return {"app_name": self.settings.server.name, "model": self._model_record(component)}


def _memory_table(component: Component) -> str | None:
    assert isinstance(component.spec, Agent | Team)
    return None if component.spec.memory.mode == "off" else MEMORY_TABLE


def _server_url(server: config.Server) -> str:
    if server.url:
        return server.url
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}"


async def _contain(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent raised {type(error).__name__}") from error


async def _close_runner(agent_id: str, runner: Runner) -> None:
    """Close a runner. The code of users must not keep a process from its end."""
    closing = asyncio.create_task(_contain(runner.close()))
    await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    if not closing.done():
        _log.warning("agent %s: it could not be closed within %g seconds", agent_id, CLOSE_SECONDS)
        abandon_task(closing)
    elif not closing.cancelled() and closing.exception() is not None:
        _log.warning("agent %s: it could not be closed", agent_id, exc_info=closing.exception())


def _build_component(
    kind: ComponentKind, spec: Agent | Team | Workflow, default_database: str
) -> Component:
    return Component(
        kind=kind,
        id=spec.id,
        name=spec.name or spec.id,
        description=spec.description,
        database=spec.database or default_database,
        on_busy=spec.on_busy,
        history_runs=0 if isinstance(spec, Workflow) else spec.history_runs,
        spec=spec,
    )


def _unknown_reference_error(owner: Component, what: str, missing: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"The {owner.kind} {owner.id} names an unknown {what} {missing!r}")
