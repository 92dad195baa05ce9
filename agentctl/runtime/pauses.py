"""Pauses: how a component asks people, and how its run continues (decision 79).

A run has legs. A component that needs a decision raises `Paused` when everything else that it began
has ended. The engine stores what it asks and its state; no task, thread or slot remains. The next
leg, in any process, calls the component again, with the state and the decisions in
`RunEnvironment.leg`. An approved call is made at most once, unless its tool is idempotent or a
person repeats it after its server died.

The object `input` of a request to an agent in code is checked before anything is stored
(docs/contract.md "Runs"). Members and later steps get a task, which is text: an agent that needs an
object reads it from the JSON text of its task.

The journal of a durable run has what another process needs to continue it (decision 99).
It only grows: an answer of the model with its calls is one step, each call another one. The state
of a component at the last step is built from its checkpoint and the steps after it, so a step costs
as much as it adds, however long the conversation is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from agentctl.records.approvals import ApprovalExecution, ApprovalKind, ApprovalStatus
from agentctl.records.kinds import ApprovalPolicy
from agentctl.records.strict import find_object
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_schema import find_schema_problem

if TYPE_CHECKING:
    from agentctl.records.run_spec import RunSpec


_MAXIMUM_LENGTH = 200


class WrongInput(ValueError):
    """An object that an agent does not take.

    Attributes:
        place: the place inside the object: `.items[0]`; empty for the object itself.
        problem: the difference without the value, to follow the name and the place; public. Both
            are cut at 200 characters.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place} {problem}")
        self.place = place[:_MAXIMUM_LENGTH]
        self.problem = problem[:_MAXIMUM_LENGTH]


