"""The remote backend: every operation is one HTTP request (docs/contract.md "Routes")."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, get_origin

from agentctl import errors
from agentctl.records.accounts import AccountPage, NewAccountRecord
from agentctl.records.audit import AuditPage
from agentctl.records.authorization import ExplainRecord
from agentctl.records.components import AgentRecord, TeamRecord, WorkflowRecord
from agentctl.records.events import END_NAMES
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.memories import MemoryPage, MemoryRecord
from agentctl.records.routes import operation_ids
from agentctl.records.runs import CancelRecord, RunPage, RunRecord, ToolCallRecord
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
from agentctl.remote import failures
from agentctl.remote.address import check_credential, parse_address
from agentctl.remote.connection import (
    Connection,
    ReceivedDocument,
    Request,
    Shape,
    Timeouts,
    build_path,
)
from agentctl.remote.events import EventParser, ServerEvent
from agentctl.remote.queries import (
    Query,
    build_account_body,
    build_explain_body,
    build_memory_body,
    build_memory_changes,
    build_memory_deletion,
    build_query,
    build_run_body,
    build_run_headers,
    build_session_body,
    query_of,
)
from agentctl.requests import (
    BEFORE_FIRST_EVENT,
    DEFAULT_LOCATOR,
    DELETION_WAIT,
    FIRST_RUNS,
    FULL_VIEW,
    SUMMARY_WAIT,
    AccountFilter,
    AuditFilter,
    BulkDeletion,
    CancelRequest,
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

if TYPE_CHECKING:
    from agentctl.records.document import Document

Record = TypeVar("Record")

_RECORDS: dict[ComponentKind, Any] = {
    "agent": AgentRecord,
    "team": TeamRecord,
    "workflow": WorkflowRecord,
}
_LISTS: dict[ComponentKind, Any] = {
    "agent": list[AgentRecord],
    "team": list[TeamRecord],
    "workflow": list[WorkflowRecord],
}

_SEQUENCE = re.compile(r"[0-9]{1,18}")


class RemoteOperations:
    """The `operations.Operations` of the server at a URL, as an async context manager.

    Args:
        url: the URL of the server, with the path under which it is mounted, if any.
        token: a bearer token, sent to the origin of `url` only; None sends none.
        connect_timeout: seconds to wait for a connection.
        read_timeout: seconds to wait for a response. The wait of a cancel is added; a run in the
            foreground has no limit.
        stream_timeout: seconds without a byte, comments included, until a stream counts as lost.
        whole_timeout: seconds for a whole response once it has begun, and for one event of a
            stream, however often a byte arrives.
        allow_insecure: send the token over plain http to another machine.

    Attributes:
        connection: the HTTP connection; it is open within the block.

    Raises:
        errors.UsageError: the URL is not valid, or the token must not or cannot be sent.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        connect_timeout: float = 5.0,
        read_timeout: float = 30.0,
        stream_timeout: float = 60.0,
        whole_timeout: float = 300.0,
        allow_insecure: bool = False,
    ) -> None:
        address = parse_address(url)
        if token is not None:
            check_credential(address, token, allow_insecure=allow_insecure)
        self._timeouts = Timeouts(connect_timeout, read_timeout, stream_timeout, whole_timeout)
        self.connection = Connection(address, token, self._timeouts)

    def __repr__(self) -> str:
        return f"RemoteOperations({self.connection.address.base!r})"

    async def __aenter__(self) -> RemoteOperations:
        await self.connection.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.connection.close()

    # System

    async def get_api(self) -> Document[ApiRecord]:
        return await self._get(ApiRecord, build_path("get_api"))

    async def get_health(self) -> Document[HealthRecord]:
        return await self._get(HealthRecord, build_path("get_health"))

    async def get_readiness(self) -> Document[ReadinessRecord]:
        # A server that is not ready responds with 503 and the record, not with an error body.
        return await self._request_document(
            ReadinessRecord, Request("GET", build_path("get_readiness"), accepted_status=503)
        )

    async def get_info(self) -> Document[InfoRecord]:
        return await self._get(InfoRecord, build_path("get_info"))

    async def get_config(self) -> Document[ConfigRecord]:
        return await self._get(ConfigRecord, build_path("get_config"))

    async def get_models(self) -> Document[list[ModelEntry]]:
        return await self._get(list[ModelEntry], build_path("get_models"))

    async def get_me(self) -> Document[MeRecord]:
        return await self._get(MeRecord, build_path("get_me"))

    async def explain_auth(self, request: ExplainRequest) -> Document[ExplainRecord]:
        body = build_explain_body(request)
        return await self._request_document(
            ExplainRecord, Request("POST", build_path("explain_auth"), body=body)
        )

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        return await self._get(AuditPage, build_path("get_audit"), query_of(filter))

    # Components

    async def get_components(self, kind: ComponentKind) -> Document[list[Any]]:
        return await self._get(_LISTS[kind], build_path(operation_ids(kind).list))

    async def get_component(self, kind: ComponentKind, component_id: str) -> Document[Any]:
        return await self._get(
            _RECORDS[kind], _component_path(operation_ids(kind).get, kind, component_id)
        )

    # Runs

    async def create_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> Document[RunRecord]:
        path = _component_path(operation_ids(kind).create_run, kind, component_id)
        body = build_run_body(request, stream=False)
        wait = 0.0 if request.background else None
        headers = build_run_headers(request)
        post = Request("POST", path, body=body, headers=headers, extra_wait=wait)
        return await self._request_document(RunRecord, post)

    async def stream_run(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncIterator[StreamEvent]:
        path = _component_path(operation_ids(kind).create_run, kind, component_id)
        body = build_run_body(request, stream=True)
        post = Request("POST", path, body=body, headers=build_run_headers(request))
        event: StreamEvent | None = None
        async with contextlib.aclosing(self._events(post, BEFORE_FIRST_EVENT)) as events:
            async for event in events:
                yield event
        if event is None or not _is_final(kind, event):
            raise _interrupted_stream()

    async def resume_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        path = _component_path(operation_ids(kind).resume_run, kind, component_id, run_id)
        after = None if request.after == BEFORE_FIRST_EVENT else request.after
        query = build_query(session_id=request.session_id, last_event_index=after)
        events = self._events_after(kind, Request("POST", path, query), request.after)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def follow_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ResumeRequest
    ) -> AsyncIterator[StreamEvent]:
        path = _component_path(operation_ids(kind).follow_run, kind, component_id, run_id)
        after = None if request.after == BEFORE_FIRST_EVENT else request.after
        query = build_query(session_id=request.session_id, last_event_index=after)
        events = self._events_after(kind, Request("GET", path, query), request.after)
        async with contextlib.aclosing(events):
            async for event in events:
                yield event

    async def get_tool_call(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        tool_call_id: str,
        *,
        session_id: str | None = None,
    ) -> Document[ToolCallRecord]:
        names = {KINDS[kind].id_field: component_id, "run_id": run_id}
        path = build_path(operation_ids(kind).get_tool_call, **names, tool_call_id=tool_call_id)
        return await self._get(ToolCallRecord, path, build_query(session_id=session_id))

    async def _events_after(
        self, kind: ComponentKind, request: Request, after: int
    ) -> AsyncGenerator[StreamEvent]:
        event: StreamEvent | None = None
        async with contextlib.aclosing(self._events(request, after)) as events:
            async for event in events:
                yield event
        # After the last event of a run there are none, so an empty stream is complete.
        complete = after > BEFORE_FIRST_EVENT if event is None else _is_final(kind, event)
        if not complete:
            raise _interrupted_stream()

    async def _events(self, request: Request, after: int) -> AsyncGenerator[StreamEvent]:
        async with self.connection.stream(request) as chunks:
            parser, blocks, began = EventParser(), 0, time.monotonic()
            async for chunk in chunks:
                for received in parser.feed(chunk):
                    event = _number_event(received, after)
                    after = event.seq
                    yield event
                if parser.blocks > blocks or not parser.incomplete:
                    blocks, began = parser.blocks, time.monotonic()
                elif time.monotonic() - began > self._timeouts.whole:
                    raise failures.build_slow_response_error(self.connection.address)

    async def get_runs(self, filter: RunFilter) -> Document[RunPage]:
        return await self._get(
            RunPage, build_path("get_runs"), query_of(filter, without=("sort_by",))
        )

    async def get_run(
        self, run_id: str, *, db_id: str | None = None, form: RunView = FULL_VIEW
    ) -> Document[RunRecord]:
        query = build_query(db_id=db_id) + query_of(form)
        return await self._get(RunRecord, build_path("get_run", run_id=run_id), query)

    async def list_component_runs(
        self, kind: ComponentKind, component_id: str, filter: RunFilter
    ) -> Document[RunPage]:
        path = _component_path(operation_ids(kind).list_runs, kind, component_id)
        return await self._get(
            RunPage, path, query_of(filter, without=("component_type", "component_id", "sort_by"))
        )

    async def get_component_run(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        *,
        session_id: str | None = None,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        path = _component_path(operation_ids(kind).get_run, kind, component_id, run_id)
        query = build_query(session_id=session_id) + query_of(form)
        return await self._get(RunRecord, path, query)

    async def cancel_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: CancelRequest
    ) -> Document[CancelRecord]:
        path = _component_path(operation_ids(kind).cancel_run, kind, component_id, run_id)
        query = query_of(request)
        return await self._request_document(
            CancelRecord, Request("POST", path, query, extra_wait=request.wait)
        )

    # Sessions

    async def get_sessions(self, filter: SessionFilter) -> Document[SessionPage]:
        return await self._get(SessionPage, build_path("get_sessions"), query_of(filter))

    async def create_session(self, session: NewSession) -> Document[SessionDetail]:
        query = build_query(type=session.type, db_id=session.db_id)
        body = build_session_body(session)
        return await self._request_document(
            SessionDetail, Request("POST", build_path("create_session"), query, body)
        )

    async def get_session_by_id(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]:
        path = build_path("get_session_by_id", session_id=session_id)
        return await self._get(SessionDetail, path, query_of(where))

    async def update_session(
        self, session_id: str, patch: SessionPatch, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]:
        path = build_path("update_session", session_id=session_id)
        return await self._request_document(
            SessionDetail, Request("PATCH", path, query_of(where), patch.changes)
        )

    async def rename_session(
        self, session_id: str, session_name: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]:
        path = build_path("rename_session", session_id=session_id)
        body = {"session_name": session_name}
        return await self._request_document(
            SessionDetail, Request("POST", path, query_of(where), body)
        )

    async def summarize_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR
    ) -> Document[SessionDetail]:
        path = build_path("summarize_session", session_id=session_id)
        request = Request("POST", path, query_of(where), extra_wait=SUMMARY_WAIT)
        return await self._request_document(SessionDetail, request)

    async def delete_session(
        self, session_id: str, where: SessionLocator = DEFAULT_LOCATOR, *, cancel: bool = False
    ) -> None:
        query = query_of(where) + build_query(cancel=cancel or None)
        wait = DELETION_WAIT if cancel else 0.0
        path = build_path("delete_session", session_id=session_id)
        await self.connection.send(Request("DELETE", path, query, extra_wait=wait))

    async def delete_sessions(self, deletion: BulkDeletion) -> None:
        query = build_query(db_id=deletion.db_id)
        body = {"session_ids": list(deletion.session_ids)}
        await self.connection.send(Request("DELETE", build_path("delete_sessions"), query, body))

    async def export_session(
        self,
        session_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        format: ExportFormat = "jsonl",
    ) -> AsyncIterator[bytes]:
        path = build_path("export_session", session_id=session_id)
        request = Request("GET", path, build_query(format=format) + query_of(where))
        async with self.connection.open_raw(request) as response:
            chunks = response.read_chunks()
            if response.response.status_code != 200:
                response.check_status(b"".join([chunk async for chunk in chunks]))
            async for chunk in chunks:
                yield chunk

    async def get_session_runs(
        self, session_id: str, query: SessionRunsQuery = FIRST_RUNS
    ) -> Document[list[RunRecord]]:
        path = build_path("get_session_runs", session_id=session_id)
        return await self._get(list[RunRecord], path, query_of(query))

    async def get_session_run(
        self,
        session_id: str,
        run_id: str,
        where: SessionLocator = DEFAULT_LOCATOR,
        *,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        path = build_path("get_session_run", session_id=session_id, run_id=run_id)
        return await self._get(RunRecord, path, query_of(where) + query_of(form))

    # Memories

    async def get_memories(self, filter: MemoryFilter) -> Document[MemoryPage]:
        query = query_of(filter, without=("sort_by",)) + build_query(sort_by=filter.page.sort_by)
        return await self._get(MemoryPage, build_path("get_memories"), query)

    async def create_memory(self, memory: NewMemory) -> Document[MemoryRecord]:
        body = build_memory_body(memory)
        request = Request("POST", build_path("create_memory"), body=body)
        return await self._request_document(MemoryRecord, request)

    async def get_memory(self, memory_id: str) -> Document[MemoryRecord]:
        return await self._get(MemoryRecord, build_path("get_memory", memory_id=memory_id))

    async def update_memory(self, memory_id: str, patch: MemoryPatch) -> Document[MemoryRecord]:
        path = build_path("update_memory", memory_id=memory_id)
        body = build_memory_changes(patch)
        return await self._request_document(MemoryRecord, Request("PATCH", path, body=body))

    async def delete_memory(self, memory_id: str) -> None:
        path = build_path("delete_memory", memory_id=memory_id)
        await self.connection.send(Request("DELETE", path))

    async def delete_memories(self, deletion: MemoryDeletion) -> None:
        body = build_memory_deletion(deletion)
        await self.connection.send(Request("DELETE", build_path("delete_memories"), body=body))

    async def get_memory_topics(self, *, user_id: str | None = None) -> Document[list[str]]:
        query = build_query(user_id=user_id)
        return await self._get(list[str], build_path("get_memory_topics"), query)

    # Service accounts

    async def create_service_account(self, account: NewAccount) -> Document[NewAccountRecord]:
        body = build_account_body(account)
        return await self._request_document(
            NewAccountRecord, Request("POST", build_path("create_service_account"), body=body)
        )

    async def list_service_accounts(self, filter: AccountFilter) -> Document[AccountPage]:
        return await self._get(
            AccountPage, build_path("list_service_accounts"), query_of(filter, without=("sort_by",))
        )

    async def revoke_service_account(self, account_id: str) -> None:
        path = build_path("revoke_service_account", account_id=account_id)
        await self.connection.send(Request("DELETE", path))

    async def _get(self, record: Any, path: str, query: Query = ()) -> Document[Any]:
        return await self._request_document(record, Request("GET", path, query))

    async def _request_document(self, record: Any, request: Request) -> Document[Any]:
        shape: Shape = "array" if get_origin(record) is list else "object"
        return ReceivedDocument(await self.connection.fetch(request, shape), record)


def _component_path(
    operation: str, kind: ComponentKind, component_id: str, run_id: str = ""
) -> str:
    return build_path(operation, **{KINDS[kind].id_field: component_id}, run_id=run_id)


def _number_event(received: ServerEvent, before: int) -> StreamEvent:
    given = received.id or ""
    seq = int(given) if _SEQUENCE.fullmatch(given) else before + 1
    return StreamEvent(seq, received.name, received.data)


def _is_final(kind: ComponentKind, event: StreamEvent) -> bool:
    return event.name in END_NAMES[kind]


def _interrupted_stream() -> errors.Unavailable:
    return errors.Unavailable(
        "The stream ended before the run did",
        cause="the server, or a proxy in front of it, closed the connection",
        hint="check the status of the run with: agentctl runs list",
    )
