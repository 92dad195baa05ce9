"""The calls of one task of a graph: whose question an answer belongs to, and what has ended.

A `ToolNode` is one task for all calls of an answer, which run side by side. LangGraph numbers the
questions of a task in the order in which they arrive, and looks answers up by that number. When the
graph continues, the task runs again, and a call that arrives earlier than before would get the
answer to the question of another one: a person's yes to "delete A?" would delete B, about which
nobody was asked (langchain-ai/langgraph#6626). Calls of the task that have ended, or that still
executed when another one asked, would be made a second time.

Here an answer belongs to the call that has asked, by the id that the model gave it. A question
waits until the other calls of the task have ended, and these keep their results. An answer to other
code of a node belongs to the value of its question (`langgraph_places`).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeAlias

from langchain_core.messages import ToolMessage
from langgraph._internal._constants import (
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    NS_SEP,
    RESUME,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import _algo, _retry
from langgraph.pregel._loop import PregelLoop
from langgraph.types import _interrupt_id

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hidden_files import HiddenFiles
from agentctl.runtime.runners.langgraph_places import Places, TaskPlace, find_place, keeps_order
from agentctl.runtime.runners.repeat_gate import RepeatGate

_log = logging.getLogger("agentctl.runtime")

_Serialized: TypeAlias = tuple[str, bytes]
"""A value as the serializer of LangGraph returns it: the kind of its form, and its data."""

_current: ContextVar[TaskCalls | None] = ContextVar("agentctl_task_calls", default=None)

_subgraph_input: ContextVar[Any] = ContextVar("agentctl_subgraph_input", default=None)
"""The input of the graph that begins."""


class TaskCalls:
    """The calls of tools in one leg of a graph.

    Args:
        stored: what `to_json` returned at the last pause; None in the first leg.
        hidden: the files whose bytes results may have, and not their JSON. It has taken over the
            files of `stored["hidden"]`.
        note_failure: gets each exception that ends a call, and the id of the call.
        gate: refuses calls that must not be made.
        is_durable: True for a run that makes no call again which has ended.
    """

    def __init__(
        self,
        checkpoint: Mapping[str, Any] | None,
        hidden: HiddenFiles,
        note_failure: Callable[[Exception, str], None],
        gate: RepeatGate,
        *,
        is_durable: bool,
    ) -> None:
        checkpoint = checkpoint or {}

        self.note_failure = note_failure
        self.gate = gate
        self._is_durable = is_durable
        self._hidden = hidden
        self._serializer = JsonPlusSerializer(allowed_msgpack_modules=True)

        # Of earlier legs.
        self._questions = _load_questions(checkpoint)
        """The questions, by the namespace of their task and by their numbers."""
        self._answers: dict[str, dict[int, Any]] = {
            space: dict(numbered_answers)
            for space, numbered_answers in checkpoint.get("answers", {}).items()
        }
        """The answers to them, by namespace and number."""
        self._subgraphs = Places(checkpoint.get("subgraphs", {}))
        self._functions = Places(checkpoint.get("functions", {}))
        self._known: dict[str, dict[str, _Serialized]] = {
            namespace: {call_id: self._from_text(text) for call_id, text in results.items()}
            for namespace, results in checkpoint.get("results", {}).items()
        }
        """The serialized results of the calls that ended, by namespace and id."""

        # Of this leg.
        self._asked: dict[str, list[tuple[str, TaskPlace]]] = {}
        """The namespace and the place of each question, by the id of its interrupt: calls that ask
        at the same time get the same id, and the graph reports one."""
        self._ended: dict[str, dict[str, Any]] = {}
        """The results of the calls that have ended, by namespace and id."""
        self._executing: dict[str, set[str]] = {}
        """The ids of the calls that execute and do not ask, by namespace."""
        self._quiet: dict[str, asyncio.Event] = {}
        """Events that are set once no call of a namespace is left in `_executing`."""
        self._step = -1
        """The number of the newest step of the root graph."""

    def use(self) -> None:
        """Bind the calls of tools in the present context, and in the tasks that it starts."""
        _current.set(self)

    def bind(self, options: Mapping[str, Any]) -> BoundCall | None:
        """Return a call that begins; None for one that no answer of a model has requested.

        Args:
            options: the keyword arguments of `BaseTool.run` or `arun`.
        """
        call_id = options.get("tool_call_id")
        config = options.get("config") or {}
        configurable = config.get("configurable") or {}
        namespace = configurable.get(CONFIG_KEY_CHECKPOINT_NS)
        if not call_id or namespace is None or CONFIG_KEY_SCRATCHPAD not in configurable:
            return None
        return BoundCall(self, namespace, call_id, options)

    def begin_step(self, step: int) -> None:
        """Note that the root graph prepares a step: the tasks of earlier steps have ended."""
        if step > self._step:
            self._step = step
            self._subgraphs.forget_used()
            self._functions.forget_used()

    def add_answers(self, answers: Mapping[str, Any]) -> None:
        """Take the answers with which the graph continues, by the ids of their interrupts.

        LangGraph stores an answer when code has read it. A task that had not come to its question
        when another one asked would have to ask a second time.
        """
        for space, questions in self._questions.items():
            known_answers = self._answers.setdefault(space, {})
            for number in questions:
                interrupt_id = _interrupt_id(space, number)
                if interrupt_id in answers:
                    known_answers[number] = answers[interrupt_id]

    def complete_answers(self, namespace: str, answers: list[Any]) -> list[Any]:
        """Return the answers of a task that LangGraph has, and those after it."""
        known_answers = self._answers.get(namespace, {})
        completed = _Answers(answers)

        while len(completed) in known_answers:
            completed.append(known_answers[len(completed)])

        return completed

    def list_answered(self, namespace: str, owner: str, count: int) -> list[TaskPlace]:
        """Return the questions of a call, or of other code of its task, that have an answer.

        Args:
            owner: the id of the call; empty for other code of the task.
            count: the number of the answers of the task.
        """
        questions = self._questions.get(namespace, {})
        answered = [questions.get(number, TaskPlace(number)) for number in range(count)]
        return [question for question in answered if question.owner == owner]

    def number_subgraph(self, namespace: str, owner: str, offered: int) -> int:
        """Return the number of a subgraph that begins, see `Places.take`."""
        is_in_order = keeps_order(owner)
        place = self._subgraphs.take(
            namespace, owner, _subgraph_input.get(), offered, lambda _: is_in_order
        )
        return place.number

    def place_function(self, namespace: str, call: Any, offered: int) -> TaskPlace:
        """Return the place of a call of a function.

        A call whose arguments have changed keeps the result of an earlier leg, as LangGraph does
        it, but does not get the answer of a person.
        """
        name = getattr(call.func, "__qualname__", "")
        value = [name, call.input]
        return self._functions.take(namespace, "", value, offered, lambda each: not each.has_asked)

    def find_result(self, namespace: str, call_id: str) -> _Serialized | None:
        """Return the serialized result of a call that an earlier leg has made."""
        return self._known.get(namespace, {}).get(call_id)

    def load(self, result: _Serialized) -> Any:
        return self._serializer.loads_typed(result)

    def begin(self, namespace: str, call_id: str) -> None:
        """Note that a call executes.

        Raises:
            ExecutionError: a call with this id executes in the same task: nobody could say to which
                of them an answer belongs.
        """
        executing = self._executing.setdefault(namespace, set())
        if call_id in executing:
            detail = "The model has requested two calls with one id"
            raise ExecutionError("MODEL_ANSWER_INVALID", detail)
        executing.add(call_id)

    def end(self, namespace: str, call_id: str) -> None:
        """Note that a call has ended, or asks."""
        executing = self._executing[namespace]
        executing.discard(call_id)
        if not executing and namespace in self._quiet:
            self._quiet.pop(namespace).set()

    async def wait_for_others(self, namespace: str) -> None:
        """Wait until no call of a task executes any more; the first one to ask returns first."""
        if self._executing[namespace]:
            await self._quiet.setdefault(namespace, asyncio.Event()).wait()
        else:
            # `end` has just woken those that asked earlier: they continue before this one.
            await asyncio.sleep(0)

    def note_question(self, namespace: str, question: TaskPlace) -> None:
        """Note that code of a task asks."""
        interrupt_id = _interrupt_id(namespace, question.number)
        self._asked.setdefault(interrupt_id, []).append((namespace, question))

    def note_result(self, namespace: str, call_id: str, result: Any) -> None:
        """Note that a call has ended. The result is serialized only if its task waits."""
        self._ended.setdefault(namespace, {})[call_id] = result

    def to_json(self, interrupts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the next leg needs to know.

        Args:
            interrupts: the interrupts of LangGraph that the run waits for, by their ids.

        Raises:
            ExecutionError: a durable run would have to make a call again.
        """
        for interrupt_id, interrupt in interrupts.items():
            asked_places = self._asked.get(interrupt_id, [])
            # Of calls that asked at the same time, the graph has reported one.
            reported = [place for place in asked_places if place[1].value is interrupt.value]
            reported = reported or asked_places

            if reported:
                namespace, question = reported[0]
                self._questions.setdefault(namespace, {})[question.number] = question

        results = self._serialize_results()
        waiting_spaces = self._questions.keys()
        checkpoint: dict[str, Any] = {
            "questions": {
                space: [question.to_json() for question in asked_places.values()]
                for space, asked_places in self._questions.items()
            },
            "answers": {
                space: [*numbered_answers.items()]
                for space, numbered_answers in self._answers.items()
            },
            "subgraphs": self._subgraphs.to_json(waiting_spaces),
            "functions": self._functions.to_json(waiting_spaces),
            "results": self._to_texts(results),
        }
        if self._have_files(results):
            checkpoint["hidden"] = self._hidden.record()

        return checkpoint

    def _serialize_results(self) -> dict[str, dict[str, _Serialized]]:
        """Return the results of the tasks that wait, results of earlier legs first."""
        waiting_spaces = self._questions.keys()
        results = {
            space: dict(known_results)
            for space, known_results in self._known.items()
            if space in waiting_spaces
        }

        for space in self._ended.keys() & waiting_spaces:
            for call_id, result in self._ended[space].items():
                try:
                    serialized = self._serializer.dumps_typed(result)
                except Exception as error:
                    if self._is_durable:
                        raise ExecutionError(
                            "AGENT_FAILED",
                            "The run cannot wait: a tool was called, and its result could not be"
                            " stored",
                        ) from error

                    # Any value of a user's class can fail here. The run waits all the same, and the
                    # node makes this call again, as LangGraph does with each of its calls.
                    _log.warning("call %s: its result cannot be kept", call_id, exc_info=error)
                    continue

                results.setdefault(space, {})[call_id] = serialized

        return results

    def _have_files(self, results: Mapping[str, Mapping[str, _Serialized]]) -> bool:
        """Return True if the next leg needs the files of the run to read the results."""
        return any(
            self._hidden.is_in(data)
            for task_results in results.values()
            for _, data in task_results.values()
        )

    def _to_texts(
        self, results: Mapping[str, Mapping[str, _Serialized]]
    ) -> dict[str, dict[str, list[str]]]:
        return {
            namespace: {call_id: self._to_text(result) for call_id, result in task_results.items()}
            for namespace, task_results in results.items()
        }

    def _to_text(self, result: _Serialized) -> list[str]:
        kind, data = result
        return [kind, base64.b64encode(self._hidden.hide(data)).decode()]

    def _from_text(self, serialized: list[str]) -> _Serialized:
        kind, text = serialized
        return kind, self._hidden.reveal(base64.b64decode(text))


