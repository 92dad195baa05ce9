"""The gate of a graph's tool calls: it counts the calls of each graph, and refuses repetitions.

The calls of an answer are known when the model has ended, before a node makes them. Graphs below
the root graph are counted separately, by their `checkpoint_ns`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from langchain_core.messages import ToolMessage

from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls


class GraphGate:
    """The calls of one leg of a graph. Synchronous nodes work in threads, and so does the gate.

    Args:
        run: the run of the root graph.
        approved: the ids of the calls that a person has approved: they are made.

    Attributes:
        find_run: returns the run of the graph with a `checkpoint_ns`; None if it has none yet.
    """

    def __init__(self, run: HostedRun, approved: Container[str]) -> None:
        self.find_run: Callable[[str], HostedRun | None] = {"": run}.get
        self._limits = run.repeats.limits
        self._is_active = run.repeats.limits.is_active
        self._run = run
        self._approved = approved
        self._repeats: dict[str, RepeatedCalls] = {}
        self._lock = threading.Lock()

    def add_answer(self, key: str, calls: Iterable[Mapping[str, Any]]) -> None:
        """Count the calls of an answer: `id`, `name` and `args` of each.

        Args:
            key: the `checkpoint_ns` of the graph that has called the model.
        """
        if not self._is_active:
            return
        described = [
            self._run.describe_call(call["id"] or "", call["name"], call["args"]) for call in calls
        ]
        with self._lock:
            self._find(key).add_answer(described)

    def refuse(self, namespace: str, call_id: str, tool: str) -> ToolMessage | None:
        """Return the result of a call that must not be made; None for one that is to be made.

        Args:
            namespace: the `checkpoint_ns` of the task that makes the call.
        """
        if not self._is_active or call_id in self._approved:
            return None
        key, _, _ = namespace.rpartition("|")
        with self._lock:
            refusal = self._find(key).find_refusal(call_id)
        if refusal is None:
            return None
        return ToolMessage(refusal, tool_call_id=call_id, name=tool, status="error")

    def is_refusal(self, text: str) -> bool:
        """Return True if a text is the result of a call that was not made."""
        with self._lock:
            return any(repeats.is_refusal(text) for repeats in self._repeats.values())

    def check(self) -> None:
        """Check the calls of all graphs; see `RepeatedCalls.check`."""
        if self._is_active:
            with self._lock:
                for repeats in self._repeats.values():
                    repeats.check()

    def _find(self, key: str) -> RepeatedCalls:
        if key not in self._repeats:
            run = self.find_run(key)
            # A graph whose run begins later has no calls of earlier legs.
            self._repeats[key] = RepeatedCalls(self._limits) if run is None else run.repeats
        return self._repeats[key]