class InputSchema:
    """The object that an agent in code takes as `input`.

    Each `Runner` has the attribute `input_schema`. None means that its agent takes any object: the
    code reads it as `RunContext.input`. The record of the agent shows the schema.

    Args:
        schema: JSON Schema of the object.
        is_required: True if the agent cannot work with a message alone. A message that is the JSON
            text of an object which matches is accepted in place of an `input`.
        convert: makes the value for the code from an object that matches the schema; by default
            the object itself. It raises `WrongInput` for an object that the code does not take.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        is_required: bool,
        convert: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self.schema = schema
        self.is_required = is_required
        self._convert = convert

    def describe(self) -> str:
        """Return the names of the fields for people: `id, count (optional)`, or `any fields`."""
        required = self.schema.get("required", ())
        names = [
            name if name in required else f"{name} (optional)"
            for name in self.schema.get("properties", ())
        ]
        return ", ".join(names) or "any fields"

    async def check(self, value: dict[str, Any]) -> Any:
        """Return the value for the code.

        Raises:
            WrongInput: the object does not match.
        """
        problem = await find_schema_problem(self.schema, value, mask="the value")
        if problem is not None:
            raise WrongInput(f"does not match its schema: {problem.text}", problem.place)
        return value if self._convert is None else self._convert(value)

    async def read(self, spec: RunSpec) -> Any:
        """Return the value for the code of a run; None if it has a message only, as it may.

        Raises:
            ExecutionError: the object of the run, or its task, does not match.
        """
        try:
            if spec.input_object is not None:
                return await self.check(json.loads(spec.input_object))
            if not self.is_required:
                return None
            if (value := find_object(spec.input)) is None:
                raise WrongInput("must be the JSON text of an object")
            return await self.check(value)
        except WrongInput as wrong:
            text = f"The agent was not called: input{wrong.place} {wrong.problem}"
            raise ExecutionError("AGENT_FAILED", text) from None


REJECTED = "The call was rejected"
EXPIRED = "The call was rejected: no one decided in time"


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a component asks for."""

    kind: ApprovalKind

    tool_call_id: str
    """The call, unique in the run and the same in every leg."""

    tool_name: str

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the call; empty for a question without a call."""

    policy: ApprovalPolicy = "user"
    question: str | None = None

    schema: Mapping[str, Any] | None = None
    """JSON Schema of the arguments, or of the answer for the kind `input`."""

    idempotent: bool = False
    """True if the tool may be called again with the same `tool_call_id` after its server died."""


class Paused(BaseException):  # not an error: code that catches errors must not see it
    """Raised by a component that waits for decisions, or for a member that does.

    It is a BaseException, so that `except Exception` in the code of an agent does not catch it.

    Args:
        asks: what this run asks for; empty if only its members ask.
        state: JSON value that the next leg of the component gets back.

    Raises:
        ExecutionError: two calls have one id: a decision about one would count for both.
    """

    def __init__(self, asks: Sequence[Ask], state: Any) -> None:
        super().__init__("the run is paused")
        if len({ask.tool_call_id for ask in asks}) < len(asks):
            raise ExecutionError("MODEL_ANSWER_INVALID")
        self.asks = list(asks)
        self.state = state


@dataclass(frozen=True, slots=True)
class DecidedCall:
    """A decided approval, as the next leg reads it."""

    approval_id: str
    kind: ApprovalKind
    status: ApprovalStatus
    tool_call_id: str
    tool_name: str

    arguments: dict[str, Any]
    """The approved arguments: after an edit, the edited arguments."""

    is_edited: bool = False
    """True if the arguments differ from those that the component requested."""

    execution: ApprovalExecution | None = None
    """None until the call begins; `done` and `failed` have a result."""

    answer: Any = None
    """The answer, a JSON value."""

    note: str | None = None

    result: Any = None
    """The result of the call: text of a call that was made, or the JSON value that the caller gave
    for the kind `external`."""

    decided_by: str | None = None

    created_at: int | None = None
    """Time of the pause, microseconds UTC."""

    decided_at: int | None = None
    """Time of the decision, microseconds UTC."""

    @property
    def is_approved(self) -> bool:
        return self.status == "approved"

    @property
    def refusal(self) -> str:
        """The text for the model if the call must not be made."""
        if self.status == "expired":
            return EXPIRED
        return f"{REJECTED}: {self.note}" if self.note else REJECTED


@dataclass(frozen=True, slots=True)
class Leg:
    """The continuation of a run."""

    state: Any

    decisions: Sequence[DecidedCall]
    """All decisions of the run so far, oldest first."""

    has_new_version: bool = False
    """True if the leg before had another version of the component."""

    def require(
        self, tool_call_id: str, kind: ApprovalKind | None = None, *, tool_name: str | None = None
    ) -> DecidedCall:
        """Return the latest decision about a call that the leg before has asked about.

        Args:
            tool_name: the tool of the call, if the decision must be about this tool.

        Raises:
            ExecutionError: there is none: the call must not be made.
        """
        decision = self.find(tool_call_id, kind)
        if decision is None or tool_name not in (None, decision.tool_name):
            raise ExecutionError("INTERNAL", "A decision of the run is missing")
        return decision

    def find(self, tool_call_id: str, kind: ApprovalKind | None = None) -> DecidedCall | None:
        """Return the latest decision about a call; None if there is none."""
        return next(
            (
                decision
                for decision in reversed(self.decisions)
                if decision.tool_call_id == tool_call_id and kind in (None, decision.kind)
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class CallPause:
    """The wait of a call that has begun: for answers of people, or for the run of a member."""

    asks: Sequence[Ask]
    """The questions; empty if the run of a member asks."""

    state: Any
    """JSON value that the call gets when it continues, see `Conversation.take_state`."""

    is_parked: bool = False
    """True if the call waits for another process, not for people."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits, as the next leg gets it."""

    is_gated: bool = False
    """True if a decision about it is needed."""

    has_begun: bool = False
    state: Any = None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The result of a tool call."""

    text: str
    """The result that the model gets."""

    failed: bool = False

    counts_as_failure: bool = True
    """True if a failure counts towards `MAXIMUM_FAILURES`."""

    pause: CallPause | None = None
    """Set if the call has not ended: it waits."""

    is_routed: bool = False
    """True if the text is the answer of the run, in place of one of its model."""

    files: str | None = None
    """JSON array of the references of its files; None without files."""


def to_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    import orjson

    return value if isinstance(value, str) else orjson.dumps(value).decode()


StepKind = Literal["answer", "tool", "step", "member"]

ENDED = ("done", "failed")
"""The states of a step that is never made again."""

IDEMPOTENT = "idempotent"
"""The key of the metadata of a tool whose calls may be made again with their id."""

MEMBER_PREFIX = "member-"
"""The id of a member that no call has started begins with it, and ends with its component."""

STEP_PREFIX = "step-"
"""The id of a step of a workflow begins with it, and ends with its index."""


class Parked(BaseException):  # not an error: code that catches errors must not see it
    """Raised by a component of a durable run between two steps: another process continues."""

    def __init__(self) -> None:
        super().__init__("the run is handed over")


@dataclass(frozen=True, slots=True)
class JournaledCall:
    """A call of a durable run."""

    call_id: str
    """Unique in the run, and the same in every attempt."""

    name: str
    arguments: Mapping[str, Any]

    idempotent: bool = False
    """True if it may be made again with its id after its process died."""

    kind: StepKind = "tool"


class ApprovedEnd(NamedTuple):
    """The end of an approved call in its approval: the result without notes for the model."""

    approval_id: str
    text: str


class Journal(Protocol):
    """The journal of one durable run, as its component writes it.

    Every method raises asyncio.CancelledError if this process has lost the run, and Unavailable if
    the database does not answer: nothing may be called then.
    """

    @property
    def is_parking(self) -> bool:
        """True once the run is to be handed over: raise `Parked` before the next step."""

    async def add_answer(
        self, body: Mapping[str, Any], calls: Sequence[JournaledCall] = ()
    ) -> None:
        """Store an answer of the model, and that some of its calls begin."""

    async def replace_answer(self, body: Mapping[str, Any]) -> None:
        """Store an answer in place of the one before it; the calls before it are a part of it."""

    async def begin_call(self, call: JournaledCall, more: Mapping[str, Any] | None = None) -> None:
        """Store that a call begins, unless `add_answer` did.

        Args:
            more: further values of the step, a JSON object.
        """

    async def end_call(
        self,
        call: JournaledCall,
        outcome: CallOutcome,
        more: Mapping[str, Any] | None = None,
        approved: ApprovedEnd | None = None,
    ) -> None:
        """Store the result of a call, or that it waits in the middle.

        Args:
            approved: of a call that was approved: its end is stored in the same transaction.
        """


def dump_outcome(outcome: CallOutcome) -> dict[str, Any]:
    """Return the result of a call as JSON, see `load_outcome`."""
    return {
        "text": outcome.text,
        "failed": outcome.failed,
        "counts": outcome.counts_as_failure,
        "routed": outcome.is_routed,
        **({"files": outcome.files} if outcome.files else {}),
    }


def load_outcome(step: Mapping[str, Any]) -> CallOutcome:
    """Return the result of a call that a step has."""
    routed = bool(step.get("routed"))
    return CallOutcome(
        step["text"], step["failed"], step["counts"], is_routed=routed, files=step.get("files")
    )
