"""The interface between a component and the engine that runs it; tests implement it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from agentctl.config.settings import Limits
    from agentctl.runtime.component import Component
    from agentctl.runtime.events import RunEvent
    from agentctl.runtime.transcript import Transcript

__all__ = ["MemberResult", "MemberStatus", "RunEnvironment"]

MemberStatus = Literal["COMPLETED", "ERROR", "CANCELLED"]


@dataclass(frozen=True, slots=True)
class MemberResult:
    """The result of the run of a member or of a step.

    Attributes:
        run_id: id of the child run.
        status: its final status.
        content: its content; partial unless the status is COMPLETED.
        error_detail: public text of its failure; None unless the status is ERROR.
        error_code: code of its failure (docs/contract.md "Failures of a run"); None unless the
            status is ERROR.
    """

    run_id: str
    status: MemberStatus
    content: str
    error_detail: str | None = None
    error_code: str | None = None


class RunEnvironment(Protocol):
    """The environment of one run.

    Attributes:
        run_id: id of the run.
        session_id: id of its session.
        transcript: results of the run, empty at the start.
        tool_timeout: maximum seconds of a tool call.
        limits: size limits in bytes.
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
        """Publish an event. Fast, never waits."""
        ...

    def checkpoint(self) -> None:
        """Raise asyncio.CancelledError if a cancel was requested.

        Called before every model call and every tool call.
        """
        ...

    async def run_member(self, component: Component, message: str) -> MemberResult:
        """Run a member or a step as a child of this run; the engine sets its time limit.

        A cancel of this call cancels the child. A failure of the child is a result, not an
        exception.
        """
        ...
