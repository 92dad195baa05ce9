"""The endpoints of the HTTP interface (docs/contract.md "Routes").

The endpoint of an operation follows from its declaration in `agentctl.interface.operations`, unless
`_ENDPOINTS` has its own: for event streams, headers, defaults and other statuses. The first
argument of an endpoint of runs is the kind of component: agents, teams and workflows have the same
paths below `/agents`, `/teams` and `/workflows`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from agentctl.auth.verifier import Verifier
from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.interface.declarations import Declaration, Header, Query
from agentctl.interface.operations import OPERATIONS
from agentctl.interface.operations.components import ComponentId
from agentctl.interface.operations.files import FileId
from agentctl.interface.operations.runs import RunId
from agentctl.interface.operations.sessions import Form, SessionId
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    DEFAULT_LOCATOR,
    MAXIMUM_EVENT_NUMBER,
    DatabaseId,
    ExplainRequest,
    ForkRequest,
    IdempotencyKey,
    OfSession,
    ResumeRequest,
    RetryRequest,
    RunRequest,
    SessionLocator,
    StreamEvent,
)
from agentctl.interface.requests.files import ByteRange, FileUpload, parse_range
from agentctl.interface.responses import EXPORT_TYPES
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import ExportFormat
from agentctl.records.text import IDEMPOTENCY_KEY
from agentctl.runs.follow.follow import stream_items
from agentctl.server.answers import (
    BytesResponse,
    Call,
    EventStreamResponse,
    KnownTags,
    cancelling_on_disconnect,
    document_response,
    no_content_response,
    versioned_response,
    wait_for_first_events,
)
from agentctl.server.content import read_content_type
from agentctl.server.requests import ADAPTERS, BODIES, build_continue_request, build_run_request
from agentctl.server.routes import console
from agentctl.server.routing import Endpoint, Operation

T = TypeVar("T")

LastEventIndex = Annotated[
    int | None,
    Query(
        "Number of the last received event; without it the stream starts at the first event",
        ge=BEFORE_FIRST_EVENT,
        le=MAXIMUM_EVENT_NUMBER,
    ),
]
LastEventId = Annotated[
    int | None,
    Header(
        "The same as `last_event_index`, as browsers send it",
        alias="Last-Event-ID",
        ge=BEFORE_FIRST_EVENT,
        le=MAXIMUM_EVENT_NUMBER,
    ),
]
EventsView = Annotated[
    Literal["events", "items"],
    Query("`items` has, instead of the events, the changes of the items that they cause"),
]
StartKey = Annotated[
    str | None,
    Header(
        "A unique name of this request; a repeated request with the same key returns the same run",
        alias="Idempotency-Key",
        pattern=IDEMPOTENCY_KEY,
    ),
]


async def create_run(
    kind: ComponentKind, call: Call, component_id: ComponentId, idempotency_key: StartKey = None
) -> Response:
    """Handle `POST /agents/{agent_id}/runs`, for each kind of component."""
    operations = call.operations
    operations.runs.require_open(kind, component_id)
    body = await BODIES["runs.create"].read(call)
    request = build_run_request(RunRequest, body, idempotency_key)

    return await _respond_to_start(
        call,
        body,
        lambda: operations.runs.stream_portions(kind, component_id, request, opens_at_once=True),
        lambda: operations.runs.create(kind, component_id, request),
    )


async def _respond_to_start(
    call: Call,
    body: Mapping[str, Any],
    stream: Callable[[], AsyncGenerator[list[StreamEvent]]],
    start: Callable[[], Coroutine[Any, Any, Document[RunRecord]]],
) -> Response:
    """Start a run, and return its events or its record."""
    if body.get("stream", True):
        events = stream()
        first_events = await wait_for_first_events(call.receive, events)
        return EventStreamResponse(first_events, events)

    async with cancelling_on_disconnect(call.receive):
        run = await start()

    # A run without `background` may be at work too: a repeated request returns the first run.
    is_at_work = run.value["status"] in ("PENDING", "RUNNING")
    status = 202 if body.get("background", False) or is_at_work else 200
    return document_response(run, status)


async def continue_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/continue`, for each kind of component."""
    runs = call.operations.runs
    body = await _read_body("runs.continue_run", call, kind, component_id, run_id)
    request = build_continue_request(body, idempotency_key)

    # None if the run still waits for other decisions.
    continued = await runs.begin_continuation(kind, component_id, run_id, request)
    if continued is not None and body.get("stream", True):
        return EventStreamResponse(None, runs.follow_continuation(continued))

    run = await runs.read_continuation(kind, component_id, run_id, request, continued)
    is_in_background = continued is not None and request.background
    return document_response(run, 202 if is_in_background else 200)


