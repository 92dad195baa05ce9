"""The interface between a component and the engine that runs it; tests implement it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from agentctl.agents import Memories
    from agentctl.config.settings import Limits
    from agentctl.records.run_spec import RunSpec
    from agentctl.runtime.component import Component
    from agentctl.runtime.events import RunEvent
    from agentctl.runtime.session_state import SessionState
    from agentctl.runtime.transcript import Transcript

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


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The messages of an earlier run of the session, or earlier messages of the request.

    Attributes:
        messages: its neutral messages (`runtime.transcript`), without those of the system.
        native: its messages as JSON of the library of the same kind of runner; None if another kind
            executed it.
        given: True for messages of the request, which no memory of a runner has.
    """

    messages: Sequence[Mapping[str, Any]]
    native: str | None = None
    given: bool = False


class RunEnvironment(Protocol):
    """The environment of one run.

    Attributes:
        spec: what the run does, for whom and within which limits.
        state: the state of the session, shared with the runs of members and steps.
        earlier_runs: the runs of the session that the component receives, oldest first.
        history: their messages.
        summary: the summary of the runs before them; None for none.
        memories: the memories of the user, None without a user.
        is_stopping: True once the run has to stop. It may be read in any thread.
        has_ended: True once the results of the run are no longer changed.
        transcript: results of the run, empty at the start.
        limits: size limits in bytes.
    """

    @property
    def spec(self) -> RunSpec: ...
    @property
    def state(self) -> SessionState: ...
    @property
    def earlier_runs(self) -> Sequence[EarlierRun]: ...
    @property
    def history(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def summary(self) -> str | None: ...
    @property
    def memories(self) -> Memories | None: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def has_ended(self) -> bool: ...
    @property
    def transcript(self) -> Transcript: ...
    @property
    def limits(self) -> Limits: ...

    def emit(self, event: RunEvent) -> None:
        """Publish an event. Fast, never waits."""
        ...

    async def is_first_of_session(self) -> bool:
        """Return True if the session has no earlier run."""
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
