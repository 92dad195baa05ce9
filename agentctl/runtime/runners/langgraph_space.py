"""Reports what one graph does, the root graph or a member: its answers, tool calls and result.

The state of a graph is the truth: its new messages, in their order, are the answers and results of
its run. Text of models is published while it arrives, one answer at a time; the content of a
completed run has the messages that reached the state, and no others.

Answers that arrive at the same time wait for the one that is published, with all of their pieces.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import orjson
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from agentctl.records.times import now_in_seconds
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import NotSerializable, to_json_value
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_callbacks import ModelCalls
from agentctl.runtime.runners.langgraph_messages import (
    extract_usage,
    find_messages,
    read_messages,
    read_text,
    read_thinking,
)
from agentctl.runtime.runners.library_runner import DecidedCalls
from agentctl.runtime.runners.repeat_gate import RepeatGate
from agentctl.runtime.transcript.history import build_tool_message

_log = logging.getLogger("agentctl.runtime")

MAXIMUM_ARGUMENTS = 2**31

NO_RESULT = "no result"
"""The result of a call for which no node of a completed graph has made one."""


@dataclass(slots=True)
class GraphFacts:
    """The shared facts of the graphs of a run."""

    model_calls: ModelCalls
    gate: RepeatGate

    decided: DecidedCalls
    """The calls of the pause before this leg, by their ids."""

    outputs: Sequence[str] | None = None
    """The keys that the root graph returns; None for all of its state."""

    sent_ids: Container[str] = ()
    """The ids of the messages that were sent to the run and are in the state of the graph."""

    members: dict[str, str] = field(default_factory=dict)
    """The runs of the members that have made messages, by the ids of these."""

    results: dict[str, str] = field(default_factory=dict)
    """The published results of calls, by their ids."""

    ended: list[tuple[str, str, bool]] = field(default_factory=list)
    """The approved calls whose results have reached a state: the id, the text, and whether the call
    failed."""


class GraphSpace:
    """Reports the parts of the stream of one graph.

    Args:
        key: its `checkpoint_ns`; empty for the root graph.
        stored: its state at the pause before this leg.

    Attributes:
        run: its run: the run of the root graph, or of a member.
        failure: the failure of one of its nodes.
    """

    def __init__(
        self,
        key: str,
        run: HostedRun,
        facts: GraphFacts,
        checkpoint: Mapping[str, Any] | None = None,
    ) -> None:
        self.key = key
        self.run = run
        self.failure: ExecutionError | None = None
        self.state: Any = None

        self._facts = facts
        self._has_input = checkpoint is not None

        self._seen: set[str] = set(checkpoint["seen"]) if checkpoint else set()
        self._given: set[str] = set(checkpoint["given"]) if checkpoint else set()
        begun_answers = set(checkpoint["streamed"]) if checkpoint else set()
        self._answers = _AnswerStream(run, facts.model_calls, begun_answers)

        self._called: set[str] = set(checkpoint["called"]) if checkpoint else set()
        self._kept: dict[str, dict[str, Any]] = dict(checkpoint["root"]) if checkpoint else {}

    def skip_input(self, messages: Iterable[Any]) -> None:
        """Take the first state as a result: a functional graph does not report its input."""
        self._has_input = True
        for message in messages:
            message.id = message.id or str(uuid4())
            self._seen.add(message.id)
            self._given.add(message.id)

    def to_json(self) -> dict[str, Any]:
        """Return the state of the report for the next leg."""
        return {
            "seen": sorted(self._seen),
            "given": sorted(self._given),
            "streamed": sorted(self._answers.begun),
            "called": sorted(self._called),
            "root": self._kept,
        }

    def stream(self, piece: Any, origin: Mapping[str, str]) -> None:
        """Publish a piece of an answer, after the answers that came before it.

        Args:
            origin: the fields `node`, `message_id` and `member_run_id` of the event.
        """
        if (answer := origin["message_id"]) not in self._seen:
            self._answers.add(piece, answer, origin)

    def think(self, message: AIMessage) -> None:
        """Publish the thinking of a whole answer that was not streamed."""
        thinking = read_thinking(message)
        if thinking and message.id not in self._answers.begun:
            self.run.recorder.begin_thinking()
            self.run.add_thinking(thinking)

    def add_state(self, state: Any) -> None:
        """Report the new messages of a state. The first state of a graph is its input."""
        is_input = not self._has_input
        self._has_input = True
        self.state = state

        for index, message in enumerate(read_messages(state)):
            key = message.id or f"{self.key}#{index}"
            is_new = key not in self._seen
            self._seen.add(key)

            if is_input:
                self._given.add(key)
                continue

            if key not in self._given:
                self._keep(key, message)

            if is_new and key not in self._facts.members:
                if self.key:
                    self._facts.members[key] = self.run.environment.spec.run_id
                self._add_new(message, key)

    def _add_new(self, message: Any, key: str) -> None:
        if isinstance(message, ToolMessage):
            self.end_tool(message)
        elif isinstance(message, AIMessage):
            for call in message.tool_calls:
                call_id = call["id"] or ""
                if key not in self._called and not self.run.transcript.is_open(call_id):
                    self.run.start_call(call_id, call["name"], call["args"])
            self._called.add(key)
            if message.usage_metadata is not None and not self._facts.model_calls.has_usage:
                self.run.environment.add_usage(extract_usage(message.usage_metadata))

    def _keep(self, key: str, message: Any) -> None:
        """Keep a message, in the order in which the messages appear."""
        known_entry = self._kept.get(key)
        member = self._facts.members.get(key)
        entry = self._build_entry(
            message, known_entry["created_at"] if known_entry else now_in_seconds()
        )

        if entry is None:
            return

        if member is not None and member != self.run.environment.spec.run_id:
            entry["member_run_id"] = member

        self._kept[key] = entry

        if known_entry is None and entry["role"] == "assistant":
            answer = self._facts.model_calls.find_answer(key)
            if answer not in self._answers.begun:
                self._answers.begun.add(answer)
                if entry["content"]:
                    origin = {"message_id": answer} if message.id else {}
                    if "member_run_id" in entry:
                        origin["member_run_id"] = entry["member_run_id"]
                    self.run.begin_answer()
                    self.run.add_text(entry["content"], origin)

            self._answers.drop(answer)

    def _build_entry(self, message: Any, created_at: int) -> dict[str, Any] | None:
        if isinstance(message, ToolMessage):
            call_id = message.tool_call_id
            text = self._facts.results.get(call_id) or read_text(message)
            return build_tool_message(call_id, message.name or "", text, created_at)

        if isinstance(message, HumanMessage) and message.id in self._facts.sent_ids:
            entry = {"role": "user", "content": read_text(message), "created_at": created_at}
            return {**entry, "message_id": message.id}

        if not isinstance(message, AIMessage):
            return None

        calls = [
            {"id": call["id"] or "", "name": call["name"], "arguments": _to_arguments(call["args"])}
            for call in message.tool_calls
        ]

        text = read_text(message)
        return {"role": "assistant", "content": text, "created_at": created_at, "tool_calls": calls}

    def end_tool(self, message: ToolMessage) -> None:
        """Report the result of an open call."""
        call_id = message.tool_call_id
        failed = message.status == "error"

        if not self.run.transcript.is_open(call_id):
            return

        text = read_text(message)
        if failed and not self._facts.gate.is_refusal(text):
            # The text of a failed call may be the text of an exception.
            text, _ = self._facts.decided.settled.get(
                call_id, (f"The tool {message.name} failed", True)
            )
            self._facts.results[call_id] = text

        if call_id in self._facts.decided.approved:
            self._facts.ended.append((call_id, text, failed))

        self.run.end_call(call_id, text, failed=failed)

    async def end(self) -> None:
        """Report the end of the graph: the order of its messages, and its result."""
        for call_id in [*self.run.transcript.open_calls]:
            # The outcome of an approved call is not known: it is not stored as done.
            self.run.end_call(call_id, NO_RESULT, failed=False)

        if find_messages(self.state) is not None:
            self.run.replace_answers(self._list_answers())

        state = self.state
        name = "structured_response"
        result = state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)

        if result is None and not self.key:
            result = await self._read_results()

        if result is not None:
            await self.run.set_output(result)
            if not self.run.transcript.content:
                self.run.add_text(self.run.output_text)

    async def _read_results(self) -> Any:
        """Return what the root graph returns, except for its messages; None if that is nothing.

        Of a graph with messages, a value without a JSON form is left out, or one that is too large:
        the messages are its main result.
        """
        state = self.state
        names = self._facts.outputs
        is_mapping = isinstance(state, Mapping)
        if names is None:
            names = [*state] if is_mapping else []
        if find_messages(state) is None:
            return {name: state[name] for name in names if name in state} if is_mapping else state

        values = {}
        size = 0
        for name in names:
            value = state.get(name) if is_mapping else getattr(state, name, None)
            if name == "messages" or value is None:
                continue
            try:
                values[name] = await self.run.convert(value, size)
            except NotSerializable:
                run_id = self.run.environment.spec.run_id
                _log.warning("run %s: %s is left out of its output: no JSON of it", run_id, name)
                continue
            size += len(orjson.dumps({name: values[name]}))
        return values or None

    def _list_answers(self) -> list[dict[str, Any]]:
        """Return the answers and results of the graph; every call has a result.

        The messages that were sent to the run, and that a model call has got, are in their places.
        """
        answers: list[dict[str, Any]] = []
        message_ids = self.run.transcript.message_ids
        results = {
            entry["tool_call_id"] for entry in self._kept.values() if entry["role"] == "tool"
        }

        for entry in self._kept.values():
            if entry["role"] == "user" and entry["message_id"] not in message_ids:
                continue

            answers.append(entry)

            for call in entry.get("tool_calls", ()):
                if call["id"] not in results:
                    at = entry["created_at"]
                    open_result = build_tool_message(call["id"], call["name"], NO_RESULT, at)
                    if "member_run_id" in entry:
                        open_result["member_run_id"] = entry["member_run_id"]
                    answers.append(open_result)

        return answers


def _to_arguments(arguments: Any) -> Any:
    try:
        return to_json_value(arguments, MAXIMUM_ARGUMENTS)
    except NotSerializable:
        return {}


@dataclass(slots=True)
class _Waiting:
    """The pieces of an answer that waits for another answer."""

    origin: Mapping[str, str]
    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    size: int = 0


class _AnswerStream:
    """The streamed answers of one graph.

    Args:
        begun: ids of the answers whose text was published before this leg.

    Attributes:
        begun: ids of the answers of which some text is published.
    """

    def __init__(self, run: HostedRun, model_calls: ModelCalls, begun_answers: set[str]) -> None:
        self.begun = begun_answers

        self._run = run
        self._model_calls = model_calls

        self._live: str | None = None
        self._waiting: dict[str, _Waiting] = {}
        self._waiting_size = 0
        self._ended: set[str] = set()
        self._opened: set[str] = set()
        """The ids of the answers of which some text or thinking is published in this leg."""

    def add(self, piece: Any, answer: str, origin: Mapping[str, str]) -> None:
        """Publish a piece of an answer, or keep it while another answer is published.

        Args:
            answer: the id of the answer.
            origin: the fields `node`, `message_id` and `member_run_id` of the event.
        """
        if answer in self._ended:
            return

        if self._live is not None and self._live in self._model_calls.failed:
            self._end(self._live)

        if self._live is None:
            self._live = answer

        text = read_text(piece)
        thinking = read_thinking(piece)

        if answer == self._live:
            self._publish(answer, text, thinking, origin)
        else:
            self._keep(answer, text, thinking, origin)

        # The callback at the end of a call comes before its last pieces are read here.
        if piece.chunk_position == "last":
            if answer == self._live:
                self._run.complete_answer()
            self._end(answer)

    def drop(self, answer: str) -> None:
        """Forget an answer that is known as a whole."""
        if (pieces := self._waiting.pop(answer, None)) is not None:
            self._waiting_size -= pieces.size
        self._end(answer)

    def _end(self, answer: str) -> None:
        self._ended.add(answer)

        if answer == self._live:
            self._live = None

        while self._waiting and self._live is None:
            following = next(iter(self._waiting))
            pieces = self._waiting.pop(following)
            self._waiting_size -= pieces.size

            if following in self._model_calls.failed:
                continue

            if following not in self._ended:
                self._live = following

            texts = "".join(pieces.texts)
            thinking = "".join(pieces.thinking)
            self._publish(following, texts, thinking, pieces.origin)

    def _publish(self, answer: str, text: str, thinking: str, origin: Mapping[str, str]) -> None:
        if (text or thinking) and answer not in self._opened and answer not in self.begun:
            self._opened.add(answer)
            self._run.begin_answer()

        if thinking:
            self._run.add_thinking(thinking)
        if text:
            self.begun.add(answer)
            self._run.add_text(text, origin)

    def _keep(self, answer: str, text: str, thinking: str, origin: Mapping[str, str]) -> None:
        size = len(text) + len(thinking)
        self._waiting_size += size
        self._run.recorder.check_room(self._waiting_size)

        waiting_answer = self._waiting.setdefault(answer, _Waiting(origin))
        waiting_answer.size += size
        waiting_answer.texts.append(text)
        waiting_answer.thinking.append(thinking)
