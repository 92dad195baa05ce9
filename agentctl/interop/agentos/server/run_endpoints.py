"""Runs of components: start, list, get, cancel, resume, for clients of AgentOS."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.responses import Response

from agentctl.declarations import Header, Query
from agentctl.errors import BadRequest
from agentctl.interop.agentos.server.bodies import Endpoints
from agentctl.interop.agentos.server.events import EventTranslator
from agentctl.interop.agentos.server.forms import FormBody
from agentctl.interop.agentos.server.operation import read_repeated, translate_portions
from agentctl.interop.agentos.server.runs import RunBuilder
from agentctl.records.ids import IDEMPOTENCY_KEY
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunDetails, RunRecord
from agentctl.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_LIMIT,
    CancelRequest,
    DatabaseId,
    Page,
    ResumeRequest,
    RunFilter,
)
from agentctl.run_operations import ComponentId, RunId
from agentctl.server.answers import (
    EventStreamResponse,
    cancel_on_disconnect,
    document_response,
    json_response,
    wait_for_first_events,
)
from agentctl.server.requests import ResumeBody, RunBody, build_run_request
from agentctl.server.state import Call


class RunForm(RunBody, total=False):
    """A run to start, with a field that the contract does not have."""

    stream_events: Annotated[bool | None, Field(description="False: only content and failures")]


_RUN = FormBody(RunForm)
_RESUME = FormBody(ResumeBody, optional=True)

SessionQuery = Annotated[str | None, Query("Session of the run")]


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
        operations.require_component(kind, component_id)
        body = await _RUN.read(call)
        request = build_run_request(body, idempotency_key)
        if body.get("stream", True):
            native = operations.stream_run_portions(kind, component_id, request)
            translator = EventTranslator(
                self._directory,
                kind,
                numbered=request.background,
                content_only=body.get("stream_events") is False,
            )
            events = translate_portions(native, translator.translate)
            return EventStreamResponse(await wait_for_first_events(call.receive, events), events)
        document = await cancel_on_disconnect(
            call.receive, operations.create_run(kind, component_id, request)
        )
        run = document.value
        if request.background:
            accepted = {"run_id": run["run_id"], "session_id": run["session_id"]}
            return json_response({**accepted, "status": run["status"]}, 202)
        return json_response(
            self._build(run, await operations.read_details(kind, component_id, run))
        )

    def _build(self, run: RunRecord, details: RunDetails) -> dict[str, Any]:
        runs = [run, *details.descendants]
        return RunBuilder(self._directory, runs, details.session_state or {}).build_response(run)

    async def get_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        run_id: RunId,
        session_id: SessionQuery = None,
    ) -> Response:
        document = await call.operations.get_component_run(
            kind, component_id, run_id, session_id=session_id
        )
        run = document.value
        details = await call.operations.read_details(kind, component_id, run)
        if details.descendants:
            return json_response(self._build(run, details))
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
            of_page = RunFilter(session_id=session_id, db_id=db_id, page=page)
            listed = (await call.operations.list_component_runs(kind, component_id, of_page)).value
            runs += listed["data"]
            cursor = listed["meta"]["next_cursor"]
            page = None if cursor is None else replace(page, cursor=cursor)
        builder = RunBuilder(self._directory, runs)
        items = [
            builder.build_item(run)
            for run in runs
            if run["purpose"] is None and run["parent_run_id"] is None
        ]
        return json_response([item for item in items if not statuses or item["status"] in statuses])

    async def cancel_run(
        self,
        kind: ComponentKind,
        call: Call,
        component_id: ComponentId,
        run_id: RunId,
        request: CancelRequest,
    ) -> Response:
        """Handle `POST /agents/{agent_id}/runs/{run_id}/cancel` and the same of the other kinds.

        Clients of AgentOS cannot name the session, so it is that of the run.
        """
        if request.session_id is None and call.caller.principal is not None:
            session_id = await self._find_session(call, kind, component_id, run_id)
            request = replace(request, session_id=session_id)
        return document_response(
            await call.operations.cancel_run(kind, component_id, run_id, request)
        )

    async def _find_session(
        self, call: Call, kind: ComponentKind, component_id: str, run_id: str
    ) -> str | None:
        principal = call.caller.principal
        if principal is not None and principal.session_id is not None:
            return None
        return await call.operations.find_run_session(kind, component_id, run_id)

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
        named = body.get("session_id") or session_id
        if named is None:
            named = await self._find_session(call, kind, component_id, run_id)
        after = body.get("last_event_index")
        request = ResumeRequest(named, BEFORE_FIRST_EVENT if after is None else after)
        native = await operations.open_resumed_stream(kind, component_id, run_id, request)
        translator = EventTranslator(self._directory, kind, numbered=True, after=request.after)
        return EventStreamResponse(None, translate_portions(native, translator.translate))

    async def continue_run(
        self, kind: ComponentKind, call: Call, component_id: ComponentId, run_id: RunId
    ) -> Response:
        """Refuse `POST /agents/{agent_id}/runs/{run_id}/continue` and the same of other kinds."""
        await call.operations.require_run(kind, component_id, run_id, None)
        raise BadRequest(
            "Runs are not continued in this interface: decide with agentctl, or over its own one"
        )


MAXIMUM_RUNS = 1_000
"""Runs of a response that AgentOS does not bound."""
