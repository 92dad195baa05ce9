"""Stored responses, and references to their items, which some programs send in their place.

A response, at `/v1/responses/{response_id}`, is a turn of an agent or a team.

Each request has the policy and the audit entry of the operation on the run or on its session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from agentctl.auth.principal import Principal
from agentctl.errors import Conflict, NotFound
from agentctl.interface.requests import CancelRequest, SessionLocator
from agentctl.interop.openai.calls import build_call_item, read_item_reference
from agentctl.interop.openai.events import read_leg_id
from agentctl.interop.openai.failures import RefusedParameter, ResponseNotFound
from agentctl.interop.openai.messages import is_result
from agentctl.interop.openai.parameters import get_public_name
from agentctl.interop.openai.responses import (
    ITEM_ID,
    RESPONSE_ID,
    build_input_items,
    build_stored_response,
)
from agentctl.records.runs import FoundTurn
from agentctl.server.answers import json_response
from agentctl.server.requests import parse_pairs
from agentctl.server.state import Call

MAXIMUM_REFERENCES = 100
"""Maximum number of references in a request."""


async def find_continued_session(call: Call, response_id: str) -> str:
    """Return the session of `previous_response_id`.

    Raises:
        RefusedParameter: there is no such response, its session has gone on after it, or it waits
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
    if await call.operations.list_pending(run_id, turn):
        raise RefusedParameter(
            "The previous response waits for the results of its calls: send them as items, without"
            " a further message",
            "input",
            "tool_results_missing",
        )
    return turn.session_id


async def get_response(call: Call, principal: Principal, response_id: str) -> Response:
    _check_query(call)
    run, turn = await _read_run(call, response_id)
    return json_response(await _build_stored(call, run, turn, response_id))


async def _build_stored(
    call: Call, run: Mapping[str, Any], turn: FoundTurn, response_id: str
) -> dict[str, Any]:
    """Return the response of a run as it is now, with the id of the request."""
    is_paused = run["status"] == "PAUSED"
    waiting = await call.operations.list_pending(run["run_id"], turn) if is_paused else []
    return {**build_stored_response(run, turn.component_id, waiting), "id": response_id}


async def list_input_items(call: Call, principal: Principal, response_id: str) -> Response:
    _check_query(call, "limit", "order")
    run, _ = await _read_run(call, response_id)
    return json_response(build_input_items(run))


async def cancel_response(call: Call, principal: Principal, response_id: str) -> Response:
    """Handle `POST /v1/responses/{response_id}/cancel`, for responses of all requests.

    OpenAI cancels responses in the background only.
    """
    run_id, turn = await _find(call, response_id)
    request = CancelRequest(turn.session_id)
    await call.operations.cancel_run(turn.kind, turn.component_id, run_id, request)
    run = (await call.operations.read_turn(run_id, turn)).value
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
    await call.operations.delete_session(turn.session_id, SessionLocator(db_id=turn.db_id))
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def _find(call: Call, response_id: str) -> tuple[str, FoundTurn]:
    """Return the run of a response and its place; ResponseNotFound if the caller sees none."""
    run_id = read_leg_id(RESPONSE_ID, response_id)
    try:
        turn = None if run_id is None else await call.operations.find_turn(run_id)
    except NotFound:
        turn = None
    if run_id is None or turn is None or turn.kind == "workflow":
        raise ResponseNotFound
    return run_id, turn


async def _read_run(call: Call, response_id: str) -> tuple[Mapping[str, Any], FoundTurn]:
    run_id, turn = await _find(call, response_id)
    document = await call.operations.get_component_run(
        turn.kind, turn.component_id, run_id, session_id=turn.session_id
    )
    return document.value, turn


def _check_query(call: Call, *known: str) -> None:
    """Refuse a query with a parameter that is not honoured."""
    for name, value in parse_pairs(call.scope["query_string"]):
        if name not in known and (name, value) != ("stream", "false"):
            public = get_public_name(name)
            text = f"{public} is not supported here" if public else "A parameter is unknown"
            raise RefusedParameter(text, public)


async def resolve_references(call: Call, model: str, items: object) -> object:
    """Return the input of a response of a model with the items that it refers to.

    The text of a run is that of its first reference: all of its legs.

    Raises:
        RefusedParameter: there are too many references, or one is to no item that the caller got
            from this model.
    """
    # The run that gets a result has the items before it.
    if not isinstance(items, list) or not items or is_result(items[-1]):
        return items
    places = [
        index
        for index, item in enumerate(items)
        if isinstance(item, dict) and item.get("type") == "item_reference"
    ]
    if len(places) > MAXIMUM_REFERENCES:
        raise RefusedParameter(f"input has more than {MAXIMUM_REFERENCES} references", "input")
    resolved: list[Any] = [*items]
    seen: set[str] = set()
    for index in places:
        at = f"input[{index}].id"
        try:
            resolved[index] = await _resolve(call, model, items[index].get("id"), at, seen)
        except NotFound:
            raise RefusedParameter(f"{at} is none of an item of yours", at) from None
    return [item for item in resolved if item is not None]


async def _resolve(
    call: Call, model: str, item_id: object, at: str, seen: set[str]
) -> dict[str, Any] | None:
    operations = call.operations
    run_id, asked = read_leg_id(ITEM_ID, item_id), None
    if run_id is None:
        asked = await operations.find_asked(read_item_reference(item_id, at))
        run_id = asked["root_run_id"]
    found = await operations.find_turn(run_id)
    if found.component_id != model:
        raise NotFound("Run not found")
    if asked is not None:
        return build_call_item(asked)
    if run_id in seen:
        return None
    seen.add(run_id)
    run = (await operations.read_turn(run_id, found)).value
    return {"type": "message", "role": "assistant", "content": run["content"] or ""}
