"""Reports what a graph and its subgraphs do, from the parts of its stream.

The root graph is the run. Each graph below it is a member: a graph that is a node, and a graph that
the code of a node or of a tool calls. Graphs that one execution of a node calls one after the other
are one member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_callbacks import (
    ModelCalls,
    describe_value,
    publish_progress,
)
from agentctl.runtime.runners.langgraph_inbox import GraphInbox
from agentctl.runtime.runners.langgraph_messages import read_messages, read_text
from agentctl.runtime.runners.langgraph_space import GraphFacts, GraphSpace
from agentctl.runtime.runners.library_members import LibraryMembers
from agentctl.runtime.runners.library_runner import DecidedCalls, to_public_failure
from agentctl.runtime.runners.repeat_gate import RepeatGate

_TASK_BYTES = 16_384
"""Maximum JSON of the state that is the input of a member without messages."""

SEPARATOR = "|"
"""Separates the graphs in a `checkpoint_ns`."""


class GraphReport:
    """Reports the parts of the stream of a graph.

    Args:
        decided: the calls of the pause before this leg, by their ids.
        outputs: the keys that the graph returns; None for all of its state.
        is_public: returns True for a graph whose messages are part of the state of the root graph.
        inbox: the messages that were sent to the run.
        stored: the state of the report at the pause before this leg.

    Attributes:
        interrupts: the interrupts of this leg by their ids, each with the calls of the newest
            answer of its graph.
    """

    def __init__(
        self,
        run: HostedRun,
        model_calls: ModelCalls,
        gate: RepeatGate,
        decided: DecidedCalls,
        outputs: Sequence[str] | None,
        is_public: Callable[[tuple[str, ...]], bool],
        inbox: GraphInbox,
        checkpoint: Mapping[str, Any] | None,
    ) -> None:
        self.interrupts: dict[str, tuple[Any, list[Any]]] = {}
        self._model_calls = model_calls
        self._is_public = is_public
        self._inbox = inbox
        self._facts = GraphFacts(model_calls, gate, decided, outputs, inbox.sent_ids)

        self._root = GraphSpace("", run, self._facts, checkpoint)
        self._members = LibraryMembers(run)
        self._spaces: dict[str, GraphSpace] = {"": self._root}

        self._stops_before_nodes = False
        self._paused_spaces: set[tuple[str, ...]] = set()
        self._failures: list[tuple[BaseException, Exception]] = []

        self._stored = checkpoint or {}
        self._facts.members |= self._stored.get("owners", {})
        inbox.restore(self._stored.get("inbox", {}))

        self._gate = gate
        model_calls.find_run = self._find_run

    async def restore(self) -> None:
        """Continue with the members of the pause before this leg."""
        await self._members.restore(self._stored.get("members", ()))
        for key, checkpoint in self._stored.get("spaces", {}).items():
            if (member := self._members.find(key)) is not None:
                self._gate.adopt(key, member.run)
                self._spaces[key] = GraphSpace(key, member.run, self._facts, checkpoint)

    def skip_input(self, messages: Sequence[Any]) -> None:
        """Take the first state of the root graph as its result; see `GraphSpace.skip_input`."""
        self._root.skip_input(messages)

    def to_json(self) -> dict[str, Any]:
        """Return the state of the report for the next leg."""
        open_members = self._members.to_json()
        spaces = {entry["key"]: self._spaces[entry["key"]].to_json() for entry in open_members}
        below = {"members": open_members, "spaces": spaces, "owners": self._facts.members}
        return {**self._root.to_json(), **below, "inbox": self._inbox.to_json()}

    async def add(self, part: Mapping[str, Any]) -> None:
        """Report one part of the stream."""
        kind = part["type"]
        names = tuple(part["ns"])
        data = part["data"]

        if kind == "messages":
            self._add_message(names, *data)
        elif kind == "updates":
            if "__interrupt__" in data and not data["__interrupt__"]:
                self._stops_before_nodes = True
        elif kind == "custom":
            publish_progress(self._find_space(names).run, data)
        elif kind == "tasks":
            await self._add_task(names, data)
        else:
            if names not in self._paused_spaces:
                # Else the results of the other nodes of this step: they come again when the graph
                # continues.
                self._find_space(names, data).add_state(data)

            for interrupt in part.get("interrupts", ()):
                self._add_interrupt(names, interrupt, data)

    def take_ended(self) -> list[tuple[str, str, bool]]:
        """Return the approved calls that have ended since the last time; see `GraphFacts`."""
        ended_calls = self._facts.ended
        self._facts.ended = []
        return ended_calls

    def classify(self, error: Exception) -> Exception:
        """Return the public failure of the graph; see `to_public_failure`."""
        self._model_calls.adopt_rest(self._root.run)
        return self._classify_in(self._root, error)

    async def end(self) -> None:
        """Report the end of the graph."""
        if self._stops_before_nodes:
            raise ExecutionError("INTERRUPTED")
        for member in reversed(self._members.list_open()):
            await self._end_member(member.key)
        self._model_calls.adopt_rest(self._root.run)
        await self._root.end()

    def _find_run(self, key: str) -> HostedRun | None:
        space = self._spaces.get(key)
        return None if space is None else space.run

    def _find_space(self, names: tuple[str, ...], state: Any = None) -> GraphSpace:
        """Return the report of a graph; a new graph starts its member."""
        key = SEPARATOR.join(names)

        space = self._spaces.get(key)
        if space is None:
            above = self._find_space(names[:-1])

            node, _, _ = names[-1].partition(":")
            name = self._model_calls.graph_names.get(key, node)
            call_id = self._model_calls.tool_calls.get(key)

            member = self._members.start(
                key, name, _describe_task(state), parent=above.key or None, call_id=call_id
            )
            self._gate.adopt(key, member.run)
            space = GraphSpace(key, member.run, self._facts)
            self._spaces[key] = space

        self._model_calls.adopt(key, space.run)
        return space

    def _add_message(
        self, names: tuple[str, ...], message: Any, metadata: Mapping[str, Any]
    ) -> None:
        space = self._find_space(names)

        if isinstance(message, ToolMessage):
            space.end_tool(message)
        elif isinstance(message, AIMessageChunk):
            if message.id is None:
                return

            answer = self._model_calls.find_answer(message.id)
            if answer in self._model_calls.inner:
                return

            node = str(metadata.get("langgraph_node") or "")
            origin = {"node": node, "message_id": answer}
            space.stream(message, origin)

            if space is not self._root and self._is_public(names):
                node, _, _ = names[0].partition(":")
                member = {"node": node, "member_run_id": space.run.environment.spec.run_id}
                self._root.stream(message, {**origin, **member})
        elif isinstance(message, AIMessage):
            space.think(message)

    async def _add_task(self, names: tuple[str, ...], task: Mapping[str, Any]) -> None:
        """Report the end of a node, and the end of the graph that it was or called."""
        if "result" not in task and "error" not in task:
            return

        key = SEPARATOR.join((*names, f"{task['name']}:{task['id']}"))

        error = task.get("error")
        if isinstance(error, Exception):
            space = self._spaces.get(key) or self._find_space(names)
            if space.key and space.failure is None:
                failure = self._classify_in(space, error)
                self._failures.append((error, failure))
                if not isinstance(failure, ExecutionError):
                    failure = ExecutionError("AGENT_FAILED")
                space.failure = failure

        if key in self._spaces and not task.get("interrupts"):
            for message in read_messages(task.get("result")):
                # A handoff: its result is for the graph above, and closes the call of the member.
                if isinstance(message, ToolMessage):
                    self._spaces[key].end_tool(message)
            await self._end_member(key)

    def _classify_in(self, space: GraphSpace, error: Exception) -> Exception:
        """Return the failure of a graph: a failure of a tool, a member or a model."""
        call_id = self._model_calls.find_failed_tool(error, space.run.transcript.open_calls)

        known_failure = next((failure for cause, failure in self._failures if cause is error), None)
        if known_failure is not None and call_id is None:
            return known_failure

        in_model = self._model_calls.has_raised(error)
        return to_public_failure(error, space.run, call_id, in_model=in_model)

    async def _end_member(self, key: str) -> None:
        for inner_key in [name for name in self._spaces if name.startswith(key + SEPARATOR)]:
            await self._end_member(inner_key)

        space = self._spaces.pop(key, None)
        if space is not None:
            self._model_calls.adopt(key, space.run)
            if space.failure is None:
                await space.end()
            self._members.end(key, space.failure)

    def _add_interrupt(self, names: tuple[str, ...], interrupt: Any, state: Any) -> None:
        # The graph of the node comes first, then those around it.
        self._paused_spaces.add(names)

        if interrupt.id in self.interrupts:
            return

        answers = (
            message for message in reversed(read_messages(state)) if isinstance(message, AIMessage)
        )
        calls: list[Any] = next(
            (message.tool_calls for message in answers if message.tool_calls), []
        )

        self.interrupts[interrupt.id] = interrupt, calls


def _describe_task(state: Any) -> str:
    """Return the input of a member: its last message of a person, or its whole state."""
    messages = read_messages(state)
    questions = (message for message in reversed(messages) if isinstance(message, HumanMessage))
    message = next(questions, messages[-1] if messages else None)

    if message is not None:
        return read_text(message)

    return "" if state is None else describe_value(state, _TASK_BYTES)
