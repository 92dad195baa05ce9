"""The routes below `/v1`.

The face adds no operation and no scope: a request becomes a run of an agent or a team, with the
policy, the audit entry and the cancel of that operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentctl.auth import policy
from agentctl.auth.principal import Principal
from agentctl.errors import Unauthenticated
from agentctl.interop.openai.chat import ChatCompletion
from agentctl.interop.openai.events import RunEvents
from agentctl.interop.openai.failures import (
    RefusedParameter,
    build_error_response,
    build_failed_run_response,
)
from agentctl.interop.openai.models import find_model, get_model, list_models
from agentctl.interop.openai.parameters import Parameters
from agentctl.interop.openai.responses import ModelResponse
from agentctl.interop.openai.stored_responses import (
    cancel_response,
    delete_response,
    find_continued_session,
    get_response,
    list_input_items,
)
from agentctl.records.ids import is_component_id
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.log_context import add_log_context
from agentctl.records.routes import OPENAI_ROUTES, RouteTable, operation_ids
from agentctl.requests import RunRequest
from agentctl.server.answers import (
    BytesResponse,
    EventStreamResponse,
    cancel_on_disconnect,
    json_response,
    wait_for_first_events,
)
from agentctl.server.bodies import read_json_body
from agentctl.server.routing import path_below_root, respond
from agentctl.server.state import ERROR_RESPONSE_KEY, Call, Caller

PREFIX = "/v1"

SESSION_HEADER = "X-Session-ID"
"""Header field of requests with a session, and of all responses of runs."""

RUN_HEADER = "X-Run-ID"
IGNORED_HEADER = "X-Ignored-Parameters"

Form = type[ChatCompletion] | type[ModelResponse]


class _MatchedRoute(NamedTuple):
    """The route of a request, for the log."""

    operation: str


def is_openai_path(scope: Scope) -> bool:
    """Return True for a request to this face."""
    if scope["type"] != "http":
        return False
    path = path_below_root(scope)
    return path == PREFIX or path.startswith(f"{PREFIX}/")


class OpenAIErrors:
    """Sets the form of errors for requests to the face; around all other layers.

    Args:
        app: the next ASGI application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_openai_path(scope):
            scope[ERROR_RESPONSE_KEY] = build_error_response
        await self.app(scope, receive, send)


class OpenAIFace:
    """The ASGI application that responds below `/v1`, inside of the authentication.

    Args:
        app: the application for all other paths.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_openai_path(scope):
            await self.app(scope, receive, send)
            return

        async def execute(tracked: Send) -> None:
            response = await self._respond(Call(scope, receive))
            await response(scope, receive, tracked)

        await respond(execute, scope, receive, send)

    async def _respond(self, call: Call) -> Response:
        caller: Caller = call.caller
        match = policy.find_operation(
            _TABLE, call.method, path_below_root(call.scope), caller.failure
        )
        call.scope["route"] = _MatchedRoute(match.operation)
        if caller.principal is None:
            raise caller.failure or Unauthenticated()
        policy.check_path_params(match.path_params)
        return await _ENDPOINTS[match.operation](call, caller.principal, **match.path_params)


async def _list_models(call: Call, principal: Principal) -> Response:
    models = list_models(call.caller.app_state.settings, principal)
    return BytesResponse(orjson.dumps({"object": "list", "data": models}))


async def _get_model(call: Call, principal: Principal, model: str) -> Response:
    return BytesResponse(orjson.dumps(get_model(call.caller.app_state.settings, principal, model)))


async def _create_chat_completion(call: Call, principal: Principal) -> Response:
    return await _create(call, principal, ChatCompletion)


async def _create_response(call: Call, principal: Principal) -> Response:
    return await _create(call, principal, ModelResponse)


async def _create(call: Call, principal: Principal, form: Form) -> Response:
    settings = call.caller.app_state.settings
    body = await read_json_body(call)
    parameters = Parameters(body, form.rules, settings.openai.ignored_parameters)
    model = parameters.get("model")
    if not model:
        raise RefusedParameter("model is required", "model", "missing_required_parameter")
    kind: ComponentKind = "team" if model in {team.id for team in settings.teams} else "agent"
    try:
        find_model(settings, principal, model)
        return await _run(call, principal, kind, form(parameters, model), parameters, model)
    except ClientDisconnect:
        raise
    except Exception as error:
        if is_component_id(model):
            operation = operation_ids(kind).create_run
            await call.operations.record_refusal(operation, {KINDS[kind].id_field: model}, error)
        raise


async def _run(
    call: Call,
    principal: Principal,
    kind: ComponentKind,
    form: ChatCompletion | ModelResponse,
    parameters: Parameters,
    model: str,
) -> Response:
    if form.previous is not None:
        form.conversation = await find_continued_session(call, form.previous)
    session_id = _get_session(call, form.conversation)
    has_session = session_id is not None or principal.session_id is not None
    is_continued = has_session and form.previous is None
    earlier = form.instructions if is_continued else form.earlier
    request = RunRequest(
        message=form.message,
        session_id=session_id,
        idempotency_key=_get_header(call, "Idempotency-Key"),
        metadata=parameters.get_metadata(),
        output_schema=form.output_schema,
    )
    is_stream = parameters.get("stream", bool)
    parameters.take_rest(form.honoured)
    ignored = {IGNORED_HEADER: ", ".join(parameters.ignored)} if parameters.ignored else {}
    if is_stream:
        events = call.operations.stream_run_portions(kind, model, request, earlier=earlier)
        first = await wait_for_first_events(call.receive, events)
        read = RunEvents(kind, first[0])
        headers = {SESSION_HEADER: read.session_id, RUN_HEADER: read.run_id, **ignored}
        add_log_context(session_id=read.session_id, run_id=read.run_id)
        return EventStreamResponse(first, events, form.build_encoder(read), headers)
    document = await cancel_on_disconnect(
        call.receive, call.operations.create_run(kind, model, request, earlier=earlier)
    )
    run = document.value
    headers = {SESSION_HEADER: run["session_id"], RUN_HEADER: run["run_id"], **ignored}
    failed = build_failed_run_response(run, headers)
    if failed is not None:
        return failed
    return json_response(form.build(run), headers=headers)


def _get_session(call: Call, conversation: str | None) -> str | None:
    """Return the session of a request: that of the header field, or the conversation.

    Raises:
        RefusedParameter: both are given, and they differ.
    """
    given = _get_header(call, SESSION_HEADER)
    if given is not None and conversation not in (None, given):
        raise RefusedParameter(
            f"conversation and the header field {SESSION_HEADER} differ", "conversation"
        )
    return conversation if given is None else given


def _get_header(call: Call, name: str) -> str | None:
    """Return the value of a header field; None if it is not given.

    Raises:
        RefusedParameter: it is given more than once.
    """
    values = call.headers.getlist(name)
    if len(values) > 1:
        raise RefusedParameter(f"The header field {name} is given more than once", None)
    return values[0] if values else None


_TABLE = RouteTable(OPENAI_ROUTES)

_ENDPOINTS: dict[str, Callable[..., Awaitable[Response]]] = {
    "list_openai_models": _list_models,
    "get_openai_model": _get_model,
    "create_chat_completion": _create_chat_completion,
    "create_response": _create_response,
    "get_response": get_response,
    "delete_response": delete_response,
    "cancel_response": cancel_response,
    "list_response_input_items": list_input_items,
}
