"""The conversation of one run between a model and its tools.

All data from the model passes through here. The recorder of the run makes its text storable (tool
calls already are, see `runtime.models.calls`), limits its size, and publishes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import orjson

from agentctl.records.approvals import hash_value
from agentctl.records.kinds import ApprovalPolicy
from agentctl.records.text import replace_unstorable
from agentctl.runtime.context import HeldBack, RunEnvironment, admit_tool, perform_decided
from agentctl.runtime.failures import MAXIMUM_FAILURES, MAXIMUM_UNKNOWN, ExecutionError, check_parts
from agentctl.runtime.json_values import NOT_AN_OBJECT, explain_refusal
from agentctl.runtime.pauses import (
    ApprovedEnd,
    Ask,
    CallOutcome,
    JournaledCall,
    WaitingCall,
    load_outcome,
)
from agentctl.runtime.tracing import Span, enter_call
from agentctl.runtime.transcript import history
from agentctl.runtime.transcript.events import MessageDelivered
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls, RepeatLimits
from agentctl.work.run_scope import CurrentCall, current_call

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord

_COMPLETE_REASONS = {"stop", "tool_call"}
"""Finish reasons with which the tool calls of an answer have arrived completely."""

Check = Callable[[Mapping[str, Any], "Conversation"], Awaitable[CallOutcome | None]]
"""Returns the failure of a call whose arguments are not valid, or None. No one is asked about such
a call."""


class Action(Protocol):
    """A tool that a model may call by its name: a configured tool or the delegation to members.

    Attributes:
        has_effects: False if its calls may be repeated, because members have their effects.
        idempotent: True if a call may be made again with its id after its server died.
    """

    has_effects: ClassVar[bool]

    @property
    def idempotent(self) -> bool: ...

    def record(self) -> ToolRecord: ...

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        """Execute a call. Failures are outcomes.

        Raises only ExecutionError and asyncio.CancelledError.
        """


@dataclass(frozen=True, slots=True)
class CallRule:
    """The rule by which the calls of a tool wait."""

    kind: Literal["approval", "external"]
    """`approval`, or `external` for a tool that the caller executes."""

    policy: ApprovalPolicy
    check: Check

    idempotent: bool = False
    """True if a call may be made again with its id after its server died."""

    can_change: bool = False
    """True if the tool can change while a call of it waits, without another version of its
    component."""


class Conversation:
    """The state of one run while its model works.

    What arrives raises ExecutionError if the run would exceed `limits.run_bytes`.

    Args:
        actions: the tools that the model may call, by name.
        rules: the rules of those whose calls wait for a person, by name.
        repeats: the calls of earlier legs, and how often the model may make one call in a row; None
            for no limit.
        publishes: True if the text of the model is the content of the run. If False (the leader
            of a team in mode route, an answer with an output schema), the text is only added to
            the messages.

    Attributes:
        recorder: the recorder of the run.
        instructions: instructions of the model, which may be longer than those in the transcript.
        routed_answer: answer of the member that received the message, in mode route.
        is_routing: True while a member answers in place of the leader.
        has_answer_begun: True if text or thinking of the current answer has arrived.
        input_tokens: input tokens of the current answer that the model has reported; 0 for none.
        about_call: further members of the message of the next answer, about its call.
        asks: what the run asks for in this leg.
        announces: True if the events of calls are published.
        result_files: JSON arrays of the references of the files of results, by the ids of calls.
        is_parked: True if a call waits for another process, to which the run is handed over.
    """

    def __init__(
        self,
        context: RunEnvironment,
        actions: Mapping[str, Action],
        *,
        rules: Mapping[str, CallRule] | None = None,
        repeats: RepeatedCalls | None = None,
        publishes: bool = True,
    ) -> None:
        self.context = context
        self.recorder = context.recorder
        self.recorder.holds_text = not publishes
        self.actions = actions
        self.repeats = repeats or RepeatedCalls(RepeatLimits())
        self.instructions = ""
        self.routed_answer: str | None = None
        self.is_routing = False

        self.has_answer_begun = False
        self.input_tokens = 0
        self.about_call: Mapping[str, Any] = {}
        self.asks: list[Ask] = []
        self.waiting: dict[str, WaitingCall] = {}

        self._rules = rules or {}
        self._journal = context.journal
        self.announces = True
        self.is_parked = False
        self.result_files: dict[str, str] = {}

        self._taken_messages: list[MessageDelivered] = []
        self._states: dict[str, Any] = {}
        self._asked_tools: dict[str, str] = {}

        self._transcript = context.transcript
        self._arriving_calls = 0
        self._arriving_parts = 0

        self._failures: Counter[str] = Counter()
        self._unknown_calls = 0

    def add_prompt(self, instructions: str) -> None:
        """Add the instructions (`""` for none) and the message to the transcript.

        A run that repeats another run has the messages of its origin before its own.
        """
        self.instructions = instructions
        self.recorder.begin(instructions)

    @property
    def has_prompt(self) -> bool:
        """False if the run continues after the messages of its origin, without an own message."""
        origin = self.context.spec.origin
        return origin is None or origin.has_prompt

    def add_summary(self) -> None:
        """Add the summary of the session to the instructions of the model, if there is one.

        It is not part of the messages of the run, so that later runs do not carry it.
        """
        if summary := self.context.summary:
            self.extend_instructions(history.format_summary(summary))

    def replace_instructions(self, instructions: str) -> None:
        """Continue with the instructions of another version of the component."""
        if instructions:
            self._transcript.add_system(instructions)
        self.instructions = instructions

    def extend_instructions(self, text: str) -> None:
        """Append a paragraph to the instructions of the model, not to those in the transcript."""
        self.instructions = f"{self.instructions}\n\n{text}" if self.instructions else text

    async def take_messages(self) -> Sequence[MessageDelivered]:
        """Take the messages that were sent to the run while it works, for the next model call.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        messages = await self.recorder.take_messages()
        self._taken_messages += messages
        return messages

    def _add_taken_messages(self) -> None:
        """Make the taken messages a part of the run: the model call that gets them begins."""
        for message in self._taken_messages:
            self.recorder.add_message(message)
        self._taken_messages = []

    def begin_answer(self, model: str) -> Span | None:
        """Start a new answer, before each call of a model; return the span of the call."""
        self._add_taken_messages()
        span = self.recorder.begin_answer(model, self.about_call)

        self.input_tokens = 0
        self.has_answer_begun = False
        self._arriving_calls = 0
        self._arriving_parts = 0

        return span

    def fail_answer(self, code: str) -> None:
        """Record that the attempt at the current answer failed, with the code of the failure."""
        self._transcript.fail_answer(code)

    def count_part(self, *, is_call: bool) -> None:
        """Count a part of the answer, such as a tool call, when it begins to arrive.

        The model library works longer for each part, so their number is limited before the answer
        is complete.

        Raises:
            ExecutionError: too many parts, or too many calls.
        """
        self._transcript.mark_first_token()
        self._arriving_parts += 1
        self._arriving_calls += is_call
        check_parts(self._arriving_parts, self._arriving_calls)

    def count_arriving(self, size: int) -> None:
        """Count bytes of an incomplete tool call or of reasoning."""
        self.recorder.count_arriving(size)

    def add_text(self, text: str) -> None:
        """Add text of the model to the answer, and publish it."""
        if text:
            self.has_answer_begun = True
            self.recorder.add_text(text)

    def add_thinking(self, text: str) -> None:
        """Add text to the thinking of the run, which is not part of its content, and publish it."""
        if text:
            self.has_answer_begun = True
            self.recorder.add_thinking(text)

    def set_usage(self, usage: Mapping[str, int]) -> None:
        self.input_tokens = usage.get("input_tokens", 0)
        self._transcript.set_usage(usage)

    def set_answer(self, text: str) -> None:
        """Make the answer of a member the answer and the content of this run, and publish it."""
        self.recorder.set_answer(text)

    def end_answer(self, calls: list[dict[str, Any]], finish_reason: str) -> None:
        """Complete the answer with its tool calls: `id`, `name` and `arguments` of each.

        Args:
            finish_reason: the reason of the provider (docs/contract.md "Run record").

        Raises:
            ExecutionError: calls of an answer that was cut off.
        """
        if calls and finish_reason not in _COMPLETE_REASONS:
            # The arguments of the last call may be missing, and more calls may have followed.
            raise ExecutionError("MODEL_ANSWER_INVALID", "The model's tool calls were cut off")
        self.recorder.end_answer(calls, finish_reason)
        self.repeats.add_answer(calls)

    async def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Execute a tool call and return its result for the model; None if it waits.

        Raises:
            ExecutionError: the tool failed too often in a row, or the model called unknown tools
                too often.
        """
        self.context.checkpoint()

        refusal = self.repeats.find_refusal(call_id)
        if refusal is not None:
            # No one is asked about it either.
            self._open_call(call_id, name, arguments)
            outcome = CallOutcome(refusal, failed=True, counts_as_failure=False)
            return await self._end_call(call_id, name, arguments, outcome)

        problem = None

        rule = self._rules.get(name)
        if rule is not None and NOT_AN_OBJECT not in arguments:
            problem = await rule.check(arguments, self)
            if problem is None:
                self.waiting[call_id] = WaitingCall(is_gated=True)

                tool = self.actions[name].record()
                schema = tool["parameters"]
                if rule.can_change:
                    self._asked_tools[call_id] = hash_value(tool)

                ask = Ask(rule.kind, call_id, name, arguments, rule.policy, schema=schema)
                self.asks.append(replace(ask, idempotent=rule.idempotent))
                return None

        self._open_call(call_id, name, arguments)
        outcome = problem or await self._perform(call_id, name, arguments)
        return await self._end_call(call_id, name, arguments, outcome)

    def list_effects(self, calls: Iterable[Mapping[str, Any]]) -> list[JournaledCall]:
        """Return those calls of an answer that have effects and begin at once."""
        return [
            self._describe(call["id"], call["name"], call["arguments"])
            for call in calls
            if call["name"] not in self._rules
            and call["name"] in self.actions
            and self.actions[call["name"]].has_effects
            and NOT_AN_OBJECT not in call["arguments"]
            and self.repeats.find_refusal(call["id"]) is None
        ]

    def repeat_result(self, call: Mapping[str, Any], stored_call: Mapping[str, Any]) -> str | None:
        """Return the result that an earlier process has stored for a call."""
        call_id = call["id"]
        name = call["name"]

        if not self._transcript.is_open(call_id):
            arguments = stored_call.get("arguments") or call["arguments"]
            self._open_call(call_id, name, arguments, stored_call["started_at"])

        outcome = load_outcome(stored_call)

        if run_id := stored_call.get("run_id"):
            spans = self._transcript.spans
            at = stored_call["started_at"]
            span = spans.start_member(run_id, stored_call["member"], at, call_id)
            span.end("failed" if outcome.failed else "completed", stored_call["ended_at"])

        return self._close_call(call_id, name, outcome, at=stored_call["ended_at"])

    def reopen_call(self, call: Mapping[str, Any]) -> None:
        """Open a call that an earlier process has begun, and that continues."""
        if not self._transcript.is_open(call["id"]):
            self._open_call(call["id"], call["name"], call["arguments"])

    async def resume_call(
        self, call_id: str, name: str, arguments: Mapping[str, Any], waiting: WaitingCall
    ) -> str | None:
        """Continue with a call that waited in the leg before; see `call`."""
        self.context.checkpoint()
        self._states[call_id] = waiting.state

        if not waiting.is_gated:
            outcome = await self._perform(call_id, name, arguments)
            return await self._end_call(call_id, name, arguments, outcome)

        leg = self.context.leg
        assert leg is not None
        decision = leg.require(call_id, tool_name=name)

        if not waiting.has_begun:
            self._open_call(call_id, name, decision.arguments)

        perform = partial(self._perform, call_id, name, is_decided=True)
        stores_end = self._journal is None
        outcome = await perform_decided(self.context, decision, perform, stores_end=stores_end)

        approved = ApprovedEnd(decision.approval_id, outcome.text)
        if decision.is_edited and decision.is_approved and outcome.pause is None:
            changed_arguments = orjson.dumps(decision.arguments).decode()
            note = f"The arguments were changed before the call: {changed_arguments}"
            outcome = replace(outcome, text=f"{note}\n{outcome.text}")

        return await self._end_call(call_id, name, decision.arguments, outcome, approved)

    def take_state(self) -> Any:
        """Return the state of the current call if it continues after a pause, else None."""
        call = current_call.get()
        return self._states.pop(call.id, None) if call is not None else None

    def keep(self) -> dict[str, Any]:
        """Return a JSON object from which the next leg continues, see `restore`."""
        return {
            "instructions": self.instructions,
            "routed_answer": self.routed_answer,
            "failures": self._failures,
            "unknown_calls": self._unknown_calls,
            # Earlier versions read it. Each leg counts what its transcript has.
            "kept_bytes": self.recorder.kept_bytes,
            "asked_tools": self._asked_tools,
            "result_files": self.result_files,
            "waiting": {call_id: asdict(waiting) for call_id, waiting in self.waiting.items()},
        }

    def restore(self, kept_state: Mapping[str, Any]) -> dict[str, WaitingCall]:
        """Take over the values that the leg before has kept; return the calls that waited."""
        self.instructions = kept_state["instructions"]
        self.routed_answer = kept_state["routed_answer"]
        self._failures = Counter(kept_state["failures"])
        self._unknown_calls = kept_state["unknown_calls"]

        # A checkpoint of an earlier version has none.
        self._asked_tools = dict(kept_state.get("asked_tools", {}))
        self.result_files = dict(kept_state.get("result_files", {}))

        return {
            call_id: WaitingCall(**waiting) for call_id, waiting in kept_state["waiting"].items()
        }

    def _open_call(
        self, call_id: str, name: str, arguments: Mapping[str, Any], at: int | None = None
    ) -> None:
        self.recorder.open_call(call_id, name, arguments, at=at, announces=self.announces)

    async def _perform(
        self, call_id: str, name: str, arguments: Mapping[str, Any], *, is_decided: bool = False
    ) -> CallOutcome:
        action = self.actions.get(name)
        if action is None:
            self._unknown_calls += 1
            if self._unknown_calls > MAXIMUM_UNKNOWN:
                raise ExecutionError("MODEL_ANSWER_INVALID", "The model called unknown tools")
            return CallOutcome(f"There is no tool {name}", failed=True, counts_as_failure=False)

        approved_tool = self._asked_tools.get(call_id) if is_decided else None
        if approved_tool is not None and approved_tool != hash_value(action.record()):
            text = f"The tool {name} has changed since this call was approved: it was not made"
            return CallOutcome(text, failed=True, counts_as_failure=False)

        if NOT_AN_OBJECT in arguments:
            return CallOutcome(explain_refusal(str(arguments[NOT_AN_OBJECT])), failed=True)

        # Before the journal has that the call begins: it would be in doubt after a kill.
        halted_text = await admit_tool(self.context, name, waits=is_decided)

        if halted_text is None and action.has_effects and not is_decided:
            await self.context.begin_effect()
            if self._journal is not None:
                await self._journal.begin_call(self._describe(call_id, name, arguments))

        while halted_text is None:
            try:
                with enter_call(self._transcript.spans, CurrentCall(call_id, name)):
                    return await action.perform(arguments, self)
            except HeldBack:
                halted_text = await admit_tool(self.context, name, waits=is_decided)

        return CallOutcome(halted_text, failed=True, counts_as_failure=False)

    def _describe(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> JournaledCall:
        action = self.actions.get(name)
        return JournaledCall(call_id, name, arguments, action is not None and action.idempotent)

    async def _end_call(
        self,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any],
        outcome: CallOutcome,
        approved: ApprovedEnd | None = None,
    ) -> str | None:
        pause = outcome.pause
        if self._journal is not None and not (pause and (approved or pause.is_parked)):
            outcome = replace(outcome, text=replace_unstorable(outcome.text))
            call = self._describe(call_id, name, arguments)
            await self._journal.end_call(call, outcome, approved=approved)
        return self._close_call(call_id, name, outcome, is_gated=approved is not None)

    def _close_call(
        self,
        call_id: str,
        name: str,
        outcome: CallOutcome,
        *,
        is_gated: bool = False,
        at: int | None = None,
    ) -> str | None:
        if (pause := outcome.pause) is not None:
            self.asks += pause.asks
            self.is_parked = self.is_parked or pause.is_parked
            self.waiting[call_id] = WaitingCall(is_gated, has_begun=True, state=pause.state)
            return None

        if outcome.files is not None:
            self.result_files[call_id] = outcome.files

        text = replace_unstorable(outcome.text)
        self.recorder.close_call(
            call_id,
            text,
            failed=outcome.failed,
            at=at,
            files=outcome.files,
            announces=self.announces,
        )

        if outcome.is_routed:
            self.routed_answer = text

        if not outcome.failed:
            self._failures[name] = 0
        elif outcome.counts_as_failure:
            self._failures[name] += 1

        if self._failures[name] >= MAXIMUM_FAILURES:
            raise ExecutionError(
                "TOOL_FAILED", f"The tool {name} failed {MAXIMUM_FAILURES} times in a row"
            )

        return text
