"""The routes below `/v1`, whose requests become runs of agents and teams (docs/decisions/0062).

An id of a component is the id of its model. Agents and teams share no id (`config.checks`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentctl.auth.policy import authorize, required_scopes
from agentctl.auth.principal import Principal
from agentctl.config.settings import Settings
from agentctl.errors import Forbidden
from agentctl.interface.requests import RunRequest
from agentctl.interop.openai.calls import CallNotFound
from agentctl.interop.openai.chat import ChatCompletion
from agentctl.interop.openai.failures import ModelNotFound, RefusedParameter, build_error_response
from agentctl.interop.openai.messages import NAME
from agentctl.interop.openai.parameters import OpenAIParameters
from agentctl.interop.openai.responses import ModelResponse
from agentctl.interop.openai.settings import TABLE, OpenAI
from agentctl.interop.openai.stored_responses import (
    cancel_response,
    delete_response,
    find_continued_session,
    get_response,
    list_input_items,
    resolve_references,
)
from agentctl.interop.openai.turns import SESSION_HEADER, Requested, Turn, continue_turn, start_turn
from agentctl.records.ids import is_component_id, is_session_id
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.server.answers import BytesResponse
from agentctl.server.requests import read_json_body
from agentctl.server.routing import Face, match_route
from agentctl.server.state import Call

PREFIX = "/v1"

CHAT_HEADER = "X-OpenWebUI-Chat-Id"
"""Header field of a program that sends the whole conversation with each request: the id of its
conversation, which becomes that of the session."""

IGNORED_HEADER = "X-Ignored-Parameters"

Interface = type[ChatCompletion] | type[ModelResponse]

_KINDS: tuple[ComponentKind, ...] = ("agent", "team")


class OpenAIFace(Face):
    """The face that responds below `/v1`."""

    build_error = staticmethod(build_error_response)

    def serves(self, path: str) -> bool:
        return path == PREFIX or path.startswith(f"{PREFIX}/")

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        match, principal = match_route(call, TABLE)
        endpoint = _ENDPOINTS[match.operation]
        response = await endpoint(call, principal, **match.path_params)
        await response(scope, receive, send)


async def _create(call: Call, principal: Principal, *, interface: Interface) -> Response:
    settings = call.caller.app_state.settings
    body = await read_json_body(call)
    parameters = OpenAIParameters(
        body, interface.rules, settings.get_table(OpenAI).ignored_parameters
    )
    model = parameters.get("model")
    if not model:
        raise RefusedParameter("model is required", "model", "missing_required_parameter")
    kind: ComponentKind = "team" if model in {team.id for team in settings.teams} else "agent"
    try:
        find_model(settings, principal, model)
        if interface is ModelResponse:
            items = await resolve_references(call, model, parameters.get_any("input"))
            parameters.replace("input", items)
        turn = interface(parameters, model)
        return await _run(call, principal, kind, turn, parameters, model)
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
    turn: Turn,
    parameters: OpenAIParameters,
    model: str,
) -> Response:
    is_stream = bool(parameters.get("stream", bool))
    metadata = parameters.get_metadata()
    parameters.take_rest()
    if turn.messages.has_names:
        parameters.ignored.append(NAME)
    ignored = {IGNORED_HEADER: ", ".join(parameters.ignored)} if parameters.ignored else {}
    key = _get_header(call, "Idempotency-Key")
    requested = Requested(kind, model, turn, ignored, is_stream, key)

    if turn.messages.results:
        try:
            return await continue_turn(call, requested)
        except CallNotFound:
            if (history := turn.messages.read_history()) is None:
                raise
            turn.messages = history

    if turn.previous is not None:
        turn.conversation = await find_continued_session(call, turn.previous)
    session_id, conversation = _get_header(call, SESSION_HEADER), turn.conversation
    if session_id is not None and conversation not in (None, session_id):
        raise RefusedParameter(
            f"conversation and the header field {SESSION_HEADER} differ", "conversation"
        )
    session_id = conversation if session_id is None else session_id
    has_session = session_id is not None or principal.session_id is not None
    is_continued = has_session and turn.previous is None
    if not has_session:
        # The program sends the whole conversation, so the session only keeps its runs together.
        named = _get_header(call, CHAT_HEADER)
        session_id = named if named is not None and is_session_id(named) else None

    request = RunRequest(
        message=turn.messages.message,
        session_id=session_id,
        background=turn.background,
        idempotency_key=key,
        metadata=metadata,
        output_schema=turn.output_schema,
        client_tools=turn.tools.tools,
        tool_choice=turn.tools.choice,
        session_history=has_session,
    )
    earlier = turn.messages.instructions if is_continued else turn.messages.earlier
    return await start_turn(call, requested, request, earlier)


def _get_header(call: Call, name: str) -> str | None:
    """Return the value of a header field; None if it is not given."""
    values = call.headers.getlist(name)
    if len(values) > 1:
        raise RefusedParameter(f"The header field {name} is given more than once", None)
    return values[0] if values else None


async def list_models(call: Call, principal: Principal) -> Response:
    """Respond with the models that a caller may run, agents first, in the configured order."""
    settings = call.caller.app_state.settings
    models = [
        _format_model(settings, model)
        for kind, model in _iter_models(settings)
        if _may_run(principal, kind, model)
    ]
    return BytesResponse(orjson.dumps({"object": "list", "data": models}))


async def get_model(call: Call, principal: Principal, model: str) -> Response:
    """Respond with one model; errors as those of `find_model`."""
    settings = call.caller.app_state.settings
    find_model(settings, principal, model)
    return BytesResponse(orjson.dumps(_format_model(settings, model)))


def find_model(settings: Settings, principal: Principal, model: str) -> ComponentKind:
    """Return the kind of the component that a caller wants to run.

    Raises:
        Forbidden: the caller may not run a component with this id, whether it exists or not.
        ModelNotFound: there is no such agent and no such team.
    """
    kind = next((kind for kind, known in _iter_models(settings) if known == model), None)
    possible = _KINDS if kind is None else (kind,)
    if not any(_may_run(principal, one, model) for one in possible):
        scopes = [
            scope
            for one in _KINDS
            for scope in required_scopes(
                operation_ids(one).create_run, {KINDS[one].id_field: model}
            )
        ]
        raise Forbidden(
            f"Insufficient scopes for this model: one of {', '.join(scopes)} is required"
            + principal.unread_note,
            required_scopes=tuple(scopes),
        )
    if kind is None:
        raise ModelNotFound
    return kind


def _iter_models(settings: Settings) -> Iterator[tuple[ComponentKind, str]]:
    yield from (("agent", agent.id) for agent in settings.agents)
    yield from (("team", team.id) for team in settings.teams)


def _may_run(principal: Principal, kind: ComponentKind, model: str) -> bool:
    try:
        authorize(principal, operation_ids(kind).create_run, {KINDS[kind].id_field: model})
    except Forbidden:
        return False
    return True


def _format_model(settings: Settings, model: str) -> dict[str, Any]:
    # The configuration has no time at which a component was created.
    return {"id": model, "object": "model", "created": 0, "owned_by": settings.server.id}


_ENDPOINTS: dict[str, Callable[..., Awaitable[Response]]] = {
    "list_openai_models": list_models,
    "get_openai_model": get_model,
    "create_chat_completion": functools.partial(_create, interface=ChatCompletion),
    "create_response": functools.partial(_create, interface=ModelResponse),
    "get_response": get_response,
    "delete_response": delete_response,
    "cancel_response": cancel_response,
    "list_response_input_items": list_input_items,
}
