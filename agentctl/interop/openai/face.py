"""The routes below `/v1`, whose requests become runs of agents and teams (decision 62).

An id of a component is the id of its model. Agents and teams share no id (`config.checks`). A
stored response is a turn of an agent or a team. Each request for one has the policy and the audit
entry of the operation on the run or on its session.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentctl.auth.policy import authorize, required_scopes
from agentctl.auth.principal import Principal
from agentctl.config.settings import Settings
from agentctl.errors import Conflict, Forbidden, NotFound
from agentctl.interface.requests import CancelRequest, EarlierMessage, RunRequest, SessionLocator
from agentctl.interop.openai import files
from agentctl.interop.openai.calls import CallNotFound, build_call_item, read_item_reference
from agentctl.interop.openai.chat import ChatCompletion
from agentctl.interop.openai.events import read_leg_id
from agentctl.interop.openai.failures import (
    ModelNotFound,
    RefusedParameter,
    ResponseNotFound,
    build_error_response,
)
from agentctl.interop.openai.messages import NAME, RequestMessages, is_result
from agentctl.interop.openai.parameters import OpenAIParameters, check_query
from agentctl.interop.openai.responses import (
    ITEM_ID,
    RESPONSE_ID,
    ModelResponse,
    build_input_items,
    build_stored_response,
)
from agentctl.interop.openai.settings import ROUTES, OpenAI
from agentctl.interop.openai.turns import SESSION_HEADER, Requested, Turn, continue_turn, start_turn
from agentctl.records.approvals import ApprovalRecord
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import RouteTable, operation_ids
from agentctl.records.runs import FoundTurn
from agentctl.records.text import is_component_id, is_session_id
from agentctl.server.answers import BytesResponse, Call, json_response
from agentctl.server.given_files import store_files
from agentctl.server.routing import BuildErrorResponse, Face, match_route

PREFIX = "/v1"

CHAT_HEADER = "X-OpenWebUI-Chat-Id"
"""Header field of a program that sends the whole conversation with each request: the id of its
conversation, which becomes the id of the session."""

IGNORED_HEADER = "X-Ignored-Parameters"
"""Header field of a response: the parameters that had no effect, with commas."""

Interface = type[ChatCompletion] | type[ModelResponse]

_KINDS: tuple[ComponentKind, ...] = ("agent", "team")
"""The components that are models here; a workflow is none."""

MAXIMUM_REFERENCES = 100
"""Maximum number of references to items in a request."""


class _Session(NamedTuple):
    """The session of a turn."""

    session_id: str | None
    """None for the session of the token, else for a new session."""

    is_named: bool
    """True if the request or the token names it: the run then has its history."""


class OpenAIFace(Face):
    """The face that responds below `/v1`."""

    paths = (PREFIX,)
    prefixes = (f"{PREFIX}/",)

    def find_error_response(self, scope: Scope) -> BuildErrorResponse:
        return build_error_response

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        match, principal = match_route(call, _TABLE)
        endpoint = _ENDPOINTS[match.operation]
        response = await endpoint(call, principal, **match.path_params)
        await response(scope, receive, send)


async def _create(call: Call, principal: Principal, *, interface: Interface) -> Response:
    """Handle a request for a chat completion or a response: a turn of an agent or a team."""
    settings = call.caller.app_state.settings
    body = await call.json()
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
        # The operation has not run, so it has not recorded the refusal.
        if is_component_id(model):
            operation = operation_ids(kind).create_run
            await call.operations.access.record_refusal(
                operation, {KINDS[kind].id_field: model}, error
            )
        raise


async def _run(
    call: Call,
    principal: Principal,
    kind: ComponentKind,
    turn: Turn,
    parameters: OpenAIParameters,
    model: str,
) -> Response:
    """Continue the run that waits for the results of a request; without results, start a run."""
    is_stream = bool(parameters.get("stream", bool))
    metadata = parameters.get_metadata()

    parameters.take_rest()
    if turn.messages.has_names:
        parameters.ignored.append(NAME)
    headers = dict[str, str]()
    if parameters.ignored:
        headers[IGNORED_HEADER] = ", ".join(parameters.ignored)

    key = _get_header(call, "Idempotency-Key")
    requested = Requested(kind, model, turn, headers, is_stream, key)

    if turn.messages.results:
        try:
            return await continue_turn(call, requested)
        except CallNotFound:
            # Calls of another agent, or of an earlier program: messages before a new run.
            history = turn.messages.read_history()
            if history is None:
                raise
            turn.messages = history

    call.operations.runs.require_open(kind, model)
    session = await _choose_session(call, principal, turn)
    database = call.operations.runs.find_database_id(kind, model)

    if session.is_named and turn.previous is None:
        # The session has the earlier messages, also of a program that sends them again.
        earlier = turn.messages.instructions
    else:
        earlier = await _store_earlier_files(call, turn.messages, database)

    files_of_message = turn.messages.files.get(len(turn.messages.earlier), ())
    request = RunRequest(
        message=turn.messages.message,
        files=await store_files(call.operations, files_of_message, database),
        session_id=session.session_id,
        background=turn.background,
        idempotency_key=key,
        metadata=metadata,
        output_schema=turn.output_schema,
        client_tools=turn.tools.tools,
        tool_choice=turn.tools.choice,
        stop=turn.stop,
        session_history=session.is_named,
    )
    return await start_turn(call, requested, request, earlier)


async def _choose_session(call: Call, principal: Principal, turn: Turn) -> _Session:
    """Return the session of a turn that starts a run.

    Raises:
        RefusedParameter: the request names two sessions, or its previous response cannot be
            continued (`find_continued_session`).
    """
    if turn.previous is not None:
        turn.conversation = await find_continued_session(call, turn.previous)

    session_id = _get_header(call, SESSION_HEADER)
    if session_id is None:
        session_id = turn.conversation
    elif turn.conversation not in (None, session_id):
        raise RefusedParameter(
            f"conversation and the header field {SESSION_HEADER} differ", "conversation"
        )

    if session_id is not None or principal.session_id is not None:
        return _Session(session_id, is_named=True)

    # The program sends the whole conversation, so the session only keeps its runs together.
    chat_id = _get_header(call, CHAT_HEADER)
    if chat_id is not None and not is_session_id(chat_id):
        chat_id = None
    return _Session(chat_id, is_named=False)


async def _store_earlier_files(
    call: Call, messages: RequestMessages, db_id: str | None
) -> list[EarlierMessage]:
    """Return the messages before the message of a run, with the ids of their stored files."""
    earlier = list[EarlierMessage]()
    for index, message in enumerate(messages.earlier):
        if index in messages.files:
            file_ids = await store_files(call.operations, messages.files[index], db_id)
            message = replace(message, files=file_ids)
        earlier.append(message)
    return earlier


def _get_header(call: Call, name: str) -> str | None:
    """Return a header field, or None; RefusedParameter if it is given more than once."""
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
    """Respond with one model; the errors are the errors of `find_model`."""
    settings = call.caller.app_state.settings
    find_model(settings, principal, model)
    return BytesResponse(orjson.dumps(_format_model(settings, model)))


def find_model(settings: Settings, principal: Principal, model: str) -> ComponentKind:
    """Return the kind of the component that a caller wants to run.

    Raises:
        Forbidden: the caller may not run a component with this id, whether it exists or not.
        ModelNotFound: there is no such agent and no such team.
    """
    kind = next((kind for kind, model_id in _iter_models(settings) if model_id == model), None)
    possible_kinds = _KINDS if kind is None else (kind,)

    if not any(_may_run(principal, possible_kind, model) for possible_kind in possible_kinds):
        # Of both kinds, so that the error does not tell whether the model exists.
        scopes = list[str]()
        for possible_kind in _KINDS:
            path = {KINDS[possible_kind].id_field: model}
            scopes += required_scopes(operation_ids(possible_kind).create_run, path)
        raise Forbidden(
            f"Insufficient scopes for this model: one of {', '.join(scopes)} is required"
            + principal.unread_note,
            required_scopes=tuple(scopes),
        )

    if kind is None:
        raise ModelNotFound
    return kind


def _iter_models(settings: Settings) -> Iterator[tuple[ComponentKind, str]]:
    for agent in settings.agents:
        yield "agent", agent.id
    for team in settings.teams:
        yield "team", team.id


def _may_run(principal: Principal, kind: ComponentKind, model: str) -> bool:
    try:
        authorize(principal, operation_ids(kind).create_run, {KINDS[kind].id_field: model})
    except Forbidden:
        return False
    return True


def _format_model(settings: Settings, model: str) -> dict[str, Any]:
    # The configuration has no time at which a component was created.
    return {"id": model, "object": "model", "created": 0, "owned_by": settings.server.id}


async def find_continued_session(call: Call, response_id: str) -> str:
    """Return the session of `previous_response_id`.

    Raises:
        RefusedParameter: there is no such response, its session has a later response, or it waits
            for the results of its calls.
    """
    try:
        run_id, turn = await _find(call, response_id)
    except ResponseNotFound as error:
        raise RefusedParameter(
            error.detail, "previous_response_id", "previous_response_not_found"
        ) from None

    if not turn.is_newest:
        raise RefusedParameter(
            "This response is not the newest of its conversation: continue the newest, or the"
            " conversation with `conversation`",
            "previous_response_id",
        )

    if await call.operations.approvals.list_pending(run_id, turn):
        raise RefusedParameter(
            "The previous response waits for the results of its calls: send them as items, without"
            " a further message",
            "input",
            "tool_results_missing",
        )

    return turn.session_id


async def get_response(call: Call, principal: Principal, response_id: str) -> Response:
    """Handle `GET /v1/responses/{response_id}`; ResponseNotFound if the caller sees none."""
    check_query(call)
    run, turn = await _read_run(call, response_id)
    return json_response(await _build_stored(call, run, turn, response_id))


async def _build_stored(
    call: Call, run: Mapping[str, Any], turn: FoundTurn, response_id: str
) -> dict[str, Any]:
    """Return the response of a run as it is now, with the id of the request."""
    waiting_approvals: Sequence[ApprovalRecord] = ()
    if run["status"] == "PAUSED":
        waiting_approvals = await call.operations.approvals.list_pending(run["run_id"], turn)
    response = build_stored_response(run, turn.component_id, waiting_approvals)
    return {**response, "id": response_id}


async def list_input_items(call: Call, principal: Principal, response_id: str) -> Response:
    check_query(call, "limit", "order")
    run, _ = await _read_run(call, response_id)
    return json_response(build_input_items(run))


async def cancel_response(call: Call, principal: Principal, response_id: str) -> Response:
    """Handle `POST /v1/responses/{response_id}/cancel`, for responses of all requests.

    OpenAI cancels responses in the background only.
    """
    run_id, turn = await _find(call, response_id)
    request = CancelRequest(turn.session_id)
    await call.operations.runs.cancel(turn.kind, turn.component_id, run_id, request)
    run = (await call.operations.sessions.read_turn(run_id, turn)).value
    return json_response(await _build_stored(call, run, turn, response_id))


async def delete_response(call: Call, principal: Principal, response_id: str) -> Response:
    """Handle `DELETE /v1/responses/{response_id}`: delete the session of its only response.

    Raises:
        Conflict: the session has other responses. A run is not deleted alone.
    """
    _, turn = await _find(call, response_id)
    if not turn.is_only:
        raise Conflict(
            "The conversation has other responses: delete it whole, as the session"
            f" {turn.session_id}"
        )
    await call.operations.sessions.delete(turn.session_id, SessionLocator(db_id=turn.db_id))
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def _find(call: Call, response_id: str) -> tuple[str, FoundTurn]:
    """Return the run of a response and its place; ResponseNotFound if the caller sees none."""
    run_id = read_leg_id(RESPONSE_ID, response_id)
    if run_id is None:
        raise ResponseNotFound

    try:
        turn = await call.operations.sessions.find_turn(run_id)
    except NotFound:
        raise ResponseNotFound from None
    if turn.kind == "workflow":
        raise ResponseNotFound
    return run_id, turn


async def _read_run(call: Call, response_id: str) -> tuple[Mapping[str, Any], FoundTurn]:
    run_id, turn = await _find(call, response_id)
    document = await call.operations.runs.get_of_component(
        turn.kind, turn.component_id, run_id, session_id=turn.session_id
    )
    return document.value, turn


async def resolve_references(call: Call, model: str, items: object) -> object:
    """Return the input of a response of a model with the items that it refers to.

    The first reference to a run becomes the whole text of the run, with all of its legs. Further
    references to it are dropped.

    Raises:
        RefusedParameter: there are too many references, or a reference is not to an item that the
            caller got from this model.
    """
    # The run that gets a result has the items before it.
    if not isinstance(items, list) or not items or is_result(items[-1]):
        return items

    reference_indexes = [
        index
        for index, item in enumerate(items)
        if isinstance(item, dict) and item.get("type") == "item_reference"
    ]
    if len(reference_indexes) > MAXIMUM_REFERENCES:
        raise RefusedParameter(f"input has more than {MAXIMUM_REFERENCES} references", "input")

    resolved_items: list[Any] = [*items]
    read_run_ids: set[str] = set()
    for index in reference_indexes:
        at = f"input[{index}].id"
        item_id = items[index].get("id")
        try:
            resolved_items[index] = await _resolve(call, model, item_id, at, read_run_ids)
        except NotFound:
            raise RefusedParameter(f"{at} is none of an item of yours", at) from None

    return [item for item in resolved_items if item is not None]


async def _resolve(
    call: Call, model: str, item_id: object, at: str, read_run_ids: set[str]
) -> dict[str, Any] | None:
    """Return an item by its id; None for a text of a run in `read_run_ids`, which it extends."""
    operations = call.operations
    run_id = read_leg_id(ITEM_ID, item_id)
    approval = None

    if run_id is None:
        approval = await operations.approvals.find_asked(read_item_reference(item_id, at))
        run_id = approval["root_run_id"]

    found_turn = await operations.sessions.find_turn(run_id)
    if found_turn.component_id != model:
        raise NotFound("Run not found")

    if approval is not None:
        return build_call_item(approval)

    if run_id in read_run_ids:
        return None
    read_run_ids.add(run_id)

    run = (await operations.sessions.read_turn(run_id, found_turn)).value
    return {"type": "message", "role": "assistant", "content": run["content"] or ""}


_ENDPOINTS: dict[str, Callable[..., Awaitable[Response]]] = {
    "list_openai_models": list_models,
    "get_openai_model": get_model,
    "create_chat_completion": functools.partial(_create, interface=ChatCompletion),
    "create_response": functools.partial(_create, interface=ModelResponse),
    "get_response": get_response,
    "delete_response": delete_response,
    "cancel_response": cancel_response,
    "list_response_input_items": list_input_items,
    **files.ENDPOINTS,
}

_TABLE = RouteTable({name: face_route.route for name, face_route in ROUTES.items()})

build_face = OpenAIFace
