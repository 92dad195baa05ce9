"""The prepared model, tools and instructions of a component, shared by all of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from agentctl.config.mcp_servers import parse_mcp_reference
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.components.leadership import build_leader_instructions, build_member_actions
from agentctl.runtime.tools.call_rules import ToolAction
from agentctl.runtime.tools.memories import build_memory_actions
from agentctl.runtime.transcript.repeated_calls import RepeatLimits, build_repeat_limits

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.component import Component
    from agentctl.runtime.models.attempts import ModelCounters
    from agentctl.runtime.models.calls import ModelConnection, PreparedModel
    from agentctl.runtime.pauses import InputSchema
    from agentctl.runtime.tools.external import ExternalAction
    from agentctl.runtime.tools.functions import Tool
    from agentctl.runtime.transcript.conversation import Action, CallRule


@dataclass(frozen=True, slots=True)
class ConfiguredRunner:
    """The model, tools and instructions of an agent or of a team's leader."""

    models: Sequence[PreparedModel]
    """The model of the component and its fallbacks, in order."""

    counters: ModelCounters
    """Counts further attempts of model calls."""

    tools: Sequence[ToolRecord]

    actions: Mapping[str, Action]
    """The tools that the model may call, by name."""

    rules: Mapping[str, CallRule]
    """The rules of the tools whose calls wait for a person, by name."""

    references: Sequence[str]
    """The tools of MCP servers that it names, which each run looks up."""

    system: str
    """Instructions of the model; `""` without instructions."""

    routes: bool
    """True in mode route: a member answers in place of the leader."""

    memory: config.Memory

    summarizes: bool
    """True if every run has the summary of its session in its instructions."""

    summary_model: str
    """Id of the model that summarizes; `""` if no summary is configured."""

    model_calls: int
    """Maximum model calls of a run. If the model then still calls tools, the run ends with
    MODEL_CALLS_EXCEEDED."""

    result_tokens: int
    """Tokens of a tool result that the model is shown; 0 for all."""

    repeats: RepeatLimits
    """Limits of the identical calls that the model may make in a row."""


def build_actions(
    component: Component,
    tools: Iterable[Tool],
    external: Iterable[ExternalAction],
    members: Mapping[str, Component],
    inputs: Mapping[str, InputSchema],
) -> tuple[str, dict[str, Action]]:
    """Return the instructions and the actions of an agent or of a team's leader.

    Args:
        members: the members of a team by id; empty for an agent.
        inputs: as for `build_leader_instructions`.

    Raises:
        InvalidConfiguration: a tool has the name of another tool, or of a tool of agentctl.
    """
    spec = component.worker
    instructions = spec.instructions

    all_actions: list[Action] = [ToolAction(tool) for tool in tools]
    all_actions += [*external, *build_memory_actions(spec.memory)]

    if component.kind == "team":
        instructions = build_leader_instructions(component, members, inputs)
        all_actions = [*build_member_actions(component, members), *all_actions]

    actions = {action.record()["name"]: action for action in all_actions}

    if len(actions) < len(all_actions):
        names = [action.record()["name"] for action in all_actions]
        repeated_name = next(name for name in names if names.count(name) > 1)
        raise InvalidConfiguration(
            f"The {component.label} has two tools named {repeated_name}",
            hint="rename one of them; memory tools and delegations are tools of agentctl",
        )

    return instructions, actions


def build_runner(
    component: Component,
    connections: Sequence[tuple[config.Model, ModelConnection]],
    instructions: str,
    actions: Mapping[str, Action],
    rules: Mapping[str, CallRule],
    counters: ModelCounters,
) -> ConfiguredRunner:
    """Build the runner of an agent or of a team's leader.

    Args:
        connections: the model of the component and its fallbacks, in order.
    """
    from agentctl.runtime.models.attempts import prepare_models

    own_settings = component.worker.settings
    settings = {item.name: getattr(own_settings, item.name) for item in fields(own_settings)}
    set_values = {name: value for name, value in settings.items() if value not in (None, ())}

    summary = component.worker.summary

    return ConfiguredRunner(
        models=prepare_models(connections, set_values),
        counters=counters,
        tools=[action.record() for action in actions.values()],
        actions=actions,
        rules=rules,
        references=[
            reference for reference in component.worker.tools if parse_mcp_reference(reference)
        ],
        system=instructions,
        routes=component.kind == "team" and component.team.mode == "route",
        memory=component.worker.memory,
        summarizes=bool(summary.every_runs),
        summary_model=summary.model or (component.worker.model if summary.every_runs else ""),
        model_calls=component.worker.model_calls,
        result_tokens=component.worker.tool_result_tokens,
        repeats=build_repeat_limits(component.worker, _list_code_limits(actions)),
    )


def _list_code_limits(actions: Mapping[str, Action]) -> dict[str, int]:
    """Return how often calls of tools may be repeated, as far as their code says so, by name."""
    limits: dict[str, int] = {}
    for name, action in actions.items():
        if isinstance(action, ToolAction) and action.tool.options.repeat_calls is not None:
            limits[name] = action.tool.options.repeat_calls
    return limits


def add_actions(
    runner: ConfiguredRunner, more: Mapping[str, Action], rules: Mapping[str, CallRule]
) -> ConfiguredRunner:
    """Return a runner with further tools, such as tools of MCP servers, and their rules."""
    return replace(
        runner,
        tools=[*runner.tools, *(action.record() for action in more.values())],
        actions={**runner.actions, **more},
        rules={**runner.rules, **rules},
    )
