"""The operations on sessions; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from agentctl.interface.bodies import (
    DeleteSessionsBody,
    HoldSessionBody,
    NewSessionBody,
    PruneBody,
    RenameSessionBody,
    UpdateSessionBody,
)
from agentctl.interface.declarations import Body, Family, Path, Query, operation
from agentctl.interface.operations.runs import RunId
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    FULL_VIEW,
    SUMMARY_WAIT,
    BulkDeletion,
    NewSession,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
)
from agentctl.interface.requests.administration import PRUNE_WAIT, IdleFilter, PruneRequest
from agentctl.interface.requirements import Admin, NeedsScope
from agentctl.interface.responses import EXPORT_RESPONSES, HELD_RESPONSES
from agentctl.records.document import Document
from agentctl.records.items import RunViews
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import (
    ExportFormat,
    HoldRecord,
    IdlePage,
    PruneRecord,
    SessionDetail,
    SessionHead,
    SessionPage,
    SessionView,
)

SessionId = Annotated[str, Path("Id of the session", "session")]
Form = Annotated[SessionView, Query("`summary`: counts and the last run instead of the history")]

# A method of the family is named `list`.
SessionRuns = list[RunRecord]
SessionRunViews = list[RunViews]

_SESSION = "/sessions/{session_id}"
_READS = NeedsScope("sessions", "read", "session_id")
_WRITES = NeedsScope("sessions", "write", "session_id")


class SessionsFamily(Family):
    """The operations on sessions, and on the runs of one session."""

    @operation(
        "get_session_by_id", "GET", _SESSION, needs=_READS, tag="Sessions", summaries=SessionHead
    )
    async def get(
        self, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR, *, view: Form = "full"
    ) -> Document[SessionDetail]:
        """Get a session.

        One session with its metadata, configuration and history. The shape depends on its type.
        With `view=summary` it has no history, and its cost does not depend on the number of runs.
        """

    @operation(
        "get_sessions",
        "GET",
        "/sessions",
        needs=NeedsScope("sessions", "read"),
        tag="Sessions",
        order=("type", "component_id", "user_id", ..., "db_id", "table"),
    )
    async def list(self, filter: SessionFilter) -> Document[SessionPage]:
        """List sessions.

        One page of the sessions that the caller can see, as summaries.
        """

    @operation(
        "create_session",
        "POST",
        "/sessions",
        needs=NeedsScope("sessions", "write"),
        tag="Sessions",
        body=Body(NewSessionBody, optional=True),
        status=201,
        errors=(409, 429),
    )
    async def create(self, session: NewSession) -> Document[SessionDetail]:
        """Create a session.

        Creates an empty session that the caller owns. An id that is in use is a conflict.
        """

    @operation(
        "delete_sessions",
        "DELETE",
        "/sessions",
        needs=NeedsScope("sessions", "delete"),
        tag="Sessions",
        body=Body(DeleteSessionsBody),
        errors=(409,),
        responses=HELD_RESPONSES,
    )
    async def delete_several(self, deletion: BulkDeletion) -> None:
        """Delete several sessions.

        Deletes all of the given sessions with their runs, or none if one of them cannot be deleted.
        """

    @operation(
        "update_session",
        "PATCH",
        _SESSION,
        needs=_WRITES,
        tag="Sessions",
        body=Body(UpdateSessionBody),
        summaries=SessionHead,
        errors=(429,),
        is_repeatable=True,
    )
    async def update(
        self,
        session_id: SessionId,
        patch: SessionPatch,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: Form = "full",
    ) -> Document[SessionDetail]:
        """Update a session.

        Replaces the name, the state or the metadata. Each given value replaces the whole stored
        value.
        """

    @operation(
        "delete_session",
        "DELETE",
        _SESSION,
        needs=NeedsScope("sessions", "delete", "session_id"),
        tag="Sessions",
        errors=(409,),
        responses=HELD_RESPONSES,
    )
    async def delete(
        self,
        session_id: SessionId,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        cancel: Annotated[
            bool, Query("Cancel its runs first, and wait up to 10 s for them to stop")
        ] = False,
    ) -> None:
        """Delete a session.

        Deletes the session with its runs. A live run is a conflict, unless `cancel` is set.
        """

    @operation(
        "rename_session",
        "POST",
        f"{_SESSION}/rename",
        needs=_WRITES,
        tag="Sessions",
        body=Body(RenameSessionBody),
        summaries=SessionHead,
        is_repeatable=True,
    )
    async def rename(
        self,
        session_id: SessionId,
        session_name: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        view: Form = "full",
    ) -> Document[SessionDetail]:
        """Rename a session."""

    @operation(
        "summarize_session",
        "POST",
        f"{_SESSION}/summarize",
        needs=_WRITES,
        tag="Sessions",
        summaries=SessionHead,
        errors=(409,),
        wait=SUMMARY_WAIT,
    )
    async def summarize(
        self, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR, *, view: Form = "full"
    ) -> Document[SessionDetail]:
        """Summarize a session.

        Summarizes the runs that are not part of the summary yet, and returns the session.
        """

    @operation(
        "hold_session",
        "POST",
        f"{_SESSION}/hold",
        needs=Admin(),
        tag="Sessions",
        body=Body(HoldSessionBody),
        errors=(409,),
    )
    async def hold(
        self, session_id: SessionId, reason: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[HoldRecord]:
        """Hold a session.

        A held session is not deleted, neither by a request nor for its age.
        """

    @operation(
        "release_session",
        "DELETE",
        f"{_SESSION}/hold",
        needs=Admin(),
        tag="Sessions",
        errors=(409,),
    )
    async def release(self, session_id: SessionId, where: SessionLocator = DEFAULT_LOCATOR) -> None:
        """End the hold of a session."""

    @operation(
        "export_session",
        "GET",
        f"{_SESSION}/export",
        needs=_READS,
        tag="Sessions",
        responses=EXPORT_RESPONSES,
    )
    def export(
        self,
        session_id: SessionId,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        format: Annotated[ExportFormat, Query("Format of the file")] = "jsonl",
        model_calls: Annotated[bool, Query("Add the model calls of each run")] = False,
    ) -> AsyncIterator[bytes]:
        """Export a session with all its runs as a file."""

    @operation("get_idle_sessions", "GET", "/retention/sessions", needs=Admin(), tag="Sessions")
    async def list_idle(self, filter: IdleFilter) -> Document[IdlePage]:
        """List idle sessions.

        One page of the sessions that have not been used for some days, with their sizes.
        """

    @operation(
        "prune_sessions",
        "POST",
        "/retention/sessions/prune",
        needs=Admin(),
        tag="Sessions",
        body=Body(PruneBody),
        wait=PRUNE_WAIT,
    )
    async def prune(self, request: PruneRequest) -> Document[PruneRecord]:
        """Remove idle sessions.

        Removes the given sessions that are still idle, with everything that belongs to them, and
        lists the sessions that were kept. Held sessions and sessions with a live or paused run are
        kept.
        """

    @operation(
        "get_session_runs",
        "GET",
        f"{_SESSION}/runs",
        needs=_READS,
        tag="Sessions",
        summaries=SessionRunViews,
    )
    async def list_runs(
        self, session_id: SessionId, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[SessionRuns]:
        """List the runs of a session.

        Oldest first, including the runs of members and steps. If there are as many as `limit`,
        `after` with the id of the last run continues the list, or `before` if the order is `desc`.
        """

    @operation(
        "get_session_run",
        "GET",
        f"{_SESSION}/runs/{{run_id}}",
        needs=_READS,
        tag="Sessions",
        summaries=RunViews,
    )
    async def get_run(
        self,
        session_id: SessionId,
        run_id: RunId,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        """Get a run of a session."""
