"""The calls of one task of a graph: whose question an answer belongs to, and what has ended.

A `ToolNode` is one task for all calls of an answer, which run side by side. LangGraph numbers the
questions of a task in the order in which they arrive, and looks answers up by that number. When the
graph continues, the task runs again, and a call that arrives earlier than before would get the
answer to the question of another one: a person's yes to "delete A?" would delete B, about which
nobody was asked (langchain-ai/langgraph#6626). Calls of the task that have ended, or that still
executed when another one asked, would be made a second time.

Here an answer belongs to the call that has asked, by the id that the model gave it. A question
waits until the other calls of the task have ended, and these keep their results.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeAlias

from langgraph._internal._constants import (
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    RESUME,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphInterrupt

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hidden_files import HiddenFiles

_log = logging.getLogger("agentctl.runtime")

_Serialized: TypeAlias = tuple[str, bytes]
"""A value as the serializer of LangGraph returns it: the kind of its form, and its data."""

_current: ContextVar[TaskCalls | None] = ContextVar("agentctl_task_calls", default=None)


class TaskCalls:
    """The calls of tools in one leg of a graph.

    Args:
        stored: what `to_json` returned at the last pause; None in the first leg.
        hidden: the files whose bytes results may have, and not their JSON. It has taken over the
            files of `stored["hidden"]`.
    """

    def __init__(self, stored: Mapping[str, Any] | None, hidden: HiddenFiles) -> None:
        stored = stored or {}
        self._hidden = hidden
        self._serializer = JsonPlusSerializer(allowed_msgpack_modules=True)
        self._askers: dict[str, list[str]] = dict(stored.get("askers", {}))
        """The ids of the calls that have asked, by the namespace of their task, in the order of the
        questions."""
        self._known: dict[str, dict[str, _Serialized]] = {
            namespace: {call_id: self._from_text(text) for call_id, text in results.items()}
            for namespace, results in stored.get("results", {}).items()
        }
        """The serialized results of calls that ended in earlier legs, by namespace and id."""
        self._asked: dict[str, list[tuple[str, str, object]]] = {}
        """The namespace, the call and the value of each question of this leg, by the id of its
        interrupt: calls that ask at the same time get the same id, and the graph reports one."""
        self._ended: dict[str, dict[str, Any]] = {}
        self._executing: dict[str, set[str]] = {}
        """The ids of the calls that execute and do not ask, by namespace."""
        self._quiet: dict[str, asyncio.Event] = {}
        """Events that are set once none of them is left."""

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

    def find_questions(self, namespace: str, call_id: str) -> list[int]:
        """Return the numbers of the questions that a call has asked, in their order."""
        askers = self._askers.get(namespace, ())
        return [number for number, asker in enumerate(askers) if asker == call_id]

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
            raise ExecutionError("MODEL_REJECTED", "The model has requested two calls with one id")
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

    def note_question(self, namespace: str, call_id: str, error: GraphInterrupt) -> None:
        """Note which call has asked."""
        for interrupt in error.args[0]:
            asked = self._asked.setdefault(interrupt.id, [])
            asked.append((namespace, call_id, interrupt.value))

    def note_result(self, namespace: str, call_id: str, result: Any) -> None:
        """Note that a call has ended. The result is serialized only if its task waits."""
        self._ended.setdefault(namespace, {})[call_id] = result

    def to_json(self, interrupts: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the next leg needs to know.

        Args:
            interrupts: the interrupts of LangGraph that the run waits for, by their ids.
        """
        for interrupt_id, interrupt in interrupts.items():
            asked = self._asked.get(interrupt_id, [])
            # Of calls that asked at the same time, the graph has reported one.
            reported = [each for each in asked if each[2] is interrupt.value] or asked
            if reported:
                namespace, call_id, _ = reported[0]
                self._askers.setdefault(namespace, []).append(call_id)

        results = self._serialize_results()
        stored: dict[str, Any] = {"askers": self._askers, "results": self._to_texts(results)}
        if self._have_files(results):
            stored["hidden"] = self._hidden.record()

        return stored

    def _serialize_results(self) -> dict[str, dict[str, _Serialized]]:
        """Return the results of the tasks that wait, those of earlier legs first."""
        waiting = self._askers.keys()
        results = {space: dict(known) for space, known in self._known.items() if space in waiting}
        for space in self._ended.keys() & waiting:
            for call_id, result in self._ended[space].items():
                try:
                    serialized = self._serializer.dumps_typed(result)
                except Exception as error:
                    # Any value of a user's class can fail here. The run waits all the same, and the
                    # node makes this call again, as LangGraph does with each of its calls.
                    _log.warning("call %s: its result cannot be kept", call_id, exc_info=error)
                    continue

                results.setdefault(space, {})[call_id] = serialized

        return results

    def _have_files(self, results: Mapping[str, Mapping[str, _Serialized]]) -> bool:
        """Return True if the next leg needs the files of the run to read the results."""
        return any(
            self._hidden.is_in(data) for known in results.values() for _, data in known.values()
        )

    def _to_texts(
        self, results: Mapping[str, Mapping[str, _Serialized]]
    ) -> dict[str, dict[str, list[str]]]:
        return {
            namespace: {call_id: self._to_text(result) for call_id, result in known.items()}
            for namespace, known in results.items()
        }

    def _to_text(self, result: _Serialized) -> list[str]:
        kind, data = result
        return [kind, base64.b64encode(self._hidden.hide(data)).decode()]

    def _from_text(self, stored: list[str]) -> _Serialized:
        kind, text = stored
        return kind, self._hidden.reveal(base64.b64decode(text))


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
        send = configurable[CONFIG_KEY_SEND]
        self._questions = _Questions(calls.find_questions(namespace, call_id), scratchpad.resume)

        def send_all_answers(writes: Any) -> None:
            # LangGraph sends the answers up to the present question, and keeps the list that came
            # last. Answers after it, which belong to other calls, would be lost.
            answers = [*scratchpad.resume]
            send([(channel, answers if channel == RESUME else value) for channel, value in writes])

        own = {
            **configurable,
            CONFIG_KEY_SCRATCHPAD: replace(scratchpad, interrupt_counter=self._questions),
            CONFIG_KEY_SEND: send_all_answers,
        }
        self.options = {**options, "config": {**config, "configurable": own}}

    @property
    def has_ended(self) -> bool:
        """True if an earlier leg has made the call."""
        return self._result is not None

    def load(self) -> Any:
        """Return the result of the call that an earlier leg has made."""
        assert self._result is not None
        return self._calls.load(self._result)

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Note that the call executes, and its question if it asks one."""
        self._calls.begin(self._namespace, self._call_id)
        try:
            yield
        except GraphInterrupt as error:
            # A subgraph inside of the tool asks in a task of its own.
            if self._questions.is_asking:
                self._calls.note_question(self._namespace, self._call_id, error)
            raise
        finally:
            self._calls.end(self._namespace, self._call_id)

    async def wait_for_others(self) -> None:
        """Wait until the other calls of the task have ended, or ask as well.

        A `ToolNode` ends with the first exception of its calls, and a question is one. Calls that
        still execute would go on without their node: their results would be lost, and the calls
        made again. LangGraph itself waits in this way for the other tasks of a step.
        """
        await self._calls.wait_for_others(self._namespace)

    def keep(self, result: Any) -> None:
        """Keep the result of the call, which has ended."""
        self._calls.note_result(self._namespace, self._call_id, result)


class _Questions:
    """The interrupt counter of one call: the numbers of its own questions, then the next free one.

    Args:
        numbers: the numbers of the questions that the call has asked in earlier legs.
        answers: the answers of the whole task, which this leg does not change.

    Attributes:
        is_asking: True once the call has got the number of a question without an answer.
    """

    def __init__(self, numbers: list[int], answers: list[Any]) -> None:
        self.is_asking = False
        self._numbers = iter([number for number in numbers if number < len(answers)])
        self._answers = answers

    def __call__(self) -> int:
        number = next(self._numbers, None)
        if number is not None:
            return number
        self.is_asking = True
        return len(self._answers)


def bind_call(options: Mapping[str, Any]) -> BoundCall | None:
    """Return the call of a tool that begins in the present context, if it is one of a graph."""
    calls = _current.get()
    return None if calls is None else calls.bind(options)
