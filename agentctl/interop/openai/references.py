"""References to the items of earlier responses, which some programs send in place of the items."""

from __future__ import annotations

from typing import Any

from agentctl.errors import NotFound
from agentctl.interop.openai.calls import build_call_items, read_item_reference
from agentctl.interop.openai.failures import RefusedParameter
from agentctl.interop.openai.messages import is_result
from agentctl.interop.openai.response_objects import read_item_id
from agentctl.server.state import Call

MAXIMUM_REFERENCES = 100
"""Maximum number of references in a request."""


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
    places = [index for index, item in enumerate(items) if _is_reference(item)]
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


def _is_reference(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"


async def _resolve(
    call: Call, model: str, item_id: object, at: str, seen: set[str]
) -> dict[str, Any] | None:
    operations = call.operations
    run_id, asked = read_item_id(item_id), None
    if run_id is None:
        asked = await operations.find_asked(read_item_reference(item_id, at))
        run_id = asked["root_run_id"]
    found = await operations.find_turn(run_id)
    if found.component_id != model:
        raise NotFound("Run not found")
    if asked is not None:
        return build_call_items([asked])[0]
    if run_id in seen:
        return None
    seen.add(run_id)
    run = (await operations.read_turn(run_id, found)).value
    return {"type": "message", "role": "assistant", "content": run["content"] or ""}
