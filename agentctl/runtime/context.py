"""What a run needs from whoever runs it. The engine implements it, and tests may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from agentctl.config.settings import Limits
    from agentctl.runtime.component import Component
    from agentctl.runtime.events import RunEvent
    from agentctl.runtime.transcript import Transcript

__all__ = ["MemberResult", "MemberStatus", "RunContext"]

MemberStatus = Literal["COMPLETED", "ERROR", "CANCELLED"]


@dataclass(frozen=True, slots=True)
class MemberResult:
    """How the run of a member or of a step ended.

    Attributes:
        run_id: id of the child run.
        status: its final status.
        content: its content, partial unless it completed.
        error_detail: public text of its failure; None unless `status` is ERROR.
        error_code: code of its failure (contract.md 5); None unless `status` is ERROR.
    """

    run_id: str
    status: MemberStatus
    content: str
    error_detail: str | None = None
    error_code: str | None = None


class RunContext(Protocol):
    """The surroundings of one run.

    Attributes:
        run_id: id of the run.
        session_id: id of its session.
        transcript: what the run fills, empty at the start.
        tool_timeout: seconds that a tool may take.
        limits: bounds on what is kept, in bytes.
    """

    @property
    def run_id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def transcript(self) -> Transcript: ...
    @property
    def tool_timeout(self) -> float: ...
    @property
    def limits(self) -> Limits: ...

    def emit(self, event: RunEvent) -> None:
        """Tell listeners. Cheap, never waits."""
        ...

    def checkpoint(self) -> None:
        """Raise asyncio.CancelledError when a cancel was requested.

        Called before every model call and before every tool call.
        """
        ...

    async def run_member(self, component: Component, message: str) -> MemberResult:
        """Run a member or a step as a child of this run; its time limit is the engine's matter.

        Cancelling the call cancels the child. Never raises for a child that failed.
        """
        ...
