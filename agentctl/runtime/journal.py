"""The journal of a durable run: what another process needs to go on with it (docs/decisions/0099).

It only grows: an answer of the model with its calls is one step, each call another one. The state
of a component at the last step is built from its checkpoint and the steps after it, so a step costs
as much as it adds, however long the conversation is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from agentctl.light_dataclass import dataclass
from agentctl.runtime.pauses import CallOutcome

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
    """Raised by a component of a durable run between two steps: another process goes on."""

    def __init__(self) -> None:
        super().__init__("the run is handed over")


@dataclass(frozen=True, slots=True)
class JournaledCall:
    """A call of a durable run.

    Attributes:
        call_id: unique in the run, and the same in every attempt.
        idempotent: True if it may be made again with its id after its process died.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    idempotent: bool = False
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


def load_outcome(stored: Mapping[str, Any]) -> CallOutcome:
    """Return the result of a call that a step has."""
    routed = bool(stored.get("routed"))
    return CallOutcome(
        stored["text"], stored["failed"], stored["counts"], is_routed=routed,
        files=stored.get("files"),
    )  # fmt: skip
