"""Gates: the calls that wait for a person before they are made (docs/decisions/0080).

The key `approve` of a component and the code of its tools name them. The strictest one counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentctl.records.approvals import ApprovalPolicy
from agentctl.records.json_schema import find_schema_problem
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.tools.actions import ToolAction
from agentctl.runtime.tools.external import ExternalAction

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.conversation import Action, Conversation

Check = Callable[[Mapping[str, Any], "Conversation"], Awaitable[CallOutcome | None]]
"""Returns the failure of a call whose arguments are not valid, or None. No one is asked about such
a call."""

Patterns = Mapping[str, ApprovalPolicy]
"""The key `approve` of a component."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The reason why the calls of a tool wait.

    Attributes:
        kind: `approval`, or `external` for a tool that the caller executes.
        idempotent: True if a call may be made again with its id after its server died.
    """

    kind: Literal["approval", "external"]
    policy: ApprovalPolicy
    check: Check
    idempotent: bool = False


def choose_strictest(policies: Iterable[ApprovalPolicy | None]) -> ApprovalPolicy | None:
    """Return the strictest of some policies; None if there is none."""
    found = set(policies)
    return "other" if "other" in found else "user" if "user" in found else None


def find_policy(patterns: Patterns, name: str) -> ApprovalPolicy | None:
    """Return the policy for the tool with a name; None if its calls do not wait."""
    return choose_strictest(
        policy for pattern, policy in patterns.items() if fnmatchcase(name, pattern)
    )


def build_gate(action: Action, policy: ApprovalPolicy | None) -> Gate | None:
    """Return the gate of an action with a policy of the configuration; None for no gate.

    Delegations and other actions without own effects have none.
    """
    if not action.has_effects:
        return None
    if isinstance(action, ExternalAction):
        return Gate("external", policy or "user", partial(check_arguments, action.tool))
    if isinstance(action, ToolAction):
        options = action.tool.options
        strictest = choose_strictest([options.approve, policy])
        return strictest and Gate("approval", strictest, action.check, options.idempotent)
    return policy and Gate("approval", policy, partial(check_arguments, action.record()))


def build_gates(patterns: Patterns, actions: Mapping[str, Action]) -> dict[str, Gate]:
    """Return the gates of actions by name."""
    gates = {
        name: build_gate(action, find_policy(patterns, name)) for name, action in actions.items()
    }
    return {name: gate for name, gate in gates.items() if gate is not None}


async def check_arguments(
    tool: ToolRecord, arguments: Mapping[str, Any], conversation: Conversation
) -> CallOutcome | None:
    """Check the arguments of a call against the schema of its tool."""
    problem = find_schema_problem(tool["parameters"], dict(arguments))
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
