"""What is hosted: the components of a configuration, and how the listings show them.

Nothing here imports pydantic_ai. A tool's module is imported when a record or a run needs it, so a
listing of components without tools needs no pydantic either.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.config.settings import Agent, Team, Workflow
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.delegation import delegation_tools
from agentctl.runtime.failures import ExecutionError

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.records.components import (
        AgentRecord,
        MemberRecord,
        ModelRecord,
        StepRecord,
        TeamRecord,
        ToolRecord,
        WorkflowRecord,
    )
    from agentctl.records.kinds import ComponentKind
    from agentctl.runtime.runners import Runners
    from agentctl.runtime.tools import Tool

__all__ = ["SESSION_TABLE", "Catalog", "Component"]

SESSION_TABLE = "sessions"
"""The only name of a session table; what a caller names never reaches SQL (contract.md 4)."""


@dataclass(frozen=True, slots=True)
class Component:
    """One agent, team or workflow.

    Attributes:
        database: id of the database that keeps its sessions.
        on_busy: whether a session takes a second run while one is under way.
        history_runs: how many earlier runs of the session go to the model with a message.
        spec: its table of the configuration.
    """

    kind: ComponentKind
    id: str
    name: str
    description: str
    database: str
    on_busy: config.OnBusy
    history_runs: int
    spec: Agent | Team | Workflow


class Catalog:
    """The components of one configuration. Made once a process; `close` it at the end."""

    def __init__(self, settings: config.Settings, components: Iterable[Component]) -> None:
        self.settings = settings
        self._models = {model.id: model for model in settings.models}
        self._components: dict[ComponentKind, dict[str, Component]] = {
            "agent": {},
            "team": {},
            "workflow": {},
        }
        for component in components:
            self._components[component.kind][component.id] = component
        self._tools: dict[tuple[ComponentKind, str], tuple[Tool, ...]] = {}
        self._runners: Runners | None = None

    @classmethod
    def from_settings(cls, settings: config.Settings) -> Catalog:
        """The catalog of a configuration that was loaded, references checked."""
        default = settings.databases[0].id if settings.databases else ""
        specs: list[tuple[ComponentKind, Agent | Team | Workflow]] = [
            *(("agent", agent) for agent in settings.agents),
            *(("team", team) for team in settings.teams),
            *(("workflow", workflow) for workflow in settings.workflows),
        ]
        return cls(settings, (_build_component(kind, spec, default) for kind, spec in specs))

    def components(self, kind: ComponentKind) -> dict[str, Component]:
        """All of a kind by id, in the order of the configuration."""
        return dict(self._components[kind])

    def get(self, kind: ComponentKind, component_id: str) -> Component | None:
        """The component with this id, or None."""
        return self._components[kind].get(component_id)

    def members(self, team: Component) -> dict[str, Component]:
        """The members of a team by id, in the order of the configuration."""
        assert isinstance(team.spec, Team)
        return {member: self._require_member(team, member) for member in team.spec.members}

    def steps(self, workflow: Component) -> list[tuple[str, Component]]:
        """The steps of a workflow in order: name, and what does the work."""
        assert isinstance(workflow.spec, Workflow)
        return [
            (
                step.name,
                self._known("agent", step.agent, workflow)
                if step.agent
                else self._known("team", step.team, workflow),
            )
            for step in workflow.spec.steps
        ]

    def model(self, component: Component) -> config.Model:
        """The configured model of an agent or of a team's leader."""
        assert not isinstance(component.spec, Workflow)
        model = self._models.get(component.spec.model)
        if model is None:
            raise _unknown_reference_error(component, "model", component.spec.model)
        return model

    def tools(self, component: Component) -> tuple[Tool, ...]:
        """The configured tools of an agent or of a team's leader; imports their modules.

        Raises:
            InvalidConfiguration: a tool cannot be used; names the component and the tool.
        """
        assert not isinstance(component.spec, Workflow)
        if not component.spec.tools:
            return ()
        key = (component.kind, component.id)
        if key not in self._tools:
            from agentctl.runtime.tools import load_tools

            folder = self.settings.path.parent if self.settings.path is not None else None
            owner = f"{component.kind} {component.id}"
            self._tools[key] = load_tools(owner, component.spec.tools, folder)
        return self._tools[key]

    @property
    def runners(self) -> Runners:
        """The models and agents that were built for this catalog's runs."""
        if self._runners is None:
            from agentctl.runtime.runners import Runners

            self._runners = Runners(self)
        return self._runners

    def prepare(self) -> None:
        """Load what runs need, so that the first one waits for no import. For a server's start.

        Models without their API key are left out: runs say so.

        Raises:
            InvalidConfiguration: a tool or a model cannot be used; names the component.
        """
        from agentctl.runtime import agent, team, workflow  # noqa: F401 - only to be loaded

        for component in (*self.components("agent").values(), *self.components("team").values()):
            with suppress(ExecutionError):
                self.runners.runner(component)

    async def close(self) -> None:
        """Close the connections to model providers."""
        runners, self._runners = self._runners, None
        if runners is not None:
            await runners.close()

    def record(self, component: Component) -> AgentRecord | TeamRecord | WorkflowRecord:
        """The component as its listing shows it (contract.md 3)."""
        if component.kind == "agent":
            return self._agent_record(component)
        if component.kind == "team":
            return self._team_record(component)
        return self._workflow_record(component)

    def data(self, component: Component) -> dict[str, Any]:
        """What a session keeps of its component: `agent_data`, `team_data`, `workflow_data`."""
        named = {"name": component.name, f"{component.kind}_id": component.id}
        if component.kind == "workflow":
            return {**named, "steps": self._step_records(component)}
        return {**named, "model": self._model_record(component)}

    def _agent_record(self, agent: Component) -> AgentRecord:
        return {
            "agent_id": agent.id,
            "id": agent.id,
            "name": agent.name,
            "description": agent.description,
            "model": self._model_record(agent),
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
            "enable_agentic_context": False,
            "memory": None,
            "async_mode": True,
            "session_table": SESSION_TABLE,
            "memory_table": None,
            "db_id": team.database,
        }

    def _member_record(self, member: Component) -> MemberRecord | TeamRecord:
        if member.kind == "team":
            return self._team_record(member)
        return {
            "agent_id": member.id,
            "name": member.name,
            "model": self._model_record(member),
            "memory": None,
            "session_table": SESSION_TABLE,
            "memory_table": None,
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

    def _model_record(self, component: Component) -> ModelRecord:
        model = self.model(component)
        return {"name": model.id, "model": model.model, "provider": model.provider}

    def _tool_records(self, component: Component) -> list[ToolRecord]:
        return [tool.record() for tool in self.tools(component)]

    def _require_member(self, team: Component, member_id: str) -> Component:
        """An agent by that id, else a team."""
        found = self.get("agent", member_id) or self.get("team", member_id)
        if found is None:
            raise _unknown_reference_error(team, "member", member_id)
        return found

    def _known(self, kind: ComponentKind, component_id: str, owner: Component) -> Component:
        found = self.get(kind, component_id)
        if found is None:
            raise _unknown_reference_error(owner, kind, component_id)
        return found


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
