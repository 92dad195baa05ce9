"""The prepared model, tools and instructions of a component, shared by all of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentctl.config.settings import Agent, Team
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.actions import ToolAction
from agentctl.runtime.leadership import build_leader_instructions, build_member_actions

if TYPE_CHECKING:
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

    from agentctl.runtime.component import Component
    from agentctl.runtime.conversation import Action
    from agentctl.runtime.provider import ModelConnection
    from agentctl.runtime.tools import Tool

_REQUIRE_TOOL_CALL: ModelSettings = {"tool_choice": "required"}
"""Settings for the first call of a leader in mode route: it has to select a member."""


@dataclass(frozen=True, slots=True)
class ConfiguredRunner:
    """The model, tools and instructions of an agent or of a team's leader.

    Attributes:
        parameters: the tools that the model receives.
        first_settings: settings of the first model call of a run.
        actions: the tools that the model may call, by name.
        system: instructions of the model; `""` for none.
        routes: True in mode route: a member answers in place of the leader.
        secret: API key that the provider receives and may repeat in errors; `""` for none.
    """

    model: Model
    parameters: ModelRequestParameters
    first_settings: ModelSettings | None
    actions: Mapping[str, Action]
    system: str
    routes: bool
    secret: str = field(repr=False)


def build_actions(
    component: Component, tools: Iterable[Tool], members: Mapping[str, Component]
) -> tuple[str, dict[str, Action]]:
    """Return the instructions and the actions of an agent or of a team's leader.

    Args:
        members: the members of a team by id; empty for an agent.

    Raises:
        InvalidConfiguration: a tool has the name of the team's delegation tool.
    """
    spec = component.spec
    assert isinstance(spec, Agent | Team)
    instructions = spec.instructions
    all_actions: list[Action] = [ToolAction(tool) for tool in tools]
    if isinstance(spec, Team):
        instructions = build_leader_instructions(component, members)
        all_actions = [*build_member_actions(component, members), *all_actions]
    actions = {action.record()["name"]: action for action in all_actions}
    if len(actions) < len(all_actions):
        raise InvalidConfiguration(
            f"The {component.kind} {component.id} has a tool named like its delegation tool"
        )
    return instructions, actions


def build_runner(
    component: Component,
    connection: ModelConnection,
    instructions: str,
    actions: Mapping[str, Action],
) -> ConfiguredRunner:
    """Build the runner of an agent or of a team's leader."""
    from pydantic_ai.models import ModelRequestParameters

    from agentctl.runtime.conversion import build_tool_definition

    routes = isinstance(component.spec, Team) and component.spec.mode == "route"
    return ConfiguredRunner(
        model=connection.model,
        parameters=ModelRequestParameters(
            function_tools=[build_tool_definition(action.record()) for action in actions.values()]
        ),
        first_settings=_REQUIRE_TOOL_CALL if routes else None,
        actions=actions,
        system=instructions,
        routes=routes,
        secret=connection.secret,
    )
