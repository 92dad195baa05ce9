"""Replay: `approve`, `ask` and `step` of a function, which runs again from its top in each leg.

The calls of a function are logged, and the log is the state of the run at a pause. In the next leg
a call that is in the log returns its decision or result. The calls of one task are compared in
their order: a call that differs from the log ends the run with REPLAY_MISMATCH. Tasks that run at
the same time are compared separately, because their order may change (docs/python.md
"Wait for people").
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import orjson

from agentctl import agents
from agentctl.records.text import replace_unstorable
from agentctl.runtime.context import ContextMisuse, format_call_id
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import NO_JSON_FORM, NotSerializable, to_json_value
from agentctl.runtime.pauses import (
    ENDED,
    EXPIRED,
    Ask,
    CallOutcome,
    DecidedCall,
    JournaledCall,
    Parked,
    Paused,
)
from agentctl.runtime.tracing import enter_call
from agentctl.work.run_scope import CurrentCall

if TYPE_CHECKING:
    from agentctl.records.kinds import ApprovalPolicy
    from agentctl.runtime.runners.hosted_run import HostedRun

_log = logging.getLogger("agentctl.runtime")

T = TypeVar("T")

QUIET_TURNS = 5
"""Turns of the event loop without a new call, after which the run pauses: calls that are made at
the same time are one pause."""

COMPARED_CHARACTERS = 65_536
"""Maximum length of the JSON of a field of an event that is compared."""

_is_in_step: ContextVar[bool] = ContextVar("is_in_step", default=False)


@dataclass(slots=True)
class LoggedCall:
    """A call of a function."""

    lane: int
    """Number of the task that made it; 0 is the task of the function itself."""

    title: str
    """The kind and the name, for the log of the server."""

    digest: str
    """Hash of the kind, the name and the arguments, and of what a person is shown."""

    call_id: str
    """The same in every leg: the digest, and a number if the call is made several times."""

    is_done: bool = False
    """True for a step that has ended; every other step is executed again."""

    result: Any = None

    reason: str | None = None
    """The class of the exception of a step; None if it succeeded."""


@dataclass(slots=True)
class _Lane:
    """The calls of one task, in their order."""

    number: int
    calls: list[LoggedCall] = field(default_factory=list)

    position: int = 0
    """Number of the calls that the task has made in this leg."""

    is_claimed: bool = False

    approved: list[DecidedCall] = field(default_factory=list)
    """The approved calls that no step has made, in their order; the next step makes the first one,
    or gets its result if a leg that was lost has made it."""


class Replay:
    """The calls of one function in one leg; the `agents.waiting.Replayer` of its context.

    Attributes:
        paused: what the run waits for, once the leg ends with a pause.
    """

    def __init__(self, run: HostedRun) -> None:
        run.context_host.replayer = self
        self.paused: list[Ask] | None = None
        self._run = run

        leg = run.environment.leg
        logged_calls = leg.state.get("calls", ()) if leg is not None else ()
        self._calls = [LoggedCall(**call) for call in logged_calls]

        self._unused = len(self._calls)
        lanes = max((call.lane for call in self._calls), default=0) + 1

        self._lanes = [_Lane(number) for number in range(lanes)]
        for call in self._calls:
            self._lanes[call.lane].calls.append(call)
        self._lane_of: dict[asyncio.Task[Any], _Lane] = {}

        self._waiting: dict[str, tuple[Ask, asyncio.Future[NoReturn]]] = {}
        self._settling: asyncio.Task[None] | None = None
        self._made = 0
        self._running = 0
        self._no_step_runs = asyncio.Event()
        self._has_mismatch = False
        self._is_closed = False

    @property
    def drops_reports(self) -> bool:
        """True while the function repeats an earlier leg, outside of a step that is executed."""
        return self._unused > 0 and not _is_in_step.get()

    async def execute(self, work: Coroutine[Any, Any, T], state: Callable[[], Any]) -> T:
        """Await the function of an agent in the current task.

        Args:
            state: returns what else the next leg needs, a JSON value.

        Raises:
            Paused: the run waits, also if the function has caught the exception.
            ExecutionError: REPLAY_MISMATCH.
        """
        main = asyncio.current_task()
        assert main is not None

        self._lanes[0].is_claimed = True
        self._lane_of[main] = self._lanes[0]

        try:
            result = await work
        except BaseException:
            self._check_mismatch()
            if self.paused is None or self._run.environment.is_stopping:
                raise
        else:
            self._check_mismatch()
            if self.paused is None:
                if self._unused:
                    self._fail("nothing")
                await self._end_calls()
                return result
        finally:
            self._close()

        environment = self._run.environment
        if environment.spec.parent_run_id is None:
            # The changes of a member remain, for its parent.
            environment.state.discard_changes()

        calls = [asdict(call) for call in self._calls]
        raise Paused(self.paused, {"calls": calls, "output": state()})

    async def approve(
        self, tool: str, arguments: Mapping[str, Any], question: str | None, policy: str
    ) -> agents.Decision:
        values = self._to_json(arguments, f"the arguments of {tool} have")
        question = None if question is None else replace_unstorable(question)
        lane, call = self._begin("approve", tool, values, shown_values=[question, policy])

        ask = Ask(
            kind="approval",
            tool_call_id=call.call_id,
            tool_name=replace_unstorable(tool),
            arguments=values,
            policy=cast("ApprovalPolicy", policy),
            question=question,
        )

        decision = await self._wait_for_decision(ask)
        if decision.is_approved:
            if decision.execution is None:
                await self._run.begin_approved(decision.approval_id)
            lane.approved.append(decision)

        return agents.Decision(
            approved=decision.is_approved,
            arguments=decision.arguments,
            note=EXPIRED if decision.status == "expired" else decision.note,
            decided_by=decision.decided_by,
            call_id=format_call_id(self._run.environment.spec.run_id, call.call_id),
            executed=decision.execution is not None,
        )

    async def ask(self, question: str, schema: Mapping[str, Any] | None) -> Any:
        question = replace_unstorable(question)
        values = self._to_json({"question": question}, "the question has")
        rules = None if schema is None else self._to_json(schema, "the schema has")
        _, call = self._begin("ask", "ask", values, shown_values=[rules])

        ask = Ask("input", call.call_id, "ask", question=question, schema=rules)
        decision = await self._wait_for_decision(ask)

        if decision.status != "answered":
            note = EXPIRED if decision.status == "expired" else decision.note
            raise agents.Rejected(note, decision.decided_by)

        return decision.answer

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        idempotent: bool,
    ) -> Any:
        values = self._to_json(list(arguments), f"the arguments of the step {name} have")
        lane, call = self._begin("step", name, values)

        approved = lane.approved.pop(0) if lane.approved else None

        if not call.is_done:
            await self._park()
            if approved is not None and approved.execution in ENDED:
                _take_known_result(call, approved)
            else:
                journaled_call = JournaledCall(
                    call.call_id, name, {"arguments": values}, idempotent, kind="step"
                )
                await self._perform(call, approved, journaled_call, partial(function, *arguments))

        if call.reason is not None:
            raise agents.StepFailed(name, call.reason)
        return call.result

    async def messages(self) -> tuple[agents.Message, ...]:
        _, call = self._begin("messages", "messages", [])
        if not call.is_done:
            await self._take_messages(call)
        return tuple(self._add_message(**message) for message in call.result)

    async def _take_messages(self, call: LoggedCall) -> None:
        """Log the messages that wait for the run as the result of a call."""
        delivered = await self._run.recorder.take_messages(for_code=True)
        call.is_done = True
        call.result = [
            {"message_id": message.message_id, "text": message.content} for message in delivered
        ]
        for message in delivered:
            self._run.add_message(message)

        journal = self._run.environment.journal
        if journal is not None:
            # Without this step, the next process would get what waits then.
            step = JournaledCall(call.call_id, "messages", {}, idempotent=True, kind="step")
            await journal.begin_call(step, {"call": asdict(call)})
            await journal.end_call(step, CallOutcome(""), {"call": asdict(call)})

    def _add_message(self, message_id: str, text: str) -> agents.Message:
        """Return a message of the log, which is part of the transcript from then on."""
        self._run.transcript.add_message(message_id, text)
        return agents.Message(message_id, text)

    async def _perform(
        self,
        call: LoggedCall,
        approved: DecidedCall | None,
        journaled_call: JournaledCall,
        function: Callable[[], Any],
    ) -> None:
        name = journaled_call.name
        journal = self._run.environment.journal

        # Before the journal has that the step begins: it would be in doubt after a kill.
        await self._run.environment.wait_while_halted()

        self._running += 1
        try:
            if approved is None and journal is None:
                await self._run.environment.begin_effect()
            elif approved is None and journal is not None:
                await journal.begin_call(journaled_call, {"call": asdict(call)})

            await self._make(call, approved, name, function)
        finally:
            if journal is not None and call.is_done:
                outcome = CallOutcome("", failed=call.reason is not None)
                await journal.end_call(journaled_call, outcome, {"call": asdict(call)})

            self._running -= 1
            if not self._running:
                self._no_step_runs.set()

    async def _make(
        self, call: LoggedCall, approved: DecidedCall | None, name: str, function: Callable[[], Any]
    ) -> None:
        inside = _is_in_step.set(True)
        try:
            with enter_call(self._run.transcript.spans, CurrentCall(call.call_id, name)):
                result = await self._call(function)
        except Exception as error:
            if isinstance(error, ContextMisuse):
                raise

            call.is_done = True
            call.reason = type(error).__name__

            if approved is not None:
                await self._run.environment.end_call(approved.approval_id, call.reason, failed=True)
            raise agents.StepFailed(name, call.reason) from error
        except BaseException as error:
            if self._run.environment.journal is None or not self._run.environment.is_stopping:
                # It may have had its effect: it is not executed again.
                call.is_done = True
                call.reason = type(error).__name__
            raise
        else:
            await self._keep_result(call, approved, name, result)
        finally:
            _is_in_step.reset(inside)

    async def _keep_result(
        self, call: LoggedCall, approved: DecidedCall | None, name: str, result: Any
    ) -> None:
        """Log the result of a step that was made.

        Raises:
            ContextMisuse: the result cannot be stored. The step counts as made all the same.
        """
        call.is_done = True
        try:
            call.result = self._to_json(result, f"the result of the step {name} has")
        except ContextMisuse as error:
            call.reason = type(error).__name__
            if approved is not None:
                await self._run.environment.end_call(
                    approved.approval_id, NO_JSON_FORM, failed=True
                )
            raise

        if approved is not None:
            text = orjson.dumps(call.result).decode()
            await self._run.environment.end_call(approved.approval_id, text, failed=False)

    async def _park(self) -> None:
        """Hand a durable run over before a step, when no other one is executed."""
        journal = self._run.environment.journal
        if journal is None or not journal.is_parking:
            return
        while self._running:
            self._no_step_runs.clear()
            await self._no_step_runs.wait()
        raise Parked

    async def _call(self, function: Callable[[], Any]) -> Any:
        if inspect.iscoroutinefunction(cast("partial[Any]", function).func):
            return await function()
        result = await self._run.call_in_thread(function)
        return await result if inspect.isawaitable(result) else result

    async def _end_calls(self) -> None:
        """Store that the approved calls without a step were made: the function has ended."""
        for lane in self._lanes:
            for approved in lane.approved:
                if approved.execution not in ENDED:
                    # The function must not run again between this and the end of the run.
                    await self._run.environment.begin_effect()
                    await self._run.environment.end_call(approved.approval_id, "", failed=False)

    def _begin(
        self, kind: str, name: str, values: Any, shown_values: Sequence[Any] | None = None
    ) -> tuple[_Lane, LoggedCall]:
        """Return the call of the log that this one repeats, or log a new one.

        Args:
            shown: what a person is shown besides, and who may decide; None for a step.
        """
        task = asyncio.current_task()
        assert task is not None

        self._check_mismatch()

        if _is_in_step.get():
            raise ContextMisuse(f"context.{kind} was called inside of a step")

        if self._is_closed:
            raise asyncio.CancelledError
        if self.paused is not None:
            # The tasks of other calls are abandoned; the task of the function ends with the pause.
            is_main = self._lane_of.get(task) is self._lanes[0]
            raise Paused([], None) if is_main else asyncio.CancelledError

        digest = _hash_call(kind, name, values)
        digests = [digest]
        if shown_values is not None:
            # A decision counts for the question that was shown only: a yes to "Remove A?" is none
            # to "Remove B?". The log of a run that has waited since an earlier version has the
            # digest without it.
            digest = _hash_call(kind, name, values, shown_values)
            digests.append(digest)

        lane = self._find_lane(task, digests)
        self._made += 1

        if lane.position < len(lane.calls):
            call = lane.calls[lane.position]
            if call.digest not in digests:
                self._fail(f"{kind} {name}", call)
            self._unused -= 1
        else:
            number = sum(call.digest == digest for call in self._calls) + 1
            call_id = f"{digest}-{number}" if number > 1 else digest
            call = LoggedCall(lane.number, f"{kind} {name}", digest, call_id)
            self._calls.append(call)
            lane.calls.append(call)

        lane.position += 1
        return lane, call

    def _find_lane(self, task: asyncio.Task[Any], digests: Sequence[str]) -> _Lane:
        if task not in self._lane_of:
            free = (lane for lane in self._lanes if not lane.is_claimed)
            lane = next((lane for lane in free if lane.calls[0].digest in digests), None)
            if lane is None:
                lane = _Lane(len(self._lanes))
                self._lanes.append(lane)
            lane.is_claimed = True
            self._lane_of[task] = lane
        return self._lane_of[task]

    async def _wait_for_decision(self, ask: Ask) -> DecidedCall:
        leg = self._run.environment.leg
        decision = leg.find(ask.tool_call_id, ask.kind) if leg is not None else None

        if decision is not None:
            return decision

        loop = asyncio.get_running_loop()
        pause: asyncio.Future[NoReturn] = loop.create_future()
        self._waiting[ask.tool_call_id] = ask, pause

        if self._settling is None:
            self._settling = loop.create_task(self._pause_when_quiet())

        try:
            return await pause
        finally:
            # The function may have a time limit for it.
            self._waiting.pop(ask.tool_call_id, None)

    async def _pause_when_quiet(self) -> None:
        """Pause when no step is executed and no further call arrives."""
        quiet = 0
        while quiet < QUIET_TURNS:
            made_before = self._made
            if self._running:
                self._no_step_runs.clear()
                await self._no_step_runs.wait()

            await asyncio.sleep(0)
            quiet = quiet + 1 if made_before == self._made and not self._running else 0

        self._settling = None
        if not self._waiting:
            return

        self.paused = [ask for ask, _ in self._waiting.values()]
        for _, pause in self._waiting.values():
            if not pause.done():
                pause.set_exception(Paused([], None))

    def _close(self) -> None:
        self._is_closed = True
        self._run.context_host.replayer = None
        if self._settling is not None:
            self._settling.cancel()
        for _, pause in self._waiting.values():
            pause.cancel()

    def _fail(self, actual: str, expected: LoggedCall | None = None) -> NoReturn:
        self._has_mismatch = True
        missing = expected.title if expected is not None else "calls of earlier legs"
        _log.warning(
            "run %s: the function made %s, not %s, when it ran again",
            self._run.environment.spec.run_id,
            actual,
            missing,
        )
        raise ExecutionError("REPLAY_MISMATCH")

    def _check_mismatch(self) -> None:
        """Fail although the function has caught the exception."""
        if self._has_mismatch:
            raise ExecutionError("REPLAY_MISMATCH")

    def _to_json(self, value: Any, subject: str) -> Any:
        try:
            return to_json_value(value, self._run.environment.limits.run_bytes)
        except NotSerializable as error:
            raise ContextMisuse(f"{subject} no JSON form, or a size above the limit") from error


def _hash_call(kind: str, *parts: Any) -> str:
    """Return the digest of a call by its kind, its name and its values."""
    encoded = orjson.dumps([kind, *parts], option=orjson.OPT_SORT_KEYS)
    return f"{kind}-{hashlib.sha256(encoded).hexdigest()[:24]}"


def _take_known_result(call: LoggedCall, decision: DecidedCall) -> None:
    """Take the result of a call that a lost leg has made, or that a person has reported."""
    call.is_done = True
    result = decision.result

    if decision.execution == "failed":
        call.reason = str(result)
        return

    if isinstance(result, str):
        # A step has stored JSON; a person may have given a text.
        with suppress(orjson.JSONDecodeError):
            result = orjson.loads(result)

    call.result = result


class ReplayedOutput:
    """The output of a generator in earlier legs, which it yields again.

    Args:
        content: the text of the earlier legs.
        events: its events: the length of the text before each, and its digest.
    """

    def __init__(self, content: str, events: Sequence[tuple[int, str]] = ()) -> None:
        self._events = [(offset, digest) for offset, digest in events]
        self._content = content
        self._offset = self._next = 0
        self._replayed = len(self._events)

    @property
    def is_replaying(self) -> bool:
        return self._offset < len(self._content) or self._next < self._replayed

    def finish(self) -> list[tuple[int, str]]:
        """Return the events of all legs."""
        if self.is_replaying:
            raise ExecutionError("REPLAY_MISMATCH")
        return self._events

    def take_text(self, text: str) -> str:
        """Return the part of a text that is new."""
        text = replace_unstorable(text)
        known_length = len(self._content)

        if self._next < self._replayed:
            known_length = self._events[self._next][0]

        repeated = text[: max(known_length - self._offset, 0)]
        if self._content[self._offset : known_length][: len(text)] != repeated:
            raise ExecutionError("REPLAY_MISMATCH")

        new_text = text[len(repeated) :]
        if new_text and self._next < self._replayed:
            raise ExecutionError("REPLAY_MISMATCH")

        self._offset += len(text)
        return new_text

    def take_event(self, kind: str, values: Mapping[str, Any]) -> bool:
        """Return True if an event is new.

        Args:
            values: its fields; values without a JSON form, or with a long one, are not compared.
        """
        encoded = [kind, {name: _to_comparable(values[name]) for name in values}]
        data = orjson.dumps(encoded, option=orjson.OPT_SORT_KEYS)
        event = self._offset, hashlib.sha256(data).hexdigest()[:24]

        is_new = self._next >= self._replayed
        if is_new and self._offset < len(self._content):
            raise ExecutionError("REPLAY_MISMATCH")

        if is_new:
            self._events.append(event)
        elif self._events[self._next] != event:
            raise ExecutionError("REPLAY_MISMATCH")

        self._next += 1
        return is_new


def _to_comparable(value: Any) -> Any:
    if isinstance(value, Iterator):
        # It can be read once, by the record.
        return None
    try:
        return to_json_value(value, COMPARED_CHARACTERS)
    except NotSerializable:
        return None
