"""The messages that were sent to a run, on their way into the state of its graph.

A message is inserted between two steps of the root graph, when the results of all calls of tools
are in the state, and the next step has a node that calls models. The stream of the graph stops
there, and another one continues with an update of the `messages`. The message is a part of the run
once a model call has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph._internal._constants import CONF, CONFIG_KEY_RESUMING, NS_END, NS_SEP, PULL
from langgraph.graph import add_messages
from langgraph.pregel._loop import PregelLoop
from langgraph.runtime import RunControl
from langgraph.types import Command

from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_callbacks import MIDDLEWARE
from agentctl.runtime.runners.langgraph_input import MESSAGES
from agentctl.runtime.runners.langgraph_messages import find_open_calls, read_text
from agentctl.runtime.transcript.events import MessageDelivered


class GraphInbox:
    """The messages to one leg of a run.

    Args:
        run: the run of the root graph.
        is_public: returns True for a graph whose messages are part of the state of the root graph.
        is_open: False for a graph that takes no messages (`find_message_obstacle`).

    Attributes:
        sent_ids: the ids of the messages that were inserted, as far as this leg knows them.
        has_stopped: True once the stream of the graph has stopped for messages, until they are
            taken.
        steps_left: the `recursion_limit` of the stream that continues, so that the graph takes no
            more steps than without a message.
    """

    def __init__(
        self, run: HostedRun, is_public: Callable[[tuple[str, ...]], bool], *, is_open: bool
    ) -> None:
        self.sent_ids: set[str] = set()
        self.has_stopped = False
        self.steps_left = 0

        self._callers: set[str] = set()
        """The names of the nodes of the root graph that have called models with its messages."""
        self._run = run
        self._is_public = is_public
        self._is_open = is_open
        self._inserted: dict[str, MessageDelivered] = {}
        """The messages in the state of the graph that no model call has got so far."""

    def to_json(self) -> dict[str, Any]:
        """Return what the next leg needs to know."""
        inserted = [asdict(message) for message in self._inserted.values()]
        return {"callers": sorted(self._callers), "inserted": inserted}

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Take over what `to_json` has returned; nothing for an earlier version."""
        self._callers |= {*stored.get("callers", ())}
        for values in stored.get("inserted", ()):
            self._keep(MessageDelivered(**values))

    def _keep(self, message: MessageDelivered) -> None:
        self._inserted[message.message_id] = message
        self.sent_ids.add(message.message_id)

    def is_due(self, loop: Any) -> bool:
        """Return True if messages wait, and the next step of the root graph may get them.

        Args:
            loop: the loop of the graph, which has prepared the tasks of the step.
        """
        if not self._is_open or not self._run.environment.has_messages:
            return False

        tasks = [*loop.tasks.values()]
        # The answers of people to a task are not stored before the task has read them, and a step
        # that an earlier leg has begun must end with what is left of it.
        if _is_answering(loop) or any(task.writes for task in tasks):
            return False

        # A graph that continues makes such a subgraph continue as well, without its new input.
        if any(_has_lasting_subgraph(loop.nodes.get(task.name)) for task in tasks):
            return False

        # A task of `Send` gets the value that was sent to it, and not the messages of the state.
        node_names = {task.name for task in tasks if task.path[0] == PULL}
        if not node_names & self._callers:
            return False

        messages = loop.channels[MESSAGES]
        return messages.is_available() and not find_open_calls(messages.get())

    async def take(self) -> list[HumanMessage]:
        """Take the messages that wait, in the form of the state. The caller inserts them.

        A message that was inserted before has the same id, so the state has it once.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        self.has_stopped = False
        if not self._is_open:
            return []

        taken_messages = await self._run.recorder.take_messages()
        for message in taken_messages:
            self._keep(message)
        return [HumanMessage(message.content, id=message.message_id) for message in taken_messages]

    async def note_call(
        self, call_id: str | None, request: Sequence[BaseMessage], metadata: Mapping[str, Any]
    ) -> None:
        """Note that a model is about to be called: what it gets of the messages is delivered.

        Args:
            call_id: the id of the call in the run; None for a call of a member.
            request: the messages that the model gets.
            metadata: has the place of the call in the graph.
        """
        names = tuple((metadata.get("langgraph_checkpoint_ns") or "").split(NS_SEP))
        if self._is_public(names[:-1]) and metadata.get("lc_source") not in MIDDLEWARE:
            self._callers.add(names[0].partition(NS_END)[0])

        received = [message for message in self._inserted.values() if _is_among(message, request)]
        for message in received:
            del self._inserted[message.message_id]
            self._run.add_message(replace(message, model_call_id=call_id))

        for message in received:
            if call_id != message.model_call_id:
                await self._run.environment.name_model_call(message.message_id, call_id)

    def keep_rest(self) -> None:
        """Make the messages a part of the run that its thread has, but no model call has got.

        For a graph with its own checkpointer: the next run of the session has them in any case.
        """
        if self._run.environment.has_ended:
            return

        for message in self._inserted.values():
            self._run.recorder.add_message(replace(message, model_call_id=None))
        self._inserted = {}


class InboxControl(RunControl):  # type: ignore[misc]
    """The control of the root graph of a run, which also stops it for messages.

    LangGraph hands it on to the graphs below, which do not stop.
    """

    __slots__ = ("inbox",)

    def __init__(self, inbox: GraphInbox) -> None:
        super().__init__()
        self.inbox = inbox


def find_message_obstacle(graph: Any) -> str | None:
    """Return a sentence about why a compiled graph takes no messages; None if it takes them.

    Only `add_messages` adds a message once, by its id. Nodes of other graphs than a `StateGraph`
    may begin because of an update.
    """
    reducer = getattr(graph.channels.get(MESSAGES), "operator", None)
    if hasattr(graph, "builder") and reducer is add_messages:
        return None
    return "A graph without messages (add_messages) in its state takes no messages while it works"


def build_update(messages: Sequence[HumanMessage]) -> Command | None:
    """Return the input with which a graph continues after it has stopped for messages."""
    # Unlike an update as a node, this does not decide again which nodes are next.
    return Command(update={MESSAGES: [*messages]}) if messages else None


def _is_among(message: MessageDelivered, request: Sequence[BaseMessage]) -> bool:
    """Return True if the request to a model has a message.

    A node may also write the texts of the state into a prompt of its own.
    """
    return any(
        each.id == message.message_id or message.content in read_text(each) for each in request
    )


def _is_answering(loop: Any) -> bool:
    """Return True in the first step of a stream that has begun with the answers of people."""
    is_answer = isinstance(loop.input, Command) and loop.input.resume is not None
    return is_answer and CONFIG_KEY_RESUMING in loop.config[CONF]


def _has_lasting_subgraph(node: Any) -> bool:
    """Return True for a node with a subgraph that keeps its state between two calls."""
    subgraphs = () if node is None else node.subgraphs
    return any(getattr(subgraph, "checkpointer", None) is True for subgraph in subgraphs)


def _replace_tick() -> None:
    """Let the root graph of a run stop for messages, as it does for a drain."""
    tick: Any = PregelLoop.tick

    @functools.wraps(tick)
    def tick_or_stop(self: Any) -> Any:
        goes_on = tick(self)
        control = self.control
        if not goes_on or self.is_nested or not isinstance(control, InboxControl):
            return goes_on

        if not control.inbox.is_due(self):
            return True

        # The tasks of the next step are prepared, and do not begin. LangGraph stores the state.
        control.inbox.has_stopped = True
        # `stop` is one more than the limit after the first step; LangGraph refuses a limit of 0.
        control.inbox.steps_left = max(self.stop - self.step - 1, 1)
        self.status = "draining"
        return False

    setattr(PregelLoop, "tick", tick_or_stop)  # noqa: B010


_replace_tick()
