"""Runs of components: start by forms, list, get, cancel, resume, for clients of AgentOS."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Annotated, Any

import orjson
from starlette.responses import Response

from agentctl.errors import BadRequest, TooLarge, UnsupportedMediaType, ValidationFailed
from agentctl.interface.bodies import BodyRecord, Field, ResumeBody, RunBody
from agentctl.interface.declarations import Header, Query
from agentctl.interface.operations.components import ComponentId
from agentctl.interface.operations.runs import RunId
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_LIMIT,
    CancelRequest,
    DatabaseId,
    IdempotencyKey,
    Page,
    ResumeRequest,
    RunFilter,
    RunRequest,
    StreamEvent,
)
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interop.agentos.server.events import EventTranslator
from agentctl.interop.agentos.server.operation import (
    Endpoints,
    Portion,
    read_repeated,
    translate_portions,
)
from agentctl.interop.agentos.server.pauses import FIELDS, match_decisions, read_entries
from agentctl.interop.agentos.server.runs import RunBuilder
from agentctl.interop.agentos.values import Built, read_text
from agentctl.records.events import EventKind, find_event_kind
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunDetails, RunRecord
from agentctl.records.strict import parse_json
from agentctl.records.text import IDEMPOTENCY_KEY
from agentctl.runs.states import is_final
from agentctl.server.answers import (
    Call,
    EventStreamResponse,
    cancelling_on_disconnect,
    document_response,
    json_response,
    wait_for_first_events,
)
from agentctl.server.content import FORM, MULTIPART, parse_pairs, read_media_type
from agentctl.server.given_files import (
    GivenFile,
    read_data_url,
    read_multipart,
    store_files,
    store_part,
)
from agentctl.server.requests import RequestBody, build_run_request

_VARIANTS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("input", "additional_instructions"), (None, "")),
    **dict.fromkeys(("fork", "regenerate"), (None, False)),
    "continue_from": (None, "", "end"),
}
"""Fields of `ContinueForm` with other ways to continue, and the values that change nothing."""

SessionQuery = Annotated[str | None, Query("Session of the run")]

MAXIMUM_RUNS = 1_000
"""Maximum number of runs of a response that AgentOS does not bound."""

_REFUSED = {
    "videos": "no model takes them",
    "knowledge_filters": "this server has no knowledge bases",
    "factory_input": "components are those of the configuration",
}
"""Fields of AgentOS that would be dropped, and the reason why they are refused."""

_MEDIA = ("images", "audio", "audios", "files", "input_files")
"""Fields with files: parts of a multipart form, or JSON arrays of objects."""

_EMPTY = frozenset({"", "[]", "{}", "null", "None"})
"""Texts of a form that clients send for a field without a value."""

_BOOLEANS = frozenset({"stream", "background"})

_TRUTH = {
    **dict.fromkeys(("yes", "on", "y", "t"), "true"),
    **dict.fromkeys(("no", "off", "n", "f"), "false"),
}
"""Words for truth values, besides true and false, that AgentOS accepts in a form."""


class FormBody(RequestBody):
    """The reader of a body with the forms of AgentOS.

    Fields that neither side knows are ignored. A field that this server does not support and that
    has a value is refused.
    """

    def __init__(self, record: type, *, optional: bool = False) -> None:
        super().__init__(record, form=True, optional=optional)

    def check_form(self, pairs: list[tuple[str, str]]) -> dict[str, Any]:
        return super().check_form(_check_pairs(pairs, takes_ids="files" in self._fields))


def _check_pairs(pairs: list[tuple[str, str]], *, takes_ids: bool) -> list[tuple[str, str]]:
    """Return the pairs with truth values as the contract spells them.

    Empty fields that are not supported are left out.

    Args:
        takes_ids: True if the field `files` can have ids.

    Raises:
        ValidationFailed: a field that is not supported has a value.
    """
    checked_pairs = list[tuple[str, str]]()
    for name, text in pairs:
        if name not in _REFUSED and name not in _MEDIA:
            value = _TRUTH.get(text.lower(), text) if name in _BOOLEANS else text
            checked_pairs.append((name, value))
            continue

        if text in _EMPTY:
            continue
        if name != "files" or not takes_ids:
            reason = _REFUSED.get(name, "only the start of a run takes files")
            raise ValidationFailed(f"{name} is not supported: {reason}")
        checked_pairs.append((name, text))
    return checked_pairs


class RunForm(RunBody, total=False):
    """A run to start, with a field that the contract does not have."""

    stream_events: Annotated[bool | None, Field(description="False: only content and failures")]


class ContinueForm(BodyRecord, total=False):
    """A paused run to continue."""

    tools: str | None
    requirements: str | None
    step_requirements: str | None
    session_id: str | None
    stream: bool
    background: bool
    dependencies: dict[str, Any] | None
    input: str | None
    additional_instructions: str | None
    continue_from: str | None
    fork: bool | None
    regenerate: bool | None


class RunFormBody(FormBody):
    """The reader of the body of a start, whose forms can have files."""

    async def read_with_files(self, call: Call, db_id: str | None) -> dict[str, Any]:
        """Return the fields, with the ids of all files in `files`. The files are stored.

        Args:
            db_id: the database of the component that gets the files; None for the default database.

        Raises:
            AgentctlError: the errors of `read`, or a file is refused.
        """
        operations = call.operations
        settings = call.caller.app_state.settings
        content_type = read_media_type(call)
        if content_type not in (MULTIPART, FORM):
            return await self.read(call)

        file_ids = list[str]()
        if content_type == FORM:
            body, given_files = self._split(parse_pairs(await call.body()))
        else:
            limit = settings.limits.body_bytes + settings.files.run_bytes
            async with read_multipart(call, limit) as (pairs, parts):
                # Check all fields first: a request that is refused stores nothing.
                body, given_files = self._split(pairs)
                for name, _ in parts:
                    if name not in _MEDIA:
                        raise ValidationFailed(f"{name} is not supported: {_REFUSED.get(name)}")
                for _, part in parts:
                    record = await store_part(operations, part, db_id)
                    file_ids.append(orjson.loads(record)["file_id"])

        file_ids += await store_files(operations, given_files, db_id)
        return {**body, "files": [*(body.get("files") or ()), *file_ids]}

    def _split(self, pairs: list[tuple[str, str]]) -> tuple[dict[str, Any], list[GivenFile]]:
        """Return the fields of a form, and the files of the JSON arrays in it."""
        given_files = list[GivenFile]()
        other_pairs = list[tuple[str, str]]()
        for name, text in pairs:
            if name in _MEDIA and text.lstrip().startswith("[") and text not in _EMPTY:
                given_files += _read_media(name, text)
            else:
                other_pairs.append((name, text))
        return self.check_form(other_pairs), given_files


def _read_media(name: str, text: str) -> Iterator[GivenFile]:
    """Yield the files of a JSON array: objects with `content` in base64, `url` or `id`."""
    try:
        entries = parse_json(text)
    except ValueError:
        raise ValidationFailed(f"{name} is not valid JSON") from None

    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        at = f"{name}[{index}]"
        if not isinstance(entry, dict):
            raise ValidationFailed(f"{at} must be an object")

        content = read_text(entry.get("content"))
        url = read_text(entry.get("url"))
        file_id = read_text(entry.get("id"))
        file_name = read_text(entry.get("filename")) or read_text(entry.get("name")) or ""
        if content is not None:
            media_type = read_text(entry.get("mime_type")) or ""
            yield GivenFile(at, data=content, name=file_name, media_type=media_type)
        elif url is not None:
            yield read_data_url(at, url, file_name)
        elif file_id is not None:
            yield GivenFile(at, file_id)
        else:
            raise ValidationFailed(f"{at} must have content, a data URL in url, or id")


_RUN = RunFormBody(RunForm)
_RESUME = FormBody(ResumeBody, optional=True)
_CONTINUE = FormBody(ContinueForm, optional=True)


class RunEndpoints(Endpoints):
    """The endpoints of runs."""

    async def create_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        idempotency_key: Annotated[
            str | None,
            Header("A unique name of the request", "Idempotency-Key", pattern=IDEMPOTENCY_KEY),
        ] = None,
    ) -> Response:
        operations = call.operations
        operations.runs.require_open(kind, component_id)
        database = operations.runs.find_database_id(kind, component_id)
        body = await _RUN.read_with_files(call, database)
        request = build_run_request(RunRequest, body, idempotency_key)

        if body.get("stream", True):
            native = operations.runs.stream_portions(kind, component_id, request)
            content_only = body.get("stream_events") is False
            events = self._translate(
                kind, native, numbered=request.background, content_only=content_only
            )
            return EventStreamResponse(await wait_for_first_events(call.receive, events), events)

        async with cancelling_on_disconnect(call.receive):
            document = await operations.runs.create(kind, component_id, request)
        run = document.value
        if request.background or run["status"] in ("PENDING", "RUNNING"):
            return _build_accepted(run)

        details = await operations.runs.read_details(kind, component_id, run)
        return json_response(self._build(run, details))

    def _translate(
        self, kind: ComponentKind, events: AsyncGenerator[Portion], **options: Any
    ) -> AsyncGenerator[Portion]:
        translator = EventTranslator(self._directory, kind, **options)
        return translate_portions(events, translator.translate)

    def _build(self, run: RunRecord, details: RunDetails) -> dict[str, Any]:
        runs = [run, *details.descendants]
        state = details.session_state or {}
        return RunBuilder(self._directory, runs, state, details.approvals).build_response(run)

    async def get_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        run_id: RunId,
        session_id: SessionQuery = None,
    ) -> Response:
        document = await call.operations.runs.get_of_component(
            kind, component_id, run_id, session_id=session_id
        )
        run = document.value
        details = await call.operations.runs.read_details(kind, component_id, run)
        if details.descendants or details.approvals:
            return json_response(self._build(run, details))

        # The body depends on these two alone, so that it can be kept.
        key = ("run", document.raw, orjson.dumps(details.session_state))
        return self._bodies.respond(key, lambda: self._build(run, details))

    async def list_runs(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        session_id: SessionQuery = None,
        db_id: DatabaseId = None,
    ) -> Response:
        statuses = read_repeated(call, "status")

        runs = list[RunRecord]()
        page: Page | None = Page(MAXIMUM_LIMIT, sort_order="asc")
        while page is not None and len(runs) < MAXIMUM_RUNS:
            page_filter = RunFilter(session_id=session_id, db_id=db_id, page=page)
            document = await call.operations.runs.list_of_component(kind, component_id, page_filter)
            runs += document.value["data"]
            cursor = document.value["meta"]["next_cursor"]
            page = None if cursor is None else replace(page, cursor=cursor)

        builder = RunBuilder(self._directory, runs)
        items = list[Built]()
        for run in runs:
            is_listed = run["purpose"] is None and run["parent_run_id"] is None
            if is_listed and (not statuses or run["status"] in statuses):
                items.append(builder.build_item(run))
        return json_response(items)

    async def cancel_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        run_id: RunId,
        request: CancelRequest,
    ) -> Response:
        """Handle `POST /agents/{agent_id}/runs/{run_id}/cancel`, for each kind of component.

        Clients of AgentOS cannot name the session, so the session of the run is found.
        """
        if request.session_id is None and call.caller.principal is not None:
            session_id = await self._find_session(call, kind, component_id, run_id)
            request = replace(request, session_id=session_id)
        return document_response(
            await call.operations.runs.cancel(kind, component_id, run_id, request)
        )

    async def _find_session(
        self, call: Call, kind: ComponentKind, component_id: str, run_id: str
    ) -> str | None:
        principal = call.caller.principal
        if principal is not None and principal.session_id is not None:
            return None
        return await call.operations.runs.find_session(kind, component_id, run_id)

    async def resume_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        run_id: RunId,
        session_id: SessionQuery = None,
    ) -> Response:
        operations = call.operations
        body = await _RESUME.read(call)
        session_id = body.get("session_id") or session_id
        if session_id is None:
            session_id = await self._find_session(call, kind, component_id, run_id)

        after = body.get("last_event_index")
        if after is None:
            after = BEFORE_FIRST_EVENT
        request = ResumeRequest(session_id, after)
        native = await operations.runs.open_stream("resume", kind, component_id, run_id, request)
        events = self._translate(kind, native, numbered=True, after=after)
        return EventStreamResponse(None, events)

    async def continue_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        run_id: RunId,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Handle `POST /agents/{agent_id}/runs/{run_id}/continue`, for each kind of component.

        The decision of an approver lets the run continue, here without its client. A client that
        continues the run then receives the events after its first pause.
        """
        operations = call.operations
        field = FIELDS[kind]
        try:
            body = await _CONTINUE.read(call)
            entries = read_entries(field, body.get(field))
        except (BadRequest, TooLarge, UnsupportedMediaType):
            await operations.runs.require(kind, component_id, run_id, None)
            raise

        for name, values_without_effect in _VARIANTS.items():
            if body.get(name) not in values_without_effect:
                raise ValidationFailed(f"{name} is not supported: a run goes on where it paused")

        session_id = body.get("session_id") or None
        status, approvals = await operations.approvals.list_of_run(
            kind, component_id, run_id, session_id
        )
        decisions = match_decisions(entries, approvals)
        request = ContinueRequest(
            decisions=tuple(decisions),
            background=body.get("background", False),
            dependencies=body.get("dependencies"),
            idempotency_key=idempotency_key,
        )

        streams = body.get("stream", True)
        had_approver = any(approval["policy"] == "other" for approval in approvals)
        was_approved = had_approver and not decisions
        if was_approved and streams:
            return await self._stream_next_legs(kind, call, component_id, run_id)

        # A run that an approver let continue may have ended already.
        continued = None
        if not was_approved or not is_final(status):
            continued = await operations.runs.begin_continuation(
                kind, component_id, run_id, request
            )

        if streams and continued is None:
            return await self._stream_last_event(kind, call, component_id, run_id)
        if streams and continued is not None:
            native = operations.runs.follow_continuation(continued)
            events = self._translate(
                kind, native, numbered=request.background, after=continued.after
            )
            return EventStreamResponse(None, events)

        document = await operations.runs.read_continuation(
            kind, component_id, run_id, request, continued
        )
        run = document.value
        if continued is not None and request.background:
            return _build_accepted(run)
        details = await operations.runs.read_details(kind, component_id, run)
        return json_response(self._build(run, details))

    async def _open_stored_stream(
        self, kind: ComponentKind, call: Call, component_id: str, run_id: str
    ) -> AsyncGenerator[Portion]:
        session_id = await call.operations.runs.find_session(kind, component_id, run_id)
        request = ResumeRequest(session_id, BEFORE_FIRST_EVENT)
        native = await call.operations.runs.open_stream(
            "resume", kind, component_id, run_id, request
        )
        return self._translate(kind, native)

    async def _stream_next_legs(
        self, kind: ComponentKind, call: Call, component_id: str, run_id: str
    ) -> Response:
        """Stream the events of a run after its first pause."""
        events = await self._open_stored_stream(kind, call, component_id, run_id)
        has_continued = False

        def skip_first_leg(portion: Portion) -> Portion:
            nonlocal has_continued
            later_events = list[StreamEvent]()
            for event in portion:
                if find_event_kind(event.name) is EventKind.CONTINUED:
                    has_continued = True
                if has_continued:
                    later_events.append(event)
            return later_events

        return EventStreamResponse(None, translate_portions(events, skip_first_leg))

    async def _stream_last_event(
        self, kind: ComponentKind, call: Call, component_id: str, run_id: str
    ) -> Response:
        """Stream the event of the pause of a run that still waits."""
        events = await self._open_stored_stream(kind, call, component_id, run_id)

        async def keep_last() -> AsyncGenerator[Portion]:
            last: Portion = []
            async for portion in events:
                last = portion[-1:]
            yield last

        return EventStreamResponse(None, keep_last())


def _build_accepted(run: RunRecord) -> Response:
    body = {"run_id": run["run_id"], "session_id": run["session_id"], "status": run["status"]}
    return json_response(body, 202)
