"""Repeated calls: the breaker of a model that makes one call again and again.

The keys `repeat_calls` and `repeat_calls_by_tool` of a component set how often its model may make a
call in a row (docs/agents.md "Repeated calls"). The next identical call is answered in place of its
tool, and a model that makes it once more after it has read that ends its run with LOOP.

The count is derived from the calls in the order in which the model has asked for them, which the
transcript keeps. So a later leg counts as the first one, in any process, and after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from agentctl.records.approvals import hash_value
from agentctl.runtime.failures import ExecutionError

if TYPE_CHECKING:
    from agentctl.config.settings import Agent, Team


@dataclass(frozen=True, slots=True)
class RepeatLimits:
    """Limits of the identical calls that the model of a component may make in a row."""

    calls: int = 0
    """Identical calls of any tool; 0 for no limit."""

    by_pattern: Mapping[str, int] = field(default_factory=dict)
    """The limits of some tools, by names and patterns; the first one that matches counts."""

    by_code: Mapping[str, int] = field(default_factory=dict)
    """The limits that the code of tools sets, by name; the configuration comes before them."""

    @property
    def is_active(self) -> bool:
        """True if the calls of any tool are counted."""
        limits = (self.calls, *self.by_pattern.values(), *self.by_code.values())
        return any(limits)

    def find(self, name: str) -> int:
        """Return the limit of a tool; 0 for none."""
        for pattern, limit in self.by_pattern.items():
            if fnmatchcase(name, pattern):
                return limit
        return self.by_code.get(name, self.calls)


def build_repeat_limits(
    spec: Agent | Team, by_code: Mapping[str, int] | None = None
) -> RepeatLimits:
    """Return the limits of an agent or of a team's leader.

    Args:
        by_code: the limits that its tools set, by name; None for none.
    """
    return RepeatLimits(spec.repeat_calls, spec.repeat_calls_by_tool, by_code or {})


class RepeatedCalls:
    """The calls of one run, in the order in which its model has asked for them.

    A call repeats the one before it if tool and arguments are the same, as canonical JSON.

    Args:
        messages: the messages of the run so far, with the calls of earlier legs. Calls of a run
            that this one repeats are left out.
    """

    def __init__(self, limits: RepeatLimits, messages: Iterable[Mapping[str, Any]] = ()) -> None:
        self.limits = limits
        self._is_active = limits.is_active

        self._looping: str | None = None
        self._texts: set[str] = set()

        # Of the present answer.
        self._answer = 0
        self._known_ids: set[str] = set()
        self._refusals: dict[str, str] = {}

        # Of the identical calls at the end of the sequence.
        self._digest = ""
        self._count = 0
        self._refused_in: int | None = None

        if self._is_active:
            self._add_earlier([message for message in messages if "origin_run_id" not in message])

    def add_answer(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Add the calls of an answer: `id`, `name` and `arguments` of each, in their order."""
        self.begin_answer()
        for call in calls:
            self.add(call["id"], call["name"], call["arguments"])

    def begin_answer(self) -> None:
        """Note that the model is called: it reads all results so far."""
        self._answer += 1
        # A model may use the ids of an earlier answer again.
        self._known_ids.clear()
        self._refusals.clear()

    def add(self, call_id: str, name: str, arguments: Any, result: str | None = None) -> None:
        """Add the next call of the present answer; one that was added before is ignored.

        Args:
            result: what the model has read, if the call has ended in an earlier leg.
        """
        if not self._is_active or call_id in self._known_ids:
            return
        self._known_ids.add(call_id)

        digest = hash_value([name, arguments])
        if digest != self._digest:
            self._digest = digest
            self._count = 0
            self._refused_in = None
        self._count += 1

        limit = self.limits.find(name)
        if not limit or self._count <= limit:
            return

        refusal = _format_refusal(name, limit)
        if result not in (None, refusal):
            # It was made all the same: a person has approved it, or the limit was another one.
            return
        if self._refused_in is None:
            self._refused_in = self._answer
        elif self._refused_in < self._answer:
            self._looping = name
        self._refusals[call_id] = refusal
        self._texts.add(refusal)

    def find_refusal(self, call_id: str) -> str | None:
        """Return the result of a call of the present answer that must not be made, else None."""
        return self._refusals.get(call_id)

    def is_refusal(self, text: object) -> bool:
        """Return True if a text is the result of a call that was not made."""
        return text in self._texts

    def check(self) -> None:
        """Check the calls that were added; to call before the first one of an answer is made.

        Raises:
            ExecutionError: LOOP: the model has made a call again whose refusal it had read.
        """
        if self._looping is not None:
            raise ExecutionError("LOOP", _format_loop(self._looping))

    def _add_earlier(self, messages: Iterable[Mapping[str, Any]]) -> None:
        results = {
            message["tool_call_id"]: message["content"]
            for message in messages
            if message["role"] == "tool"
        }
        for message in messages:
            if message["role"] != "assistant" or "member_run_id" in message:
                continue
            self.begin_answer()
            for call in message.get("tool_calls", ()):
                self.add(call["id"], call["name"], call["arguments"], results.get(call["id"]))


def _format_refusal(name: str, limit: int) -> str:
    times = "once" if limit == 1 else f"{limit} times in a row"
    return (
        f"The call was not made: {name} was called {times} with these arguments already, and the"
        " results are above. Use them, call it with other arguments, or answer. If you make this"
        " call again, the run ends"
    )


def _format_loop(name: str) -> str:
    return f"The model made the same call of {name} again after it was refused as a repetition"
