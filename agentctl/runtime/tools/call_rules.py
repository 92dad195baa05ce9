"""Call rules: the calls that wait for a person before they are made (decision 80).

The key `approve` of a component and the code of its tools name them. The strictest one counts.

The tools of MCP servers are known at run time only. A pattern that could name one of a server, but
matches no tool at all, applies to every tool of that server: the server may have renamed the tool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from agentctl.config.mcp_servers import parse_mcp_reference
from agentctl.errors import InvalidConfiguration
from agentctl.records.kinds import ApprovalPolicy
from agentctl.runtime.context import HeldBack, RunEnvironment, RunHost, build_run_context
from agentctl.runtime.json_values import NotSerializable
from agentctl.runtime.mcp.definitions import build_public_name
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.tools.external import ExternalAction, check_arguments
from agentctl.runtime.tools.functions import InvalidArguments, Tool, result_to_text
from agentctl.runtime.transcript.conversation import Action, CallRule, Conversation
from agentctl.work.event_loop import TooManyAbandonedThreads, wait_until_done
from agentctl.work.started_work import CodeScope
from agentctl.work.unstopped import abandon_task, run_in_thread

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.component import Component
    from agentctl.runtime.mcp.actions import McpAction


_log = logging.getLogger("agentctl.runtime")

_TOOL_GRACE_SECONDS = 0.05
"""Time that a cancelled asynchronous tool has to clean up before it is abandoned."""

THREAD_START_SECONDS = 0.05
"""Maximum time from a look for halts to the call of the function, on a busy machine."""


class _ToolFailed(Exception):
    """A tool raised an exception; `name` is the class of that exception."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class ToolAction:
    """A configured tool as an action of a model."""

    has_effects: ClassVar[bool] = True

    tool: Tool

    @property
    def idempotent(self) -> bool:
        return self.tool.options.idempotent

    def record(self) -> ToolRecord:
        return self.tool.record()

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        return await self._attempt(arguments, conversation.context)

    async def check(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome | None:
        """Return the failure of a call whose arguments do not match the signature, or None."""
        outcome = await self._attempt(arguments, conversation.context, checks_only=True)
        return outcome if outcome.failed else None

    async def _attempt(
        self, arguments: Mapping[str, Any], context: RunEnvironment, *, checks_only: bool = False
    ) -> CallOutcome:
        name = self.tool.name

        try:
            return CallOutcome(await self._call(arguments, context, checks_only))
        except InvalidArguments as error:
            text = f"The arguments of {name} are not valid: {error}"
        except TimeoutError:
            text = f"The tool {name} did not end within {context.spec.tool_timeout:g} seconds"
        except TooManyAbandonedThreads:
            text = f"The tool {name} was not called: too many earlier calls never ended"
        except NotSerializable:
            text = f"The tool {name} gave a result without a JSON form"
        except _ToolFailed as failure:
            text = f"The tool {name} failed ({failure.name})"

        return CallOutcome(text, failed=True)

    async def _call(
        self, arguments: Mapping[str, Any], context: RunEnvironment, checks_only: bool
    ) -> str:
        """Call the function within the time limit of tools.

        The wait is bounded here, not with `asyncio.timeout`: that would wait for ever for a tool
        that ignores its cancellation.
        """
        name = self.tool.name

        unstopped = context.transcript.unstopped
        host = RunHost(context)
        scope = CodeScope(unstopped, name)

        call = self._call_guarded(arguments, context, host, checks_only)
        task = asyncio.create_task(_call_inside(scope, call), name=f"tool {name}")

        try:
            done_tasks, _ = await asyncio.wait({task}, timeout=context.spec.tool_timeout)
            if not done_tasks:
                raise TimeoutError
        except (asyncio.CancelledError, TimeoutError):
            host.abandoned = True
            abandon_task(task)
            try:
                await wait_until_done({task}, _TOOL_GRACE_SECONDS)
            finally:
                unstopped.add(task, name)
                scope.cancel()
            raise

        # The tool itself has raised these: they must not end the run.
        if task.cancelled():
            raise _ToolFailed("CancelledError")
        if isinstance(task.exception(), GeneratorExit):
            raise _ToolFailed("GeneratorExit")

        return task.result()

    async def _call_guarded(
        self,
        arguments: Mapping[str, Any],
        context: RunEnvironment,
        host: RunHost,
        checks_only: bool,
    ) -> str:
        """Call the function in its thread or task, and return the text of its result.

        Raises:
            _ToolFailed, NotSerializable: it raised an exception, or gave a result without a JSON
                form. The log has the exception.
            InvalidArguments, TooManyAbandonedThreads, HeldBack: it was not called.
        """
        tool = self.tool
        limit = context.limits.tool_result_bytes
        run_contexts = {name: build_run_context(context, host) for name in tool.contexts}

        try:
            if tool.is_async:
                values = tool.convert(arguments)
                if checks_only:
                    return ""

                # Nothing awaits between this and the first step of the function.
                _check_halt(context, tool.name)
                return result_to_text(await tool.function(**values, **run_contexts), limit)

            def call() -> str:
                values = tool.convert(arguments)
                if checks_only:
                    return ""

                with context.starting(THREAD_START_SECONDS):
                    _check_halt(context, tool.name)
                    result = tool.function(**values, **run_contexts)
                return result_to_text(result, limit)

            return await run_in_thread(call, tool.name, context.transcript.unstopped)
        except (
            asyncio.CancelledError,
            GeneratorExit,
            HeldBack,
            InvalidArguments,
            TooManyAbandonedThreads,
        ):
            raise
        except NotSerializable as error:
            _log.warning("tool %s: no JSON form", tool.name, exc_info=error)
            context.keep_cause(error, tool.name)
            raise
        except BaseException as error:
            # The text of the exception may contain secrets: it goes to the log, not to the model.
            _log.warning("tool %s failed", tool.name, exc_info=error)
            context.keep_cause(error, tool.name)
            raise _ToolFailed(type(error).__name__) from None


def _check_halt(context: RunEnvironment, tool: str) -> None:
    if context.find_halt(tool=tool) is not None:
        raise HeldBack


async def _call_inside(scope: CodeScope, call: Awaitable[str]) -> str:
    with scope.enter():
        return await call


Patterns = Mapping[str, ApprovalPolicy]
"""The key `approve` of a component: patterns of names of tools with their policies."""


def choose_strictest(policies: Iterable[ApprovalPolicy | None]) -> ApprovalPolicy | None:
    """Return the strictest of some policies; None without policies."""
    distinct_policies = set(policies)
    if "other" in distinct_policies:
        return "other"
    return "user" if "user" in distinct_policies else None


def find_policy(patterns: Patterns, name: str) -> ApprovalPolicy | None:
    """Return the policy for the tool with a name; None if its calls do not wait."""
    return choose_strictest(
        policy for pattern, policy in patterns.items() if fnmatchcase(name, pattern)
    )


def build_rule(action: Action, policy: ApprovalPolicy | None) -> CallRule | None:
    """Return the rule of an action with a policy of the configuration; None for no rule.

    Delegations and other actions without effects have none.
    """
    if not action.has_effects:
        return None

    if isinstance(action, ExternalAction):
        return CallRule("external", policy or "user", partial(check_arguments, action.tool))

    if isinstance(action, ToolAction):
        options = action.tool.options
        strictest = choose_strictest([options.approve, policy])
        return strictest and CallRule("approval", strictest, action.check, options.idempotent)

    # A tool of an MCP server.
    check = partial(check_arguments, action.record())
    return policy and CallRule("approval", policy, check, can_change=True)


def build_rules(patterns: Patterns, actions: Mapping[str, Action]) -> dict[str, CallRule]:
    """Return the rules of actions by name."""
    rules = {
        name: build_rule(action, find_policy(patterns, name)) for name, action in actions.items()
    }
    return {name: rule for name, rule in rules.items() if rule is not None}


def list_unmatched(patterns: Patterns, names: Iterable[str]) -> dict[str, ApprovalPolicy]:
    """Return the patterns that match none of some names."""
    all_names = list(names)
    return {
        pattern: policy
        for pattern, policy in patterns.items()
        if not any(fnmatchcase(name, pattern) for name in all_names)
    }


def may_match(pattern: str, prefix: str) -> bool:
    """Return True if a pattern matches any name that begins with a prefix."""
    # The positions in the pattern that are reached after each character of the prefix.
    positions = _skip_stars(pattern, {0})
    for character in prefix:
        next_positions: set[int] = set()
        for position in positions:
            if position == len(pattern):
                continue
            if pattern[position] == "*":
                next_positions.add(position)
            if pattern[position] in (character, "?"):
                next_positions.add(position + 1)
        positions = _skip_stars(pattern, next_positions)
    return bool(positions)


def _skip_stars(pattern: str, positions: set[int]) -> set[int]:
    """Return positions, and those that are reached from them if stars match nothing."""
    reached = set(positions)
    for position in positions:
        while position < len(pattern) and pattern[position] == "*":
            position += 1
            reached.add(position)
    return reached


def build_component_rules(
    component: Component, actions: Mapping[str, Action], *, has_approvers: bool
) -> dict[str, CallRule]:
    """Return the rules of the tools that are known without MCP servers.

    Args:
        actions: those tools by name.
        has_approvers: True if a call with the policy `other` can be approved at all.

    Raises:
        InvalidConfiguration: a pattern matches no tool and cannot match one of an MCP server, or
            the code of a tool asks for an approver, and there are none.
    """
    owner = f"The {component.label}"

    patterns = component.worker.approve
    names = [name for name, action in actions.items() if action.has_effects]

    for pattern in list_unmatched(patterns, names):
        if not _may_match_server(pattern, component.worker.tools):
            listed_names = ", ".join(names) or "none"
            raise InvalidConfiguration(
                f'{owner} has the pattern "{pattern}" in approve, which matches none of its tools',
                hint=f"correct or remove it; its tools are: {listed_names}",
            )

    for name, action in actions.items():
        asks = isinstance(action, ToolAction) and action.tool.options.approve == "other"
        if asks and not has_approvers:
            raise InvalidConfiguration(
                f"{owner} has the tool {name}, whose calls another user has to approve; while"
                " authorization is off, no one is another user",
                hint="turn authorization on, or set own = true in [approvals]",
            )

    return build_rules(patterns, actions)


def build_mcp_rules(
    component: Component,
    known_names: Iterable[str],
    actions: Mapping[str, McpAction],
    reported: set[tuple[str, str]],
) -> dict[str, CallRule]:
    """Return the rules of the tools of MCP servers for one run.

    Args:
        known_names: the names of the other tools of the component.
        reported: component and pattern of the warnings so far; new warnings are added.
    """
    patterns = component.worker.approve
    if not patterns:
        return {}

    unmatched = list_unmatched(patterns, [*known_names, *actions])
    references = filter(None, map(parse_mcp_reference, component.worker.tools))
    whole_servers = {reference.server for reference in references if not reference.tool}

    rules: dict[str, CallRule] = {}
    for name, action in actions.items():
        missing: list[str] = []
        server = action.tool.server
        if server in whole_servers:
            prefix = build_public_name(server, "")
            missing = [pattern for pattern in unmatched if may_match(pattern, prefix)]

        for pattern in missing:
            _report(component, pattern, reported)

        policies = [unmatched[pattern] for pattern in missing]
        policy = choose_strictest([*policies, find_policy(patterns, name)])

        if (rule := build_rule(action, policy)) is not None:
            rules[name] = rule

    return rules


def _report(component: Component, pattern: str, reported: set[tuple[str, str]]) -> None:
    """Log once in a process that a pattern may name a tool that a server has renamed."""
    owner = component.label
    if (owner, pattern) not in reported:
        reported.add((owner, pattern))
        _log.warning(
            '%s: "%s" in approve matches no tool; all tools of the MCP servers that may have it'
            " wait for approval",
            owner,
            pattern,
        )


def _may_match_server(pattern: str, references: Iterable[str]) -> bool:
    """Return True if a pattern may match a tool of the MCP servers in the key `tools`."""
    for reference in filter(None, map(parse_mcp_reference, references)):
        name = build_public_name(reference.server, reference.tool)
        is_matched = fnmatchcase(name, pattern) if reference.tool else may_match(pattern, name)
        if is_matched:
            return True

    return False
