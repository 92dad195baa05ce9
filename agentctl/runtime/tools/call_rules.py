"""Call rules: the calls that wait for a person before they are made (docs/decisions/0080).

The key `approve` of a component and the code of its tools name them. The strictest one counts.

The tools of MCP servers are known at run time only. A pattern that could name one of a server, but
matches no tool at all, applies to every tool of that server: the server may have renamed the tool.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from agentctl.config.mcp_servers import parse_mcp_reference
from agentctl.errors import InvalidConfiguration
from agentctl.records.approvals import ApprovalPolicy
from agentctl.runtime.mcp.definitions import build_public_name
from agentctl.runtime.tools.actions import ToolAction
from agentctl.runtime.tools.external import ExternalAction, check_arguments
from agentctl.runtime.transcript.conversation import CallRule

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.mcp.actions import McpAction
    from agentctl.runtime.transcript.conversation import Action

Patterns = Mapping[str, ApprovalPolicy]
"""The key `approve` of a component."""

_log = logging.getLogger("agentctl.runtime")


def choose_strictest(policies: Iterable[ApprovalPolicy | None]) -> ApprovalPolicy | None:
    """Return the strictest of some policies; None if there is none."""
    found = set(policies)
    return "other" if "other" in found else "user" if "user" in found else None


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
    known = list(names)
    return {
        pattern: policy
        for pattern, policy in patterns.items()
        if not any(fnmatchcase(name, pattern) for name in known)
    }


def may_match(pattern: str, prefix: str) -> bool:
    """Return True if a pattern matches any name that begins with a prefix."""
    # The positions in the pattern that are reached after each character of the prefix.
    reached = _skip_stars(pattern, {0})
    for character in prefix:
        after = {at for at in reached if at < len(pattern) and pattern[at] == "*"}
        after |= {at + 1 for at in reached if at < len(pattern) and pattern[at] in (character, "?")}
        reached = _skip_stars(pattern, after)
    return bool(reached)


def _skip_stars(pattern: str, positions: set[int]) -> set[int]:
    reached = set(positions)
    for at in positions:
        while at < len(pattern) and pattern[at] == "*":
            at += 1
            reached.add(at)
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
    owner, patterns = f"The {component.label}", component.worker.approve
    names = [name for name, action in actions.items() if action.has_effects]
    for pattern in list_unmatched(patterns, names):
        if not _may_match_server(pattern, component.worker.tools):
            known = ", ".join(names) or "none"
            raise InvalidConfiguration(
                f'{owner} has the pattern "{pattern}" in approve, which matches none of its tools',
                hint=f"correct or remove it; its tools are: {known}",
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
    known: Iterable[str],
    actions: Mapping[str, McpAction],
    reported: set[tuple[str, str]],
) -> dict[str, CallRule]:
    """Return the rules of the tools of MCP servers for one run.

    Args:
        known: the names of the other tools.
        reported: component and pattern of the warnings so far; new ones are added.
    """
    patterns = component.worker.approve
    if not patterns:
        return {}
    unmatched = list_unmatched(patterns, [*known, *actions])
    named = filter(None, map(parse_mcp_reference, component.worker.tools))
    whole_servers = {reference.server for reference in named if not reference.tool}
    rules: dict[str, CallRule] = {}
    for name, action in actions.items():
        missing: list[str] = []
        if (server := action.tool.server) in whole_servers:
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
    owner = component.label
    if (owner, pattern) not in reported:
        reported.add((owner, pattern))
        _log.warning(
            '%s: "%s" in approve matches no tool; all tools of the MCP servers that may have it'
            " wait for approval",
            owner, pattern,
        )  # fmt: skip


def _may_match_server(pattern: str, references: Iterable[str]) -> bool:
    for named in filter(None, map(parse_mcp_reference, references)):
        name = build_public_name(named.server, named.tool)
        if find_policy({pattern: "user"}, name) if named.tool else may_match(pattern, name):
            return True
    return False
