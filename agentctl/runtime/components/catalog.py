"""The catalog: the configured components, their references to each other, and their code.

This module does not import pydantic_ai. The module of a tool is imported when a record or a run
needs it, so a list of components without tools does not need pydantic either.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from agentctl.config.mcp_servers import parse_mcp_reference
from agentctl.config.settings import Agent, Team, Workflow
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.component import Component, ComponentVersion
from agentctl.runtime.mcp.servers import McpServers
from agentctl.work.run_scope import outside_run
from agentctl.work.unstopped import abandon_task

if TYPE_CHECKING:
    from pathlib import Path

    from agentctl.config import settings as config
    from agentctl.records.kinds import ApprovalPolicy, ComponentKind
    from agentctl.runtime.components.configured import ConfiguredRunner
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.models.access import ModelConnections
    from agentctl.runtime.models.structured_output import OutputSchema
    from agentctl.runtime.pauses import InputSchema
    from agentctl.runtime.runners.runner import Runner
    from agentctl.runtime.tools.external import ExternalAction
    from agentctl.runtime.tools.functions import Tool
    from agentctl.runtime.transcript.conversation import Action, CallRule

CLOSE_SECONDS = 5.0
"""Maximum time that the end of a process waits for the runner of an agent."""

T = TypeVar("T")

_log = logging.getLogger("agentctl.runtime")


class Catalog:
    """The components of one configuration, with the tools and objects that their runs share.

    A process creates one and closes it at the end.

    Attributes:
        mcp: the MCP servers.
        versions: the versions of components by key (`components.versions`).
        session_data: the JSON that `components.records` has built for sessions, by id and key.
    """

    def __init__(self, settings: config.Settings, components: Iterable[Component]) -> None:
        self.settings = settings
        self.mcp = McpServers(settings)
        self._models = {model.id: model for model in settings.models}
        self._connections: ModelConnections | None = None

        self._components: dict[ComponentKind, dict[str, Component]]
        self._components = {"agent": {}, "team": {}, "workflow": {}}
        for component in components:
            self._components[component.kind][component.id] = component

        self._unmatched: set[tuple[str, str]] = set()

        # By the key of the component.
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._external: dict[str, list[ExternalAction]] = {}
        self._runners: dict[str, ConfiguredRunner] = {}
        self._outputs: dict[str, OutputSchema] = {}
        self._hosted: dict[str, Runner] = {}
        self._openings: dict[str, asyncio.Task[None]] = {}
        self._policies: dict[tuple[str, str], ApprovalPolicy | None] = {}

        self.versions: dict[str, ComponentVersion | None] = {}
        self.session_data: dict[tuple[str, str], str] = {}

    @classmethod
    def from_settings(cls, settings: config.Settings) -> Catalog:
        """Build the catalog of a loaded configuration, whose references were checked."""
        default = settings.databases[0].id if settings.databases else ""
        specs: list[tuple[ComponentKind, Agent | Team | Workflow]] = [
            *(("agent", agent) for agent in settings.agents),
            *(("team", team) for team in settings.teams),
            *(("workflow", workflow) for workflow in settings.workflows),
        ]

        return cls(
            settings,
            (
                Component(
                    kind=kind,
                    id=spec.id,
                    name=spec.name or spec.id,
                    description=spec.description,
                    database=spec.database or default,
                    on_busy=spec.on_busy,
                    history_runs=0 if isinstance(spec, Workflow) else spec.history_runs,
                    spec=spec,
                )
                for kind, spec in specs
            ),
        )

    @property
    def models(self) -> ModelConnections:
        """The connections to models. A process that only reads records never makes them."""
        if self._connections is None:
            from agentctl.runtime.models.access import ModelConnections

            self._connections = ModelConnections(self._models, self.settings.limits.run_bytes)
        return self._connections

    def components(self, kind: ComponentKind) -> dict[str, Component]:
        """Return the components of a kind by id, in the order of the configuration."""
        return dict(self._components[kind])

    def list_workers(self) -> list[Component]:
        """Return the agents and the teams, in the order of the configuration."""
        return [*self._components["agent"].values(), *self._components["team"].values()]

    def get(self, kind: ComponentKind, component_id: str) -> Component | None:
        return self._components[kind].get(component_id)

    def list_sides(self, component: Component) -> list[Component]:
        """Return a component, and with the key `next` its other side: the same id, its table."""
        following = self.get(component.kind, component.spec.next)
        if following is None:
            return [component]
        history_runs = following.history_runs
        return [component, replace(component, spec=following.spec, history_runs=history_runs)]

    def choose_side(self, component: Component, session_id: str) -> Component:
        """Return the side that answers in a session.

        A session that `next` answers keeps it when `percent` grows: its bucket stays the same.
        """
        if not component.spec.percent:
            return component

        place = f"{component.kind}/{component.id}/{session_id}"
        bucket = int.from_bytes(hashlib.sha256(place.encode()).digest()[:8]) % 100
        sides = self.list_sides(component)
        return sides[-1] if bucket < component.spec.percent else sides[0]

    def members(self, team: Component) -> dict[str, Component]:
        """Return the members of a team by id, in its database and the configured order."""
        members: dict[str, Component] = {}
        for member_id in team.team.members:
            # Agents have precedence over teams of the same id.
            member = self.get("agent", member_id) or self.get("team", member_id)
            members[member_id] = _require(member, team, "member", member_id)

        return {name: replace(member, database=team.database) for name, member in members.items()}

    def steps(self, workflow: Component) -> list[tuple[str, Component]]:
        """Return the steps of a workflow in order: the name, and the agent or team."""
        steps: list[tuple[str, Component]] = []

        for step in workflow.workflow.steps:
            kind: ComponentKind = "agent" if step.agent else "team"
            component_id = step.agent or step.team
            component = _require(self.get(kind, component_id), workflow, kind, component_id)
            steps.append((step.name, replace(component, database=workflow.database)))

        return steps

    def model(self, component: Component) -> config.Model:
        """Return the configured model of an agent or of a team's leader."""
        model_id = component.worker.model
        return _require(self._models.get(model_id), component, "model", model_id)

    def find_model(self, model_id: str) -> config.Model | None:
        """Return a configured model by its id."""
        return self._models.get(model_id)

    def tools(self, component: Component) -> tuple[Tool, ...]:
        """Return the functions that are tools of an agent or of a team's leader; import them.

        Raises:
            InvalidConfiguration: a tool is not usable; names the component and the tool.
        """
        functions = tuple(
            tool for tool in component.worker.tools if parse_mcp_reference(tool) is None
        )
        if not functions:
            return ()
        if component.key not in self._tools:
            from agentctl.runtime.models.access import checking_models
            from agentctl.runtime.tools.functions import load_tools

            with checking_models(self._models):
                self._tools[component.key] = load_tools(component.key, functions, self._folder)
        return self._tools[component.key]

    def external_tools(self, component: Component) -> list[ExternalAction]:
        """Return the tools of an agent or of a team's leader that its caller executes."""
        files = component.worker.external_tools
        if not files:
            return []
        label = component.key
        if label not in self._external:
            from agentctl.runtime.tools.external import load_external_tools

            self._external[label] = load_external_tools(label, files)
        return self._external[label]

    @property
    def _folder(self) -> Path | None:
        return self.settings.path.parent if self.settings.path is not None else None

    def can_call(self, kind: ComponentKind, component_id: str, tool_name: str) -> bool:
        """Return False if a call that was approved cannot be made: its component or tool is gone.

        A tool that is not known here, such as one of an agent in code, is taken as present.
        """
        component = self.get(kind, component_id)
        if component is None:
            return False
        return any(
            self.has_tool(side, tool_name) is not False for side in self.list_sides(component)
        )

    def is_hosted(self, component: Component) -> bool:
        """Return True for an agent in code: an object executes it, not a configured model."""
        return isinstance(component.spec, Agent) and bool(component.spec.object)

    def hosted_runner(self, agent: Component) -> Runner:
        """Return the runner of an agent in code; imports its module.

        Raises:
            InvalidConfiguration: the object is not usable; names the agent and the object.
        """
        if agent.key not in self._hosted:
            from agentctl.runtime.models.access import checking_models
            from agentctl.runtime.runners.loading import load_runner
            from agentctl.runtime.transcript.repeated_calls import build_repeat_limits

            with checking_models(self._models):
                self._hosted[agent.key] = load_runner(
                    agent.key,
                    agent.agent.object,
                    self._folder,
                    deps=agent.agent.deps,
                    approve=agent.agent.approve,
                    durable=agent.agent.durable,
                    store=agent.agent.store,
                    configurable=agent.agent.configurable,
                    limits_repeats=build_repeat_limits(agent.agent).is_active,
                )

        return self._hosted[agent.key]

    def find_input_agent(self, component: Component) -> Component | None:
        """Return the agent in code that gets the object `input` of a run of a component.

        It is the component, or the first step of a workflow. None if a configured model answers.
        """
        if component.kind == "workflow":
            component = self.steps(component)[0][1]
        return component if self.is_hosted(component) else None

    def find_input_schema(self, component: Component) -> InputSchema | None:
        """Return the schema of the input of a component; imports the module of the agent.

        None if a configured model answers, its agent takes any object, its object is not usable,
        or an asynchronous factory has not made its object yet.
        """
        agent = self.find_input_agent(component)
        if agent is None:
            return None
        try:
            return self.hosted_runner(agent).input_schema
        except InvalidConfiguration:
            return None

    async def find_native_kinds(self, agent: Component) -> Sequence[str]:
        """Return the kinds whose native messages the runner of an agent in code reads.

        Calls an asynchronous factory that has not made its object yet. Empty if the object is not
        usable, or cannot be made: the run itself reports that.
        """
        from agentctl.runtime.runners.runner import FACTORY

        try:
            runner = self.hosted_runner(agent)
            if runner.kind == FACTORY:
                await self.open_runner(agent)
        except Exception:
            return ()
        return runner.native_kinds

    async def find_message_obstacle(self, component: Component) -> str | None:
        """Return a sentence about why the runs of a component take no messages while they work.

        None if they take them. Calls an asynchronous factory that has not made its object yet.
        """
        from agentctl.runtime.runners.runner import FACTORY

        if component.kind == "workflow":
            return "A workflow takes no messages while it works"
        if not self.is_hosted(component):
            return None

        try:
            runner = self.hosted_runner(component)
            if runner.kind == FACTORY:
                await self.open_runner(component)
        except Exception:
            return "The agent could not be opened, so it takes no messages while it works"
        return runner.message_obstacle

    def give_models(self, environment: RunEnvironment) -> None:
        """Let the code of a run, in the current context, call the configured models."""
        from agentctl.runtime.models.access import ModelAccess, current_access

        run_bytes = self.settings.limits.run_bytes
        current_access.set(ModelAccess(self._models, self.models, environment, run_bytes))

    def load_code(self) -> None:
        """Import the modules of all tools and of all agents in code, and check `approve`.

        Raises:
            InvalidConfiguration: a tool or an object is not usable; names the component.
        """
        for kind in ("agent", "team"):
            for component in self._components[kind].values():
                if self.is_hosted(component):
                    self.hosted_runner(component)
                else:
                    self._build_actions(component)

    def output_schema(self, component: Component, requested: str | None) -> OutputSchema | None:
        """Return the schema of the result of a run; None for text.

        Args:
            requested: the JSON Schema of the request, which was checked; None without a schema.
        """
        from agentctl.runtime.models.structured_output import RequestSchema, load_output_model

        if requested is not None:
            return RequestSchema(json.loads(requested))
        if not isinstance(component.spec, Agent) or not component.spec.output:
            return None
        if component.key not in self._outputs:
            self._outputs[component.key] = load_output_model(
                component.key, component.spec.output, self._folder
            )
        return self._outputs[component.key]

    def takes_output_schema(self, component: Component) -> bool:
        """Return True if a request may have a schema: the model of the component answers."""
        if component.kind == "team":
            return component.team.mode != "route"
        return component.kind == "agent" and not self.is_hosted(component)

    def find_tool_names(self, component: Component) -> Collection[str] | None:
        """Return the known names of the tools of a component; None if it takes none of a caller.

        A name that ends in `*` means all names that begin with the text before it: those of
        the tools of an MCP server.
        """
        if self.is_hosted(component):
            from agentctl.runtime.runners.runner import TakesClientTools

            runner = self.hosted_runner(component)
            return runner.tool_names if isinstance(runner, TakesClientTools) else None

        if component.kind == "workflow":
            return None

        from agentctl.runtime.mcp.definitions import build_public_name

        _, actions, _ = self._build_actions(component)
        references = filter(None, map(parse_mcp_reference, component.worker.tools))
        patterns = (f"{build_public_name(reference.server, '')}*" for reference in references)
        return {*actions, *patterns}

    async def open_runner(self, agent: Component) -> Runner:
        """Return the runner of an agent in code, opened once. Runs that arrive meanwhile wait.

        Raises:
            Exception: opening failed; the next call tries again.
        """
        # With what all of its runs share.
        with outside_run():
            runner = self.hosted_runner(agent)
            opening = self._openings.get(agent.key)
            if opening is None:
                opening = asyncio.create_task(_contain(runner.open()))
                self._openings[agent.key] = opening

        if not opening.done():
            # Shielded: the cancel of one run must not disturb other runs.
            await asyncio.wait({opening})

        if opening.cancelled() or opening.exception() is not None:
            if self._openings.get(agent.key) is opening:
                del self._openings[agent.key]
            await opening

        return runner

    def runner(self, component: Component) -> ConfiguredRunner:
        """Return the prepared model, tools and instructions of an agent or of a team's leader.

        Raises:
            ExecutionError: the API key of the model is not set.
            InvalidConfiguration: a tool or the model is not usable.
        """
        if (runner := self._runners.get(component.key)) is None:
            from agentctl.runtime.components.configured import build_runner

            instructions, actions, rules = self._build_actions(component)
            connections = self.models.connect(self.model(component))
            runner = self._runners[component.key] = build_runner(
                component, connections, instructions, actions, rules, self.models.counters
            )
        return runner

    def _build_actions(
        self, component: Component
    ) -> tuple[str, dict[str, Action], dict[str, CallRule]]:
        from agentctl.runtime.components.configured import build_actions
        from agentctl.runtime.tools.call_rules import build_component_rules

        """Return the instructions, the actions and the rules of a configured component."""
        members = self.members(component) if component.kind == "team" else {}
        external = self.external_tools(component)
        schemas = {name: self.find_input_schema(member) for name, member in members.items()}
        inputs = {name: schema for name, schema in schemas.items() if schema and schema.is_required}

        instructions, actions = build_actions(
            component, self.tools(component), external, members, inputs
        )
        rules = build_component_rules(component, actions, has_approvers=self.settings.has_approvers)
        return instructions, actions, rules

    def find_policy(self, component: Component, tool_name: str) -> ApprovalPolicy | None:
        """Return who approves the calls of a tool now; None if they do not wait, or it is gone."""
        if component.kind == "workflow":
            return None
        from agentctl.runtime.tools.call_rules import find_policy

        key = component.key, tool_name
        if key not in self._policies:
            policy = find_policy(component.worker.approve, tool_name)
            if not self.is_hosted(component):
                # The code of a tool may ask for more than the configuration.
                with contextlib.suppress(InvalidConfiguration):
                    _, _, rules = self._build_actions(component)
                    if tool_name in rules:
                        policy = rules[tool_name].policy
            self._policies[key] = policy
        return self._policies[key]

    def has_tool(self, component: Component, name: str) -> bool | None:
        """Return True if a component still has the tool that a model knows by a name.

        None if it is not known: the component is an agent in code or a workflow, its tools are not
        usable, or an MCP server has not listed its tools.
        """
        if component.kind == "workflow" or self.is_hosted(component):
            return None

        from agentctl.runtime.mcp.definitions import build_public_name

        try:
            if name in self._build_actions(component)[1]:
                return True
        except InvalidConfiguration:
            return None

        references = component.worker.tools
        if any(tool["name"] == name for tool in self.mcp.records(references)):
            return True

        for reference in filter(None, map(parse_mcp_reference, references)):
            server = self.mcp.hosted.get(reference.server)
            is_listed = server is not None and server.listed is not None
            if not is_listed and name.startswith(build_public_name(reference.server, "")):
                return None

        return False

    async def prepare_runner(
        self, component: Component, context: RunEnvironment
    ) -> ConfiguredRunner:
        """Return the runner of a component for one run, with tools of MCP servers and callers."""
        from agentctl.runtime.components.configured import add_actions

        runner = self.runner(component)
        if runner.references:
            from agentctl.runtime.mcp.calls import get_user
            from agentctl.runtime.tools.call_rules import build_mcp_rules

            mcp_actions = await self.mcp.build_actions(
                runner.references, get_user(context), runner.actions
            )
            rules = build_mcp_rules(component, runner.actions, mcp_actions, self._unmatched)
            runner = add_actions(runner, mcp_actions, rules)

        if context.spec.client_tools is not None:
            from agentctl.runtime.tools.call_rules import build_rules
            from agentctl.runtime.tools.external import ExternalAction, read_client_tools

            # A tool that the component has got since the request has precedence.
            actions = {
                tool["name"]: ExternalAction(tool)
                for tool in read_client_tools(context.spec)
                if tool["name"] not in runner.actions
            }
            # Without `approve`: these calls wait for the caller regardless of it.
            runner = add_actions(runner, actions, build_rules({}, actions))

        return runner

    async def close(self) -> None:
        """Close the connections to models and MCP servers, and the runners of agents in code."""
        await self.mcp.close()

        self._runners.clear()
        if self._connections is not None:
            await self._connections.close()

        hosted = self._hosted
        self._hosted = {}
        for opening in self._openings.values():
            opening.cancel()
        for agent, runner in hosted.items():
            await _close_runner(agent, runner)


def _require(component: T | None, owner: Component, what: str, name: str) -> T:
    """Return what a component names, or raise InvalidConfiguration if it is not configured."""
    if component is None:
        raise InvalidConfiguration(f"The {owner.label} names an unknown {what} {name!r}")

    return component


async def _contain(work: Coroutine[Any, Any, None]) -> None:
    """Do work of the code of users, which must not end the process with `sys.exit`."""
    try:
        await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent raised {type(error).__name__}") from error


async def _close_runner(agent: str, runner: Runner) -> None:
    """Close a runner. The code of users must not keep a process from its end."""
    closing = asyncio.create_task(_contain(runner.close()))
    await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    if not closing.done():
        _log.warning("%s: it could not be closed within %g seconds", agent, CLOSE_SECONDS)
        abandon_task(closing)
    elif not closing.cancelled() and closing.exception() is not None:
        _log.warning("%s: it could not be closed", agent, exc_info=closing.exception())
