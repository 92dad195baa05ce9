"""What runs of a component need, built once, and the models that components share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentctl.config.settings import Agent, Team
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.actions import Action, ToolAction
from agentctl.runtime.leadership import build_leader_instructions, build_member_actions
from agentctl.runtime.provider import ModelConnection, connect_model

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from agentctl.config import settings as config
    from agentctl.records.kinds import ComponentKind
    from agentctl.runtime.catalog import Catalog, Component

__all__ = ["Runner", "Runners"]

_REQUIRE_TOOL_CALL: ModelSettings = {"tool_choice": "required"}
"""Mode route: the first thing that a leader does is to pick a member."""


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs of one agent, or of one team's leader, need.

    Attributes:
        model: what answers.
        parameters: the tools that the model is told of.
        first_settings: of the first call of the model in a run.
        actions: what the model may call, by name.
        system: the instructions that the model gets; `""` for none.
        routes: whether a member answers in the place of the leader (mode route).
        secret: the key that the model's provider is sent, which it may repeat; empty: none.
    """

    model: Model
    parameters: ModelRequestParameters
    first_settings: ModelSettings | None
    actions: Mapping[str, Action]
    system: str
    routes: bool
    secret: str = field(repr=False)


class Runners:
    """The runners of a catalog. Belongs to one event loop: the connections do."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._connections: dict[str, ModelConnection] = {}
        self._runners: dict[tuple[ComponentKind, str], Runner] = {}

    def runner(self, component: Component) -> Runner:
        """The runner of an agent or of a team's leader.

        Raises:
            RunFailure: the model's API key is not set.
            InvalidConfiguration: a tool or the provider cannot be used.
        """
        key = (component.kind, component.id)
        if key not in self._runners:
            self._runners[key] = self._build_runner(component)
        return self._runners[key]

    async def close(self) -> None:
        """Close the connections to the providers."""
        connections, self._connections = self._connections, {}
        self._runners.clear()
        for connection in connections.values():
            await connection.close()

    def _build_runner(self, component: Component) -> Runner:
        from pydantic_ai.models import ModelRequestParameters

        from agentctl.runtime.conversion import build_tool_definition

        system, actions = self._build_actions(component)
        routes = isinstance(component.spec, Team) and component.spec.mode == "route"
        connection = self._connection(self._catalog.model(component))
        return Runner(
            model=connection.model,
            parameters=ModelRequestParameters(
                function_tools=[
                    build_tool_definition(action.record()) for action in actions.values()
                ]
            ),
            first_settings=_REQUIRE_TOOL_CALL if routes else None,
            actions=actions,
            system=system,
            routes=routes,
            secret=connection.secret,
        )

    def _build_actions(self, component: Component) -> tuple[str, dict[str, Action]]:
        """Instructions and actions."""
        tools: list[Action] = [ToolAction(tool) for tool in self._catalog.tools(component)]
        if component.kind == "team":
            members = self._catalog.members(component)
            system = build_leader_instructions(component, members)
            tools = [*build_member_actions(component, members), *tools]
        else:
            assert isinstance(component.spec, Agent)
            system = component.spec.instructions
        actions = {action.record()["name"]: action for action in tools}
        if len(actions) < len(tools):
            raise InvalidConfiguration(
                f"The {component.kind} {component.id} has a tool named like its delegation tool"
            )
        return system, actions

    def _connection(self, model: config.Model) -> ModelConnection:
        if model.id not in self._connections:
            limits = self._catalog.settings.limits
            self._connections[model.id] = connect_model(model, limits.run_bytes)
        return self._connections[model.id]
