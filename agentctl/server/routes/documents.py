"""The endpoints of documents with another status, header field or default."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated

from starlette.responses import Response, StreamingResponse

from agentctl.interface.declarations import Query
from agentctl.interface.operations import Form, SessionId
from agentctl.interface.requests import DEFAULT_LOCATOR, ExplainRequest, SessionLocator
from agentctl.records.document import build_document
from agentctl.records.sessions import ExportFormat
from agentctl.server.answers import BytesResponse, KnownTags, document_response, versioned_response
from agentctl.server.openapi.responses import EXPORT_TYPES
from agentctl.server.routes.console import is_console_enabled, prefers_html, redirect_to_console
from agentctl.server.state import Call


async def get_api(call: Call) -> Response:
    """Name the service; redirect browsers to the console."""
    if is_console_enabled(call) and prefers_html(call):
        return redirect_to_console()
    return document_response(await call.operations.get_api())


async def get_readiness(call: Call) -> Response:
    """Return the readiness, with the state of the keys; 503 if the instance is not ready."""
    readiness = await call.operations.get_readiness()
    verifier = call.caller.app_state.verifier
    if verifier is not None and verifier.problem is not None:
        checks = {**readiness.value["checks"], "keys": "stale"}
        readiness = build_document({**readiness.value, "checks": checks})
    if readiness.value["status"] == "ready":
        return document_response(readiness)
    return BytesResponse(readiness.raw, 503, headers={"Retry-After": "1"})


async def explain_auth(call: Call, request: ExplainRequest) -> Response:
    """Explain an access decision, by default about the token of the request itself."""
    if request.token is None:
        token = call.headers.get("authorization", "").partition(" ")[2] or None
        request = replace(request, token=token)
    return document_response(await call.operations.explain_auth(request))


async def get_session_by_id(
    call: Call,
    session_id: SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
    *,
    view: Form = "full",
) -> Response:
    """Return a session with its version as the entity tag; read its history only if it changed."""
    if view == "summary":
        return document_response(
            await call.operations.get_session_by_id(session_id, where, view=view)
        )
    known = KnownTags(call.scope["headers"])
    version, document = await call.operations.get_changed_session(session_id, where, known)
    response = BytesResponse(b"") if document is None else document_response(document)
    return versioned_response(response, version)


async def export_session(
    call: Call,
    session_id: SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
    *,
    format: Annotated[ExportFormat, Query("Format of the file")] = "jsonl",
) -> Response:
    """Send a session in parts, as fast as the client reads them."""
    parts = call.operations.export_session(session_id, where, format=format)
    first = await anext(parts)  # an error of the operation is a status

    async def send_all() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    return StreamingResponse(send_all(), media_type=EXPORT_TYPES[format])
