"""The endpoints of the HTTP interface (docs/contract.md "Routes").

The endpoint of an operation follows from its declaration in `agentctl.interface.operations`, unless
`_ENDPOINTS` has another one: for event streams, headers and other statuses.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from agentctl.interface.declarations import Declaration
from agentctl.interface.operations import OPERATIONS
from agentctl.records.kinds import KINDS
from agentctl.server.answers import document_response, no_content_response
from agentctl.server.openapi.responses import (
    CONTINUE_RESPONSES,
    EVENT_STREAM_RESPONSES,
    EXPORT_RESPONSES,
    NOT_READY_RESPONSES,
    REPEAT_RESPONSES,
    RUN_RESPONSES,
)
from agentctl.server.requests import ADAPTERS, BODIES
from agentctl.server.routes import console, documents, runs
from agentctl.server.routing import Endpoint, Operation, Responses
from agentctl.server.state import Call

_ENDPOINTS: dict[str, Endpoint] = {
    "get_api": documents.get_api,
    "get_readiness": documents.get_readiness,
    "explain_auth": documents.explain_auth,
    "create_run": runs.create_run,
    "continue_run": runs.continue_run,
    "retry_run": runs.retry_run,
    "fork_run": runs.fork_run,
    "resume_run": runs.resume_run,
    "follow_run": runs.follow_run,
    "get_session_by_id": documents.get_session_by_id,
    "export_session": documents.export_session,
}
"""Endpoints by the name of the method of `Operations`. Those of runs begin with the kind."""

_RESPONSES: dict[str, Responses] = {
    "get_readiness": NOT_READY_RESPONSES,
    "create_run": RUN_RESPONSES,
    "retry_run": REPEAT_RESPONSES,
    "fork_run": REPEAT_RESPONSES,
    "continue_run": CONTINUE_RESPONSES,
    "resume_run": EVENT_STREAM_RESPONSES,
    "follow_run": EVENT_STREAM_RESPONSES,
    "export_session": EXPORT_RESPONSES,
}


def build_all_operations() -> list[Operation]:
    """Return all operations except those of the documentation pages."""
    return [*map(_build_operation, OPERATIONS.values()), *console.build_operations()]


def _build_operation(declared: Declaration) -> Operation:
    method, kind = declared.function.__name__, declared.kind
    bound = () if kind is None else (kind,)
    status = 204 if declared.record is None and method not in _ENDPOINTS else declared.status
    record, body = declared.record, BODIES.get(method)
    has_id = kind is not None and KINDS[kind].id_field in declared.route.template
    return Operation(
        partial(_ENDPOINTS[method], *bound)
        if method in _ENDPOINTS
        else _build_endpoint(method, bound, status),
        name=declared.name,
        tag=declared.tag,
        result=record | declared.summaries if declared.summaries else record,
        status=status,
        errors=declared.errors if body is None else (*declared.errors, 413, 415),
        body=body,
        adapt_body=ADAPTERS.get(method),
        responses=_RESPONSES.get(method),
        texts=declared.read_texts(),
        path_names={KINDS[kind].id_field: "component_id"} if kind and has_id else None,
        signature=None if method in _ENDPOINTS else declared.signature,
    )


def _build_endpoint(method: str, bound: tuple[str, ...], status: int) -> Endpoint:
    async def endpoint(call: Call, **arguments: Any) -> Response:
        document = await getattr(call.operations, method)(*bound, **arguments)
        return no_content_response() if document is None else document_response(document, status)

    return endpoint
