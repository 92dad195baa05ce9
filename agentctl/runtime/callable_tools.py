"""The tools that a model may call, and the rules by which their calls wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from agentctl.records.approvals import ApprovalPolicy
from agentctl.runtime.pauses import CallOutcome

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.conversation import Conversation

NOT_AN_OBJECT = "INVALID_JSON"
"""The only argument of a call whose arguments are not a JSON object; its value is the raw text."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits, as the next leg gets it.

    Attributes:
        is_gated: True if a decision about it is needed.
        has_begun: True if it has begun and waits in the middle.
        state: see `CallPause`.
    """

    is_gated: bool = False
    has_begun: bool = False
    state: Any = None


class Action(Protocol):
    """A tool that a model may call by its name: a configured tool or the delegation to members.

    Attributes:
        has_effects: False if its calls may be repeated, because their effects are those of members.
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
        ...


Check = Callable[[Mapping[str, Any], "Conversation"], Awaitable[CallOutcome | None]]
"""Returns the failure of a call whose arguments are not valid, or None. No one is asked about such
a call."""


@dataclass(frozen=True, slots=True)
class CallRule:
    """The rule by which the calls of a tool wait.

    Attributes:
        kind: `approval`, or `external` for a tool that the caller executes.
        idempotent: True if a call may be made again with its id after its server died.
    """

    kind: Literal["approval", "external"]
    policy: ApprovalPolicy
    check: Check
    idempotent: bool = False