def _load_questions(checkpoint: Mapping[str, Any]) -> dict[str, dict[int, TaskPlace]]:
    questions = {
        space: {place.number: place for place in (TaskPlace(*values) for values in places)}
        for space, places in checkpoint.get("questions", {}).items()
    }

    # The state of an earlier version has the calls that have asked, in the order of the questions.
    for space, askers in checkpoint.get("askers", {}).items():
        questions[space] = {number: TaskPlace(number, asker) for number, asker in enumerate(askers)}

    return questions


class BoundCall:
    """One call of a tool in a task of a graph.

    Attributes:
        options: the keyword arguments with which the tool has to be executed.
    """

    def __init__(
        self, calls: TaskCalls, namespace: str, call_id: str, options: Mapping[str, Any]
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._call_id = call_id
        self._result = calls.find_result(namespace, call_id)

        config = options["config"]
        configurable = config["configurable"]
        scratchpad = configurable[CONFIG_KEY_SCRATCHPAD]
        own_configurable = {
            **configurable,
            CONFIG_KEY_SCRATCHPAD: replace(
                scratchpad,
                interrupt_counter=_Questions(calls, namespace, call_id, scratchpad.resume),
                subgraph_counter=_Subgraphs(calls, namespace, call_id, scratchpad.subgraph_counter),
            ),
        }

        self.options = {**options, "config": {**config, "configurable": own_configurable}}

    @property
    def has_ended(self) -> bool:
        """True if an earlier leg has made the call."""
        return self._result is not None

    def load(self) -> Any:
        """Return the result of the call that an earlier leg has made."""
        assert self._result is not None
        return self._calls.load(self._result)

    def refuse(self, tool: str) -> Any:
        """Return the result of the call if it must not be made, else None."""
        # The namespace of the task; the graph before it has called the model.
        graph, _, _ = self._namespace.rpartition(NS_SEP)
        refusal = self._calls.gate.refuse(graph, self._call_id)
        if refusal is None:
            return None

        message = ToolMessage(refusal, tool_call_id=self._call_id, name=tool, status="error")
        self.keep(message)
        return message

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Note that the call executes, until it has ended or asks."""
        self._calls.begin(self._namespace, self._call_id)
        try:
            yield
        except GraphBubbleUp:
            raise
        except Exception as error:
            # LangChain tells its callbacks what a tool has raised, and nothing of a result whose
            # text it cannot make: the tool has had its effect then.
            self._calls.note_failure(error, self._call_id)
            raise
        finally:
            self._calls.end(self._namespace, self._call_id)

    async def wait_for_others(self) -> None:
        """Wait until the other calls of the task have ended, or ask as well.

        A `ToolNode` ends with the first exception of its calls, and a question is one. Calls that
        still execute would continue without their node: their results would be lost, and the calls
        made again. LangGraph itself waits in this way for the other tasks of a step.
        """
        await self._calls.wait_for_others(self._namespace)

    def keep(self, result: Any) -> None:
        """Keep the result of the call, which has ended."""
        self._calls.note_result(self._namespace, self._call_id, result)


class _Questions:
    """The interrupt counter of a call, or of the other code of a task.

    It returns the number of the answer to a question, or the next free number.

    Args:
        owner: the id of the call; empty for other code of the task.
        answers: the answers of the whole task, which this leg does not change.
    """

    def __init__(self, calls: TaskCalls, namespace: str, owner: str, answers: list[Any]) -> None:
        self._calls = calls
        self._namespace = namespace
        self._owner = owner
        self._answers = answers
        self._free = calls.list_answered(namespace, owner, len(answers))

    def __call__(self) -> int:
        # `interrupt` gives no arguments to the counter: its question is in its frame.
        value = sys._getframe(1).f_locals.get("value")
        question = find_place(self._free, value)
        if question is None:
            # Code that asks one question after the other may have changed the text of a question.
            is_in_order = keeps_order(self._owner)
            question = next((each for each in self._free if is_in_order or not each.digest), None)
        if question is not None:
            self._free.remove(question)
            return question.number

        number = len(self._answers)
        self._calls.note_question(self._namespace, TaskPlace(number, self._owner, value=value))
        if self._answers:
            # The task ends with this question: answers that no code has read yet would be lost.
            get_config()["configurable"][CONFIG_KEY_SEND]([(RESUME, [*self._answers])])
        return number

    def restart(self) -> _Questions:
        """Return the counter of another attempt of the task."""
        return _Questions(self._calls, self._namespace, self._owner, self._answers)


class _Subgraphs:
    """The subgraph counter of a call, or of the other code of a task.

    Args:
        counter: the counter of LangGraph.
    """

    def __init__(
        self, calls: TaskCalls, namespace: str, owner: str, counter: Callable[[], int]
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._owner = owner
        self._counter = counter.unbound if isinstance(counter, _Subgraphs) else counter

    @property
    def unbound(self) -> Callable[[], int]:
        return self._counter

    def __call__(self) -> int:
        return self._calls.number_subgraph(self._namespace, self._owner, self._counter())


class _Answers(list[Any]):
    """The answers of a task, all of which are stored whenever one is read.

    LangGraph stores those up to the one that was read, and keeps the list that came last. Answers
    after it, which belong to other questions, would be lost.
    """

    def __getitem__(self, key: Any) -> Any:
        return [*self] if isinstance(key, slice) else super().__getitem__(key)


def bind_call(options: Mapping[str, Any]) -> BoundCall | None:
    """Return the call of a tool that begins in the present context, if it is one of a graph."""
    calls = _current.get()
    return None if calls is None else calls.bind(options)


def _replace_counters() -> None:
    """Let the tasks of graphs take their numbers from the calls of the present context."""
    build: Any = _algo._scratchpad
    reset: Any = _retry._reset_interrupt_counter
    start: Any = PregelLoop.__init__
    accept: Any = PregelLoop.accept_push
    signature = inspect.signature(build)

    @functools.wraps(build)
    def build_scratchpad(*args: Any, **options: Any) -> Any:
        scratchpad = build(*args, **options)
        calls = _current.get()
        if calls is None:
            return scratchpad

        arguments = signature.bind(*args, **options).arguments
        namespace = arguments["task_checkpoint_ns"]

        if NS_SEP not in namespace:
            calls.begin_step(arguments["step"])

        answers = calls.complete_answers(namespace, scratchpad.resume)

        return replace(
            scratchpad,
            resume=answers,
            interrupt_counter=_Questions(calls, namespace, "", answers),
            subgraph_counter=_Subgraphs(calls, namespace, "", scratchpad.subgraph_counter),
        )

    @functools.wraps(reset)
    def reset_counter(config: Any) -> Any:
        scratchpad = config["configurable"].get(CONFIG_KEY_SCRATCHPAD)
        counter = getattr(scratchpad, "interrupt_counter", None)
        if not isinstance(counter, _Questions):
            return reset(config)

        again = replace(scratchpad, interrupt_counter=counter.restart())
        return {**config, "configurable": {**config["configurable"], CONFIG_KEY_SCRATCHPAD: again}}

    @functools.wraps(start)
    def start_loop(self: Any, input: Any, **options: Any) -> None:
        token = _subgraph_input.set(input)
        try:
            start(self, input, **options)
        finally:
            _subgraph_input.reset(token)

    @functools.wraps(accept)
    def accept_push(self: Any, task: Any, write_idx: int, call: Any = None) -> Any:
        calls = _current.get()
        if calls is None or call is None:
            return accept(self, task, write_idx, call)

        namespace = task.config["configurable"][CONFIG_KEY_CHECKPOINT_NS]
        place = calls.place_function(namespace, call, write_idx)
        pushed = accept(self, task, place.number, call)

        if pushed is not None:
            place.namespace = pushed.config["configurable"][CONFIG_KEY_CHECKPOINT_NS]
        return pushed

    setattr(_algo, "_scratchpad", build_scratchpad)  # noqa: B010
    setattr(_retry, "_reset_interrupt_counter", reset_counter)  # noqa: B010
    setattr(PregelLoop, "__init__", start_loop)  # noqa: B010
    setattr(PregelLoop, "accept_push", accept_push)  # noqa: B010


_replace_counters()