async def repeat_run(
    verb: Literal["retry", "fork"],
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    idempotency_key: StartKey = None,
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/retry` or `…/fork`, for each kind."""
    body = await _read_body(f"runs.{verb}", call, kind, component_id, run_id)
    request_type = RetryRequest if verb == "retry" else ForkRequest
    request = build_run_request(request_type, body, idempotency_key)

    stream: Any = getattr(call.operations.runs, f"stream_{verb}_portions")
    start: Any = getattr(call.operations.runs, verb)
    return await _respond_to_start(
        call,
        body,
        partial(stream, kind, component_id, run_id, request),
        partial(start, kind, component_id, run_id, request),
    )


async def resume_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    last_event_index: LastEventIndex = None,
    session_id: Annotated[
        str | None, Query("Session of the run; required unless the caller is an administrator")
    ] = None,
    last_event_id: LastEventId = None,
    view: EventsView = "events",
) -> Response:
    """Handle `POST /agents/{agent_id}/runs/{run_id}/resume`, for each kind of component."""
    operations = call.operations
    body = await _read_body("runs.resume", call, kind, component_id, run_id, session_id)

    # Each can be in the query, in the header and in the body.
    indexes = {last_event_index, last_event_id, body.get("last_event_index")}
    session_ids = {session_id, body.get("session_id")}
    after = _require_one_value("last_event_index", indexes)
    request = _build_resume(_require_one_value("session_id", session_ids), after, view)

    events = await operations.runs.open_stream("resume", kind, component_id, run_id, request)
    return EventStreamResponse(None, events if view == "events" else stream_items(events, after))


async def follow_run(
    kind: ComponentKind,
    call: Call,
    component_id: ComponentId,
    run_id: RunId,
    last_event_index: LastEventIndex = None,
    session_id: OfSession = None,
    last_event_id: LastEventId = None,
    view: EventsView = "events",
) -> Response:
    """Handle `GET /agents/{agent_id}/runs/{run_id}/events`, for each kind of component."""
    after = _require_one_value("last_event_index", {last_event_index, last_event_id})
    request = _build_resume(session_id, after, view)
    events = await call.operations.runs.open_stream("follow", kind, component_id, run_id, request)
    return EventStreamResponse(None, events if view == "events" else stream_items(events, after))


def _build_resume(session_id: str | None, after: int | None, view: str) -> ResumeRequest:
    # Items are built from all events of a run.
    if after is None or view == "items":
        after = BEFORE_FIRST_EVENT
    return ResumeRequest(session_id, after)


async def _read_body(
    name: str,
    call: Call,
    kind: ComponentKind,
    component_id: str,
    run_id: str,
    session_id: str | None = None,
) -> dict[str, Any]:
    """Return the body of a request about a run. A run that is not found is a 404 before a 422."""
    try:
        return await BODIES[name].read(call)
    except (BadRequest, TooLarge, UnsupportedMediaType):
        await call.operations.runs.require(kind, component_id, run_id, session_id)
        raise


def _require_one_value(name: str, values: set[T | None]) -> T | None:
    """Return the only value that is not None; None without a value.

    Raises:
        ValidationFailed: there are several values.
    """
    given_values = [value for value in values if value is not None]
    if len(given_values) > 1:
        raise ValidationFailed(f"{name} is given with different values")
    return given_values[0] if given_values else None


async def get_api(call: Call) -> Response:
    """Name the service; redirect browsers to the console."""
    if console.is_console_enabled(call) and console.prefers_html(call):
        return console.redirect_to_console()
    return document_response(await call.operations.system.get_api())


async def get_readiness(call: Call) -> Response:
    """Return the readiness, with the state of the keys; 503 if the instance is not ready."""
    readiness = await call.operations.system.get_readiness()

    verifier = call.caller.app_state.verifier
    keys_state = None if verifier is None else _describe_keys(verifier)
    if keys_state is not None:
        checks = {**readiness.value["checks"], "keys": keys_state}
        readiness = build_document({**readiness.value, "checks": checks})

    if readiness.value["status"] == "ready":
        return document_response(readiness)
    return BytesResponse(readiness.raw, 503, headers={"Retry-After": "1"})


def _describe_keys(verifier: Verifier) -> Literal["stale", "degraded"] | None:
    """Return what readiness says about the keys; None if there is nothing to say."""
    if verifier.problem is not None:
        return "stale"
    if verifier.leaves_out_keys:
        return "degraded"
    return None


async def explain_auth(call: Call, request: ExplainRequest) -> Response:
    """Explain an access decision, by default about the token of the request itself."""
    if request.token is None:
        token = call.headers.get("authorization", "").partition(" ")[2] or None
        request = replace(request, token=token)
    return document_response(await call.operations.system.explain_auth(request))


async def get_session_by_id(
    call: Call,
    session_id: SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
    *,
    view: Form = "full",
) -> Response:
    """Return a session with its version as the entity tag; read its history only if it changed."""
    if view == "summary":
        return document_response(await call.operations.sessions.get(session_id, where, view=view))

    known_tags = KnownTags(call.scope["headers"])
    version, document = await call.operations.sessions.get_changed(session_id, where, known_tags)
    response = BytesResponse(b"") if document is None else document_response(document)
    return versioned_response(response, version)


async def upload_file(call: Call, upload: FileUpload) -> Response:
    """Store the bytes of the body while they arrive."""
    media_type = read_content_type(call)
    length = call.headers.get("content-length", "")
    document = await call.operations.files.upload(
        upload,
        call.stream(),
        media_type=media_type,
        size=int(length[:20]) if length.isdecimal() else None,
    )
    return document_response(document, 201)


async def get_file_content(
    call: Call, file_id: FileId, *, db_id: DatabaseId = None, byte_range: ByteRange = None
) -> Response:
    """Send the bytes of a file. No browser shows or executes them as a page of this server."""
    row, read = await call.operations.files.open(file_id, db_id)
    tag = f'"{row.sha256}"'
    if row.sha256 in KnownTags(call.scope["headers"]):
        return BytesResponse(b"", 304, None, {"ETag": tag})

    # A part of a file that has changed would not fit the parts that the client has.
    is_current = call.headers.get("if-range") in (None, tag)
    part = parse_range(byte_range, row.size) if is_current else None
    start, end = part or (0, row.size)

    headers = {
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(row.name, safe='')}",
        "Content-Length": str(end - start),
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "ETag": tag,
    }
    status = 200
    if part is not None:
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{row.size}"
    return await _stream(read(start, end), row.media_type, status, headers)


async def _stream(
    parts: AsyncGenerator[bytes],
    media_type: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Send parts as fast as the client reads them; an error before the first one is a status."""
    first = await anext(parts)

    async def send_all() -> AsyncIterator[bytes]:
        async with aclosing(parts):
            yield first
            async for part in parts:
                yield part

    return StreamingResponse(send_all(), status, headers, media_type)


async def export_session(
    call: Call,
    session_id: SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
    *,
    format: Annotated[ExportFormat, Query("Format of the file")] = "jsonl",
    model_calls: Annotated[bool, Query("Add the model calls of each run")] = False,
) -> Response:
    """Send a session in parts."""
    parts = call.operations.sessions.export(
        session_id, where, format=format, model_calls=model_calls
    )
    return await _stream(parts, EXPORT_TYPES[format])


_ENDPOINTS: dict[str, Endpoint] = {
    "system.get_api": get_api,
    "system.get_readiness": get_readiness,
    "system.explain_auth": explain_auth,
    "runs.create": create_run,
    "runs.continue_run": continue_run,
    "runs.retry": partial(repeat_run, "retry"),
    "runs.fork": partial(repeat_run, "fork"),
    "runs.resume": resume_run,
    "runs.follow": follow_run,
    "sessions.get": get_session_by_id,
    "sessions.export": export_session,
    "files.upload": upload_file,
    "files.get_content": get_file_content,
}
"""Endpoints by family and method: `sessions.get`."""


@cache
def build_all_operations() -> tuple[Operation, ...]:
    """Return all operations except those of the documentation pages."""
    return (*map(_build_operation, OPERATIONS.values()), *console.build_operations())


def _build_operation(declared: Declaration) -> Operation:
    address = declared.address
    record = declared.record
    body = BODIES.get(address)

    kind = declared.kind
    kind_arguments = () if kind is None else (kind,)

    status = declared.status
    own_endpoint = _ENDPOINTS.get(address)
    if own_endpoint is not None:
        # It sets the status itself, and its own parameters are read.
        endpoint: Endpoint = partial(own_endpoint, *kind_arguments)
    else:
        if record is None:
            status = 204
        endpoint = _build_endpoint(address, kind_arguments, status)

    path_names = None
    if kind is not None and KINDS[kind].id_field in declared.route.template:
        path_names = {KINDS[kind].id_field: "component_id"}

    return Operation(
        endpoint,
        name=declared.name,
        tag=declared.tag,
        result=record | declared.summaries if declared.summaries else record,
        status=status,
        errors=declared.errors if body is None else (*declared.errors, 413, 415),
        body=body,
        adapt_body=ADAPTERS.get(address),
        responses=declared.responses,
        texts=declared.read_texts(),
        path_names=path_names,
        signature=declared.signature if own_endpoint is None else None,
    )


def _build_endpoint(address: str, kind_arguments: tuple[str, ...], status: int) -> Endpoint:
    """Build the endpoint that calls the method of an address, such as `sessions.delete`."""
    find_method = attrgetter(address)

    async def endpoint(call: Call, **arguments: Any) -> Response:
        document = await find_method(call.operations)(*kind_arguments, **arguments)
        return no_content_response() if document is None else document_response(document, status)

    return endpoint
