"""Operations: the things that a caller can do, on the local backend or over HTTP.

`Operations` has two implementations, and the command line does not distinguish them:
`service.Service.operations_for(principal)` in this process, and
`remote.RemoteOperations(url, token)` over HTTP. Every method returns a JSON document
(`records.document.Document`) or raises an `errors.AgentctlError`, so a document never names a
path, host, process or backend. The requests are in `agentctl.requests`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from agentctl.errors import Unsupported
from agentctl.requests import DEFAULT_LOCATOR, FIRST_RUNS, FULL_VIEW

if TYPE_CHECKING:
    from agentctl.records.accounts import AccountPage, NewAccountRecord
    from agentctl.records.audit import AuditPage
    from agentctl.records.authorization import ExplainRecord
    from agentctl.records.document import Document
    from agentctl.records.kinds import ComponentKind
    from agentctl.records.memories import MemoryPage, MemoryRecord
    from agentctl.records.runs import (
        CancelRecord,
        FoundTurn,
        RunDetails,
        RunPage,
        RunRecord,
        ToolCallRecord,
    )
    from agentctl.records.sessions import SessionDetail, SessionPage
    from agentctl.records.system import (
        ApiRecord,
        ConfigRecord,
        HealthRecord,
        InfoRecord,
        MeRecord,
        ModelEntry,
        ReadinessRecord,
    )
    from agentctl.requests import (
        AccountFilter,
        AuditFilter,
        BulkDeletion,
        CancelRequest,
        EarlierMessage,
        ExplainRequest,
        ExportFormat,
        MemoryDeletion,
        MemoryFilter,
        MemoryPatch,
        NewAccount,
        NewMemory,
        NewSession,
        ResumeRequest,
        RunFilter,
        RunRequest,
        RunView,
        SessionFilter,
        SessionLocator,
        SessionPatch,
        SessionRunsQuery,
        StreamEvent,
    )


class Operations(Protocol):
    """The operations of one principal. They raise `errors.AgentctlError`."""

    # Instance
    async def get_api(self) -> Document[ApiRecord]: ...
    async def get_health(self) -> Document[HealthRecord]: ...
    async def get_readiness(self) -> Document[ReadinessRecord]: ...
    async def get_info(self) -> Document[InfoRecord]: ...
    async def get_config(self) -> Document[ConfigRecord]: ...
    async def get_models(self) -> Document[list[ModelEntry]]: ...
    async def get_me(self) -> Document[MeRecord]: ...

    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        """Explain which check decides a request, and its status; for administrators."""
        ...

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        """Return a page of the audit log, newest first."""
        ...

    # Components
    async def get_components(self, kind: ComponentKind) -> Document[list[Any]]:
        """Return the configured components of a kind that the caller may read."""
        ...

    async def get_component(self, kind: ComponentKind, component_id: str) -> Document[Any]: ...

    # Runs
    async def create_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        """Start a run and wait for its end; with `background` return when its row exists."""
        ...

    def stream_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        """Start a run and yield its events. Errors are raised before the first event."""
        ...

    def resume_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of a run after a position; closing the stream does not stop the run.

        Errors are raised before the first event.
        """
        ...

    def follow_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        """Do the same as `resume_run` for callers that may only read; no session is required."""
        ...

    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        tool_call_id: str,
        *,
        session_id: str | None = None,
    ) -> Document[ToolCallRecord]:
        """Return one tool call of a run that has ended, with its whole result."""
        ...

    async def get_runs(self, filter: RunFilter) -> Document[RunPage]: ...

    async def get_run(
        self, run_id: str, *, db_id: str | None = None, form: RunView = FULL_VIEW
    ) -> Document[RunRecord]: ...

    async def list_component_runs(
        self, kind: ComponentKind, component_id: str, filter: RunFilter
    ) -> Document[RunPage]: ...

    async def get_component_run(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        *,
        session_id: str | None = None,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]: ...

    async def cancel_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: CancelRequest
    ) -> Document[CancelRecord]: ...

    # Sessions
    async def get_sessions(self, filter: SessionFilter) -> Document[SessionPage]: ...
    async def create_session(self, session: NewSession) -> Document[SessionDetail]: ...

    async def get_session_by_id(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]: ...

    async def update_session(
        self, session_id: str, patch: SessionPatch, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]: ...

    async def rename_session(
        self, session_id: str, session_name: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]: ...

    async def delete_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR, *, cancel: bool = False
    ) -> None: ...

    async def delete_sessions(self, deletion: BulkDeletion) -> None: ...

    async def summarize_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]:
        """Summarize a session now and return it; without new runs the summary stays."""
        ...

    def export_session(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        format: ExportFormat = "jsonl",
    ) -> AsyncIterator[bytes]:
        """Yield a session with all its runs as a file. Errors are raised before the first part."""
        ...

    async def get_session_runs(
        self, session_id: str, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[list[RunRecord]]: ...

    async def get_session_run(
        self,
        session_id: str,
        run_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]: ...

    # Memories
    async def get_memories(self, filter: MemoryFilter) -> Document[MemoryPage]: ...

    async def create_memory(self, memory: NewMemory) -> Document[MemoryRecord]: ...

    async def get_memory(self, memory_id: str) -> Document[MemoryRecord]: ...

    async def update_memory(self, memory_id: str, patch: MemoryPatch) -> Document[MemoryRecord]: ...

    async def delete_memory(self, memory_id: str) -> None: ...

    async def delete_memories(self, deletion: MemoryDeletion) -> None: ...

    async def get_memory_topics(self, *, user_id: str | None = None) -> Document[list[str]]:
        """Return the topics of the visible memories, each once, in alphabetical order."""
        ...

    # Service accounts
    async def create_service_account(self, account: NewAccount) -> Document[NewAccountRecord]:
        """Create an account. The document contains its token, which is not shown again."""
        ...

    async def list_service_accounts(self, filter: AccountFilter) -> Document[AccountPage]: ...

    async def revoke_service_account(self, account_id: str) -> None: ...


class LocalOperations(Operations, Protocol):
    """The operations of the local backend, and the methods that the server calls in addition.

    The `require_` methods raise the NotFound of an operation without executing it, because the
    server reports a resource that does not exist before an invalid value.
    """

    def require_database(self, where: SessionLocator) -> None:
        """Require the database and the table that `where` names.

        Raises:
            NotFound: there is no such database or table.
        """
        ...

    async def require_memory(self, memory_id: str) -> None:
        """Require that the caller can see a memory.

        Raises:
            NotFound: the memory does not exist or is not visible.
        """
        ...

    def require_component(self, kind: ComponentKind, component_id: str) -> None:
        """Require a configured component.

        Raises:
            NotFound: there is no component of this kind and id.
        """
        ...

    async def require_session(self, session_id: str, where: SessionLocator) -> None:
        """Require a session that the caller sees.

        Raises:
            NotFound: it does not exist, is not visible, or does not match `where`.
        """
        ...

    async def get_changed_session(
        self, session_id: str, where: SessionLocator, known: Container[str]
    ) -> tuple[str, Document[SessionDetail] | None]:
        """Return the version of a session, and the session unless its version is known.

        Two documents of a session with the same version are the same. The history of a session
        whose version is known is not read.

        Raises:
            NotFound: as `get_session_by_id` raises it.
        """
        ...

    async def require_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str | None
    ) -> None:
        """Require a run of this component, and of this session unless `session_id` is None.

        Raises:
            NotFound: there is no such run, or it is not visible to the caller.
        """
        ...

    async def create_run(
        self,
        kind: ComponentKind,
        component_id: str,
        request: RunRequest,
        *,
        earlier: Sequence[EarlierMessage] = (),
    ) -> Document[RunRecord]:
        """Do the same as `Operations.create_run`; `earlier` as for `stream_run_portions`."""
        ...

    async def find_run_session(self, kind: ComponentKind, component_id: str, run_id: str) -> str:
        """Return the id of the session of a run that the caller sees.

        Raises:
            NotFound: there is no such run, or it is not visible to the caller.
        """
        ...

    async def find_turn(self, run_id: str) -> FoundTurn:
        """Return the place of a turn that the caller sees, of any component and database.

        Raises:
            NotFound: there is no such turn, or it is not visible to the caller.
        """
        ...

    async def read_turn(self, run_id: str, found: FoundTurn) -> Document[RunRecord]:
        """Return the record of a turn that the caller has found and cancelled."""
        ...

    async def read_details(
        self, kind: ComponentKind, component_id: str, run: RunRecord
    ) -> RunDetails:
        """Return the runs of the members and steps of a run that the caller has read."""
        ...

    def stream_run_portions(
        self,
        kind: ComponentKind,
        component_id: str,
        request: RunRequest,
        *,
        earlier: Sequence[EarlierMessage] = (),
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Start a run as `stream_run` does, and yield its events in portions.

        A portion has all events that are available at once, limited in size.

        Args:
            earlier: messages that the component receives after those of the session.
        """
        ...

    async def open_resumed_stream(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Return the events of a run after `request.after`, stored and future ones, in portions.

        Raises the errors of `resume_run` at the call, before an event exists.
        """
        ...

    async def open_followed_stream(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Do the same for `follow_run`."""
        ...

    async def record_refusal(
        self, operation: str, path_params: Mapping[str, str], error: Exception
    ) -> None:
        """Write the audit entry of a request that failed before its operation was called."""
        ...


@dataclass(frozen=True, slots=True)
class Fault:
    """A known fault of another product.

    Attributes:
        subject: such as `authorization`, `cancel`, `sessions`.
        serious: True if it certainly affects this server.
        what: the fault.
        remedy: the change that helps.
    """

    subject: str
    serious: bool
    what: str
    remedy: str


class PartialOperations:
    """The base of backends of another product, which implement some of the `Operations`.

    A call of any other operation raises `Unsupported` with the name of the backend, also of one
    that is added to `Operations` later.

    Args:
        name: the subject of the error: the product and its version.
        place: the URL or the file, for the cause of the error.

    Attributes:
        without_counterpart: operations that the product does not have: the end of the error, and a
            hint.
    """

    without_counterpart: ClassVar[Mapping[str, tuple[str, str | None]]] = {}

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place

    def build_missing_error(self, what: str, hint: str | None = None) -> Unsupported:
        """Build the error of an operation that the backend does not have.

        Args:
            what: completes the sentence "the product does not have …".
        """
        return Unsupported(
            f"{self.name} does not have {what}",
            cause=f"{self.place} is {self.name}, not agentctl",
            hint=hint,
        )

    def __getattr__(self, operation: str) -> Any:
        if operation.startswith("_") or operation not in _operation_names():
            raise AttributeError(operation)

        def refuse(*_: Any, **__: Any) -> Any:
            unknown = f"the operation {operation}", None
            raise self.build_missing_error(*self.without_counterpart.get(operation, unknown))

        return refuse

    def list_faults(self) -> Iterable[Fault]:
        """Return the known faults of the product that matter to its operators."""
        return ()


def _operation_names() -> frozenset[str]:
    return frozenset(name for name in vars(Operations) if not name.startswith("_"))
