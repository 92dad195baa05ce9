"""Runs of an AgentOS server: start, follow with its events, read and cancel."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

import orjson

from agentctl import errors
from agentctl.errors import InvalidResponse, RunFailed
from agentctl.interface import requests
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interop.agentos.backend import build_runs_page, view_run
from agentctl.interop.agentos.mapping import read_error, read_run
from agentctl.interop.agentos.remote.server import AgentOS
from agentctl.interop.agentos.remote.sessions import AgentOSSessions, Record, build_json_fields
from agentctl.interop.agentos.values import format_content, read_counters
from agentctl.interop.agentos.waiting import FIELDS, apply_decisions, find_returned, find_waiting
from agentctl.records.document import Document, build_document
from agentctl.records.events import END_STATUSES, EVENT_NAMES, EventKind, find_event_kind
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import FINAL_STATUSES, CancelRecord
from agentctl.records.times import format_rfc3339, now
from agentctl.remote.connection import Connection, Request, build_path
from agentctl.remote.events import EventParser, ServerEvent
from agentctl.remote.queries import build_query

POLL_SECONDS = 0.25
"""Seconds between two reads of a run whose end is awaited."""

SHORT_POLLS = 8
"""Reads after which the pause becomes `LONG_POLL_SECONDS`."""

LONG_POLL_SECONDS = 1.0

MAXIMUM_FAILED_READS = 2
"""Reads in a row that may fail while the end of a run is awaited."""


_NOT_IN_RUNS = {
    "input": (
        "an object as input of a run", "it takes a message: give --message without --input"
    ),
    "client_tools": (
        "tools of the caller", "its agents have their own tools: omit --client-tools"
    ),
    "idempotency_key": (
        "idempotency keys", "a repeated command would start a second run: omit the key"
    ),
}  # fmt: skip
"""Fields of a run to start that AgentOS does not have, and what to do."""

CONTROL_EVENTS = frozenset({"replay", "catch_up", "subscribed", "error"})
"""Events about the stream itself, which a resumed stream mixes with those of the run."""


class AgentOSRuns(AgentOSSessions):
    """Operations on runs. A run is known by its component and its session.

    `paused` has the runs that were started here and may be paused, as AgentOS shows them, by id.
    """

    def __init__(self, connection: Connection, server: AgentOS) -> None:
        super().__init__(connection, server)
        self.paused: dict[str, Record] = {}

    async def continue_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> Document[Any]:
        """Continue a run that was started here, so that its calls are known."""
        post, session_id = self._build_continue(kind, component_id, run_id, request, stream=False)
        record = {KINDS[kind].id_field: component_id, **await self.read_object(post)}
        self.paused[run_id] = record
        return build_document(read_run(record, session_id))

    async def stream_continued_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ContinueRequest
    ) -> AsyncIterator[requests.StreamEvent]:
        post, _ = self._build_continue(kind, component_id, run_id, request, stream=True)
        reader = EventReader(kind, run_id, requests.BEFORE_FIRST_EVENT)
        async with contextlib.aclosing(self._stream(post, reader)) as events:
            async for event in events:
                yield event
        self._keep_pause(reader)

    def _build_continue(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        request: ContinueRequest,
        *,
        stream: bool,
    ) -> tuple[Request, str]:
        run = self.paused.get(run_id)
        if run is None:
            raise self.build_missing_error(
                "the calls of a paused run without its client",
                "the client that has started the run continues it",
            )
        run = orjson.loads(orjson.dumps(run))  # a refused decision changes nothing
        apply_decisions(run, request.decisions)
        session_id = str(run.get("session_id") or "")
        returned = orjson.dumps(find_returned(run, kind)).decode()
        form = (*build_query(session_id=session_id, stream=stream), (FIELDS[kind], returned))
        path = _component_path(operation_ids(kind).continue_run, kind, component_id, run_id)
        return Request("POST", path, form=form), session_id

    async def create_run(
        self, kind: ComponentKind, component_id: str, request: requests.RunRequest
    ) -> Document[Any]:
        wait = 0.0 if request.background else None
        post = replace(
            self._build_start(kind, component_id, request, stream=False), extra_wait=wait
        )
        record = {KINDS[kind].id_field: component_id, **await self.read_object(post)}
        self.paused[str(record.get("run_id"))] = record
        run = read_run(record, request.session_id)
        return build_document({**run, "input": run["input"] or request.message or ""})

    async def stream_run(
        self, kind: ComponentKind, component_id: str, request: requests.RunRequest
    ) -> AsyncIterator[requests.StreamEvent]:
        post = self._build_start(kind, component_id, request, stream=True)
        reader = EventReader(kind, "", requests.BEFORE_FIRST_EVENT)
        async with contextlib.aclosing(self._stream(post, reader)) as events:
            async for event in events:
                yield event
        self._keep_pause(reader)
        if not reader.ended:
            raise self.server.add_name(
                errors.Unavailable("The stream ended before the run did", cause=reader.refusal)
            )

    def _keep_pause(self, reader: EventReader) -> None:
        if reader.pause is not None:
            self.paused[str(reader.pause.get("run_id"))] = dict(reader.pause)

    def _build_start(
        self, kind: ComponentKind, component_id: str, request: requests.RunRequest, *, stream: bool
    ) -> Request:
        """Build the request that starts a run; Unsupported if AgentOS lacks a part of it."""
        for name, missing in _NOT_IN_RUNS.items():
            if getattr(request, name) is not None:
                raise self.build_missing_error(*missing)
        form = build_query(
            message=request.message,
            stream=stream,
            background=request.background or None,
            session_id=request.session_id,
            user_id=request.user_id,
        ) + build_json_fields(
            metadata=request.metadata,
            session_state=request.session_state,
            output_schema=request.output_schema,
        )
        path = _component_path(operation_ids(kind).create_run, kind, component_id)
        return Request("POST", path, form=form)

    async def resume_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: requests.ResumeRequest
    ) -> AsyncIterator[requests.StreamEvent]:
        """Yield the events that the server has of a run, and return when the run has ended.

        AgentOS buffers the events of streamed background runs only. For any other run, and after
        its buffer, the record of the run is read until it has a final status.
        """
        session_id = self._require_session(run_id, request.session_id)
        path = _component_path(operation_ids(kind).resume_run, kind, component_id, run_id)
        after = None if request.after == requests.BEFORE_FIRST_EVENT else request.after
        post = Request(
            "POST", path, form=build_query(session_id=session_id, last_event_index=after)
        )
        reader = EventReader(kind, run_id, request.after)
        # AgentOS 2.7 breaks the connection for a run without buffered events.
        with contextlib.suppress(errors.NotFound, errors.Unavailable):
            async with contextlib.aclosing(self._stream(post, reader)) as events:
                async for event in events:
                    yield event
        if not reader.ended:
            await self._wait_for_end(kind, component_id, run_id, session_id)

    # AgentOS has no other operation for the events of a run.
    follow_run = resume_run

    async def _stream(
        self, request: Request, reader: EventReader
    ) -> AsyncGenerator[requests.StreamEvent]:
        try:
            async with self.connection.stream(request) as chunks:
                parser = EventParser()
                async for chunk in chunks:
                    for received in parser.feed(chunk):
                        if (event := reader.read(received)) is not None:
                            yield event
        except errors.AgentctlError as failure:
            raise self.server.add_name(failure) from None

    async def _wait_for_end(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str
    ) -> Record:
        """Read the record of a run until it has a final status or is paused.

        A read that fails is repeated: a stream that AgentOS 2 breaks leaves its connection unusable
        for the next request.
        """
        reads = failed = 0
        while True:
            try:
                run = await self._read_run(kind, component_id, run_id, session_id)
                if run["status"] == "PAUSED" or run["status"] in FINAL_STATUSES:
                    return run
                failed = 0
            except errors.Unavailable:
                failed += 1
                if failed > MAXIMUM_FAILED_READS:
                    raise
            reads += 1
            await asyncio.sleep(POLL_SECONDS if reads < SHORT_POLLS else LONG_POLL_SECONDS)

    async def get_runs(self, filter: requests.RunFilter) -> Document[Any]:
        """Return the runs of a session; the server has no list of runs across sessions."""
        self.refuse_search(filter)
        if filter.session_id is None:
            raise self.build_missing_error(
                "a list of runs across sessions",
                "name a session with --session ID, or list them with: agentctl sessions list",
            )
        where = requests.SessionLocator(user_id=filter.user_id, db_id=filter.db_id)
        return build_runs_page(await self.read_session_runs(filter.session_id, where), filter)

    async def list_component_runs(
        self, kind: ComponentKind, component_id: str, filter: requests.RunFilter
    ) -> Document[Any]:
        self.refuse_search(filter)
        if filter.session_id is None:
            raise self.build_missing_error("a list of runs across sessions")
        path = _component_path(operation_ids(kind).list_runs, kind, component_id)
        query = build_query(session_id=filter.session_id, status=filter.status)
        runs = await self.read_list(Request("GET", path, query))
        return build_runs_page([read_run(run, filter.session_id) for run in runs], filter)

    async def get_component_run(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        *,
        session_id: str | None = None,
        form: requests.RunView = requests.FULL_VIEW,
    ) -> Document[Any]:
        session_id = self._require_session(run_id, session_id)
        run = await self._read_run(kind, component_id, run_id, session_id)
        return build_document(view_run(run, form))

    async def _read_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str
    ) -> Record:
        """Read the record of a run. NotFound for a plain run, too, which is stored at its end."""
        path = _component_path(operation_ids(kind).get_run, kind, component_id, run_id)
        request = Request("GET", path, build_query(session_id=session_id))
        try:
            record = await self.read_object(request)
        except errors.NotFound as failure:
            failure.hint = failure.hint or "AgentOS can store a run when it ends: it may still work"
            raise
        return read_run({KINDS[kind].id_field: component_id, **record}, session_id)

    async def cancel_run(
        self, kind: ComponentKind, component_id: str, run_id: str, request: requests.CancelRequest
    ) -> Document[Any]:
        """Request a cancel, and read the run until it has a final status or the wait has ended.

        AgentOS accepts the cancel of every id with an empty answer, so only the record of the run
        shows its outcome.
        """
        session_id = self._require_session(run_id, request.session_id)
        before = await self._find_run(kind, component_id, run_id, session_id)
        if before is not None and before["status"] in FINAL_STATUSES:
            return _build_cancel(before, "already_final", None)
        path = _component_path(operation_ids(kind).cancel_run, kind, component_id, run_id)
        requested_at = format_rfc3339(now())
        await self.read_object(Request("POST", path, build_query(session_id=session_id)))
        end = time.monotonic() + request.wait
        while True:
            run = await self._find_run(kind, component_id, run_id, session_id)
            if run is not None and run["status"] in FINAL_STATUSES:
                stopped = run["status"] == "CANCELLED"
                return _build_cancel(run, "stopped" if stopped else "already_final", requested_at)
            if (left := end - time.monotonic()) <= 0:
                break
            await asyncio.sleep(min(POLL_SECONDS, left))
        if run is None:
            raise errors.NotFound(
                "Run not found",
                cause=f"{self.name} accepted the cancel, as it does for every id, and shows no run"
                f" {run_id} in session {session_id} ({self.place})",
                hint="check the id and the session; a run that is stored at its end may still stop",
            )
        return _build_cancel(run, "requested", requested_at)

    async def _find_run(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str
    ) -> Record | None:
        try:
            return await self._read_run(kind, component_id, run_id, session_id)
        except errors.NotFound as failure:
            if failure.detail.lower().startswith("run"):
                return None
            raise

    def _require_session(self, run_id: str, session_id: str | None) -> str:
        if session_id is None:
            raise self.build_missing_error(
                "runs that can be found without their session",
                f"pass --session ID, and --agent, --team or --workflow ID, of run {run_id}",
            )
        return session_id


def _component_path(
    operation: str, kind: ComponentKind, component_id: str, run_id: str = ""
) -> str:
    return build_path(operation, **{KINDS[kind].id_field: component_id}, run_id=run_id)


def _build_cancel(run: Record, outcome: str, requested_at: str | None) -> Document[Any]:
    shown = {name: run[name] for name in ("run_id", "session_id", "status")}
    built = dict.fromkeys(CancelRecord.__annotations__) | shown
    return build_document(built | {"cancel": outcome, "cancel_requested_at": requested_at})


class EventReader:
    """Converts the events of one stream.

    AgentOS ends the stream of a cancelled run with `RunCancelled` and then `RunCompleted`. A cancel
    that was seen is the end of its run, so the later event is dropped.

    Args:
        run_id: the run; empty until its first event.
        after: the number before that of the first event.

    Attributes:
        ended: True after the last event of the run, and while it is paused.
        pause: the data of the event of the run's last pause.
        refusal: the text of an `error` event about the stream; None without one.
    """

    def __init__(self, kind: ComponentKind, run_id: str, after: int) -> None:
        self._names = EVENT_NAMES[kind].values()
        self._run_id = run_id
        self._after = after
        self._cancelled: set[str] = set()
        self.ended = False
        self.pause: Record | None = None
        self.refusal: str | None = None

    def read(self, received: ServerEvent) -> requests.StreamEvent | None:
        """Return the event of the run, None for one that is dropped.

        Raises:
            RunFailed: the run did not start.
        """
        data = _parse(received)
        name = str(data.get("event") or received.name)
        if name in CONTROL_EVENTS:
            if name == "error":
                self.refusal = str(data.get("error") or "")
            return None
        run_id = str(data.get("run_id") or "")
        kind = find_event_kind(name)
        ends = kind in END_STATUSES
        if not run_id and kind is EventKind.FAILED:
            error = read_error(data, _error_text(data))
            raise RunFailed("the run did not start", cause=f"{error['code']}: {error['detail']}")
        self._run_id = self._run_id or run_id
        if kind is EventKind.CANCELLED:
            self._cancelled.add(run_id)
        elif ends and run_id in self._cancelled:
            return None

        is_own = run_id == self._run_id and name in self._names
        if is_own and (ends or kind in (EventKind.PAUSED, EventKind.CONTINUED)):
            self.ended = kind is not EventKind.CONTINUED
        if is_own and kind is EventKind.PAUSED:
            self.pause = data
        index = data.get("event_index")
        number = index if type(index) is int else self._after + 1
        self._after = max(number, self._after)
        return requests.StreamEvent(
            number, name, orjson.dumps(_build_data(kind, data, is_own=is_own))
        )


def _build_data(kind: EventKind | None, data: dict[str, Any], *, is_own: bool) -> dict[str, Any]:
    """Return the data of an event, of the run itself or of a member, as this server sends it."""
    built = dict(data)
    if "content" in data:
        built["content"] = format_content(data["content"])
    if kind is EventKind.PAUSED:
        # The pause of a run names the calls of its members as well.
        waiting = find_waiting(data) if is_own else ()
        built |= {"approvals": [approval for approval, _ in waiting], "content": None}
    elif kind is EventKind.CONTINUED:
        built.pop("content", None)
    if kind is EventKind.FAILED:
        built |= {"error": read_error(data, _error_text(data)), "content": None}
    elif not isinstance(data.get("error"), dict | None):
        built["error"] = {"code": "FAILED", "detail": str(data["error"])}
    if "metrics" in data:
        built["metrics"] = read_counters(data["metrics"])
    return built


def _parse(received: ServerEvent) -> dict[str, Any]:
    try:
        data = orjson.loads(received.data)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict):
        raise InvalidResponse(
            "the server sent an event that is not what agentctl expects",
            cause="the data of an event is not a JSON object",
        )
    return data


def _error_text(data: dict[str, Any]) -> str | None:
    found = data.get("error")
    return found if isinstance(found, str) and found else format_content(data.get("content"))
