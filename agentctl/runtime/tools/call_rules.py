"""Call rules: the calls that wait for a person before they are made (docs/decisions/0080).

The key `approve` of a component and the code of its tools name them. The strictest one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from agentctl.records.approvals import ApprovalPolicy
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.schema_checks import find_schema_problem
from agentctl.runtime.tools.actions import ToolAction
from agentctl.runtime.tools.external import ExternalAction
from agentctl.runtime.transcript.conversation import CallRule

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.transcript.conversation import Action, Conversation

Patterns = Mapping[str, ApprovalPolicy]
"""The key `approve` of a component."""


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
    return policy and CallRule("approval", policy, partial(check_arguments, action.record()))


def build_rules(patterns: Patterns, actions: Mapping[str, Action]) -> dict[str, CallRule]:
    """Return the rules of actions by name."""
    rules = {
        name: build_rule(action, find_policy(patterns, name)) for name, action in actions.items()
    }
    return {name: rule for name, rule in rules.items() if rule is not None}


async def check_arguments(
    tool: ToolRecord, arguments: Mapping[str, Any], conversation: Conversation
) -> CallOutcome | None:
    """Check the arguments of a call against the schema of its tool."""
    problem = await find_schema_problem(tool["parameters"], dict(arguments))
    if problem is None:
        return None
    place = f"{problem.place.lstrip('.')}: " if problem.place else ""
    text = f"The arguments of {tool['name']} are not valid: {place}{problem.text}"
    return CallOutcome(text, failed=True)


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
