"""Reports what a graph does: its answers, its tool calls, its interrupts and its result.

The state of the root graph is the truth: its new messages, in their order, are the answers and
results of the run. Text of models is published while it arrives, one answer at a time; the content
of a completed run has the messages that reached the state, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage

from agentctl.records.times import now, whole_seconds
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import NotSerializable, to_json_value
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_callbacks import ModelCalls
from agentctl.runtime.runners.langgraph_messages import (
    extract_usage,
    read_messages,
    read_text,
    read_thinking,
)
from agentctl.runtime.runners.library_failures import ToolCalls

MAXIMUM_ARGUMENTS = 2**31

NO_RESULT = "no result"
"""The result of a call for which no node of a completed graph has made one."""


@dataclass(frozen=True, slots=True)
class EndedCall:
    """An approved call whose result has reached the state of a graph."""

    call_id: str
    text: str
    failed: bool


@dataclass(slots=True)
class FoundInterrupt:
    """An interrupt, and the calls of the newest answer of its graph."""

    value: Any
    calls: list[Any] = field(default_factory=list)


class GraphReport:
    """Reports the parts of the stream of a graph.

    Args:
        model_calls: the calls of models so far.
        refusals: the texts of the calls that were rejected, by their ids.
        is_approved: returns True for the id of an approved call.
        stored: the state of the report at the pause before this leg.

    Attributes:
        calls: the tool calls so far.
        interrupts: the interrupts of this leg, by their ids.
    """

    def __init__(
        self,
        run: HostedRun,
        model_calls: ModelCalls,
        refusals: Mapping[str, str],
        is_approved: Callable[[str], bool],
        stored: Mapping[str, Any] | None,
    ) -> None:
        self.calls = ToolCalls(run)
        self.interrupts: dict[str, FoundInterrupt] = {}
        self._ended: list[EndedCall] = []
        self._run = run
        self._model_calls = model_calls
        self._refusals = refusals
        self._is_approved = is_approved
        self._live: str | None = None
        self._stops_before_nodes = False
        self._state: Any = None
        self._spaces: set[tuple[str, ...]] = set()
        self._paused_spaces: set[tuple[str, ...]] = set()
        self._seen: set[str] = set(stored["seen"]) if stored else set()
        self._given: set[str] = set(stored["given"]) if stored else set()
        self._streamed: set[str] = set(stored["streamed"]) if stored else set()
        self._called: set[str] = set(stored["called"]) if stored else set()
        self._root: dict[str, dict[str, Any]] = dict(stored["root"]) if stored else {}
        self._continues = stored is not None

    def to_json(self) -> dict[str, Any]:
        """Return the state of the report for the next leg."""
        return {
            "seen": sorted(self._seen),
            "given": sorted(self._given),
            "streamed": sorted(self._streamed),
            "called": sorted(self._called),
            "root": self._root,
        }

    def add(self, part: Mapping[str, Any]) -> None:
        """Report one part: a message or a piece of one, the updates of a node, or a state."""
        kind, space = part["type"], tuple(part["ns"])
        if kind == "messages":
            self._add_message(part["data"][0])
        elif kind == "updates":
            if "__interrupt__" in part["data"] and not part["data"]["__interrupt__"]:
                self._stops_before_nodes = True
        else:
            self._add_state(space, part["data"])
            for interrupt in part.get("interrupts", ()):
                self._add_interrupt(space, interrupt, part["data"])

    def take_ended(self) -> list[EndedCall]:
        """Return the approved calls that have ended since the last call of this method."""
        ended, self._ended = self._ended, []
        return ended

    async def end(self) -> None:
        """Report the end of the graph.

        Raises:
            ExecutionError: the graph stops before or after a node (`interrupt_before`).
        """
        if self._stops_before_nodes:
            raise ExecutionError("INTERRUPTED")
        for call_id in [*self._run.open_calls]:
            # The outcome of an approved call is not known: it is not stored as done.
            self.calls.end(call_id, NO_RESULT, failed=False)
        self._run.replace_answers(self._list_answers())
        result = read_field(self._state, "structured_response")
        if result is not None:
            await self._run.set_output(result)
            if not self._run.content:
                self._run.add_text(self._run.output_text)

    def _add_interrupt(self, space: tuple[str, ...], interrupt: Any, state: Any) -> None:
        # The graph of the node comes first, then those around it.
        self._paused_spaces.add(space)
        if interrupt.id in self.interrupts:
            return
        answers = (
            message for message in reversed(read_messages(state)) if isinstance(message, AIMessage)
        )
        calls: list[Any] = next(
            (message.tool_calls for message in answers if message.tool_calls), []
        )
        self.interrupts[interrupt.id] = FoundInterrupt(interrupt, calls)

    def _add_message(self, message: Any) -> None:
        if isinstance(message, ToolMessage):
            self._end_tool(message)
        elif isinstance(message, AIMessageChunk):
            self._stream(message)
        elif isinstance(message, AIMessage) and message.id not in self._streamed:
            self._run.add_thinking(read_thinking(message))

    def _stream(self, piece: Any) -> None:
        """Publish a piece of an answer, unless another answer arrives at this time.

        The others are published as a whole, when they reach the state.
        """
        if piece.id is None or piece.id in self._model_calls.inner or piece.id in self._seen:
            return
        if piece.id != self._live:
            if self._live is not None and self._live not in self._model_calls.ended:
                return
            self._live = piece.id
        self._run.add_thinking(read_thinking(piece))
        if text := read_text(piece):
            if piece.id not in self._streamed:
                self._streamed.add(piece.id)
                self._run.begin_answer()
            self._run.add_text(text)

    def _add_state(self, space: tuple[str, ...], state: Any) -> None:
        if space in self._paused_spaces:
            # Results of the other nodes of this step; they come again when the graph goes on.
            return
        is_root = not space
        # The first state of a graph is its input. That of the root graph of a later leg is what the
        # leg before it has reported.
        is_input = space not in self._spaces and not (self._continues and is_root)
        self._spaces.add(space)
        if is_root:
            self._state = state
        for index, message in enumerate(read_messages(state)):
            key = message.id or f"{'|'.join(space)}#{index}"
            is_new = key not in self._seen
            self._seen.add(key)
            if is_input:
                if is_root:
                    self._given.add(key)
                continue
            if is_root and key not in self._given:
                self._keep(key, message)
            if is_new:
                self._add_new(message, key)

    def _add_new(self, message: Any, key: str) -> None:
        if isinstance(message, ToolMessage):
            self._end_tool(message)
        elif isinstance(message, AIMessage):
            for call in message.tool_calls:
                call_id = call["id"] or ""
                if key not in self._called and call_id not in self._run.open_calls:
                    self.calls.start(call_id, call["name"], call["args"])
            self._called.add(key)
            if message.usage_metadata is not None and not self._model_calls.has_usage:
                self._run.add_usage(extract_usage(message.usage_metadata))

    def _keep(self, key: str, message: Any) -> None:
        """Keep a message of the root graph, in the order in which the messages appear."""
        kept = self._root.get(key)
        entry = _build_entry(message, kept["created_at"] if kept else whole_seconds(now()))
        if entry is None:
            return
        self._root[key] = entry
        if kept is None and entry["role"] == "assistant" and key not in self._streamed:
            self._streamed.add(key)
            if entry["content"]:
                self._run.begin_answer()
                self._run.add_text(entry["content"])

    def _list_answers(self) -> list[dict[str, Any]]:
        """Return the answers and results of the root graph; every call has a result."""
        answers: list[dict[str, Any]] = []
        results = {e["tool_call_id"] for e in self._root.values() if e["role"] == "tool"}
        for entry in self._root.values():
            answers.append(entry)
            for call in entry.get("tool_calls", ()):
                if call["id"] not in results:
                    answers.append(
                        {
                            "role": "tool",
                            "content": NO_RESULT,
                            "created_at": entry["created_at"],
                            "tool_call_id": call["id"],
                            "tool_name": call["name"],
                        }
                    )
        return answers

    def _end_tool(self, message: Any) -> None:
        call_id, failed = message.tool_call_id, message.status == "error"
        text = read_text(message)
        if failed:
            # The text of a failed call may be that of an exception.
            text = self._refusals.get(call_id, f"The tool {message.name} failed")
        self._end_call(call_id, text, failed=failed)

    def _end_call(self, call_id: str, text: str, *, failed: bool) -> None:
        if call_id not in self._run.open_calls:
            return
        self.calls.end(call_id, text, failed=failed)
        if self._is_approved(call_id):
            self._ended.append(EndedCall(call_id, text, failed))


def read_field(state: Any, name: str) -> Any:
    """Return a value of the state of a graph, which is a mapping or an object."""
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)


def _to_arguments(arguments: Any) -> Any:
    try:
        return to_json_value(arguments, MAXIMUM_ARGUMENTS)
    except NotSerializable:
        return {}


def _build_entry(message: Any, created_at: int) -> dict[str, Any] | None:
    if isinstance(message, ToolMessage):
        return {
            "role": "tool",
            "content": read_text(message),
            "created_at": created_at,
            "tool_call_id": message.tool_call_id,
            "tool_name": message.name or "",
        }
    if not isinstance(message, AIMessage):
        return None
    calls = [
        {"id": call["id"] or "", "name": call["name"], "arguments": _to_arguments(call["args"])}
        for call in message.tool_calls
    ]
    text = read_text(message)
    return {"role": "assistant", "content": text, "created_at": created_at, "tool_calls": calls}
