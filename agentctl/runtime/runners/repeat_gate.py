"""The gate of the tool calls of a library: it counts the calls, and refuses repetitions.

A library that executes members itself makes their calls before their reports begin. So the gate
counts the calls of each of them apart, by a key that the library has: the `checkpoint_ns` of a
graph, the id of a run of agno.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls


class RepeatGate:
    """The calls of one leg of a run, and of the members that its library executes.

    Libraries call tools in threads, so each method may be called in any thread.

    Args:
        run: the run, with the calls of earlier legs.
        key: the key of its own calls.
        is_approved: returns True for a call, by its key and its id, that a person has approved: it
            is made.
    """

    def __init__(self, run: HostedRun, key: str, is_approved: Callable[[str, str], bool]) -> None:
        self._run = run
        self._limits = run.repeats.limits
        self._is_active = run.repeats.limits.is_active
        self._is_approved = is_approved
        self._repeats = {key: run.repeats}
        self._lock = threading.Lock()

    def adopt(self, key: str, member: HostedRun) -> None:
        """Share the calls of a member with its report, which may begin after its first call."""
        with self._lock:
            member.repeats = self._repeats.setdefault(key, member.repeats)

    def begin_answer(self, key: str) -> None:
        """Note that a model is called."""
        if self._is_active:
            with self._lock:
                self._find(key).begin_answer()

    def add_answer(self, key: str, calls: Iterable[Mapping[str, Any]]) -> None:
        """Count the calls of an answer: `id`, `name` and `args` of each."""
        if not self._is_active:
            return

        described_calls = [
            self._run.describe_call(call["id"] or "", call["name"], call["args"]) for call in calls
        ]
        with self._lock:
            self._find(key).add_answer(described_calls)

    def refuse(self, key: str, call_id: str) -> str | None:
        """Return the result of a counted call that must not be made; None if it is to be made."""
        if not self._is_active or self._is_approved(key, call_id):
            return None
        with self._lock:
            return self._find(key).find_refusal(call_id)

    def refuse_next(self, key: str, call_id: str, name: str, arguments: Any) -> str | None:
        """Count a call that is about to be made; return its result if it must not be made."""
        if not self._is_active:
            return None

        call = self._run.describe_call(call_id, name, arguments)
        with self._lock:
            self._find(key).add(call_id, call["name"], call["arguments"])
        return self.refuse(key, call_id)

    def is_refusal(self, text: str) -> bool:
        """Return True if a text is the result of a call that was not made."""
        with self._lock:
            return any(repeats.is_refusal(text) for repeats in self._repeats.values())

    def check(self) -> None:
        """Check the calls of the run and of its members; see `RepeatedCalls.check`."""
        if self._is_active:
            with self._lock:
                for repeats in self._repeats.values():
                    repeats.check()

    def _find(self, key: str) -> RepeatedCalls:
        if key not in self._repeats:
            # A member whose report begins later has no calls of earlier legs.
            self._repeats[key] = RepeatedCalls(self._limits)
        return self._repeats[key]
