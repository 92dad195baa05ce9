"""The objects of OpenAI's responses, for new and for stored ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentctl.interop.openai.calls import RequestTools, build_call_items, select_handed
from agentctl.interop.openai.events import Answer, AnswerEnd, RunEvents, read_answer
from agentctl.interop.openai.failures import describe_end
from agentctl.records.run_spec import REQUIRED

PAUSED_CODE = "approval_pending"
"""The code of a run that waits for a decision which a response cannot ask its caller for."""

STATUSES = {"stop": "completed", "length": "incomplete", "content_filter": "incomplete"}
"""The status of a response by the finish reason of its run."""

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIX = "resp_"


class RequestFields(NamedTuple):
    """The fields of a response that repeat its request; `format` is `text.format`."""

    model: str
    instructions: str | None = None
    metadata: Mapping[str, Any] | None = None
    user: str | None = None
    previous: str | None = None
    format: Mapping[str, Any] | None = None
    tools: RequestTools = RequestTools()
    background: bool = False


def read_response_id(response_id: str) -> str | None:
    """Return the id of the run of a response; None for an id that is none of a response."""
    if not response_id.startswith(_PREFIX):
        return None
    return response_id.removeprefix(_PREFIX).partition("_")[0]


def format_response_id(run_id: str, leg: int) -> str:
    """Return the id of a response: each leg of a run is one."""
    return f"{_PREFIX}{run_id}" if leg == 1 else f"{_PREFIX}{run_id}_{leg}"


def select_items(end: AnswerEnd, tools: RequestTools) -> list[dict[str, Any]]:
    """Return the items that hand out what a run waits for; empty if the response cannot."""
    handed = select_handed(end.waiting, one_by_one=tools.one_by_one, with_approvals=True)
    return build_call_items(handed)


def build_response(fields: RequestFields, answer: Answer) -> dict[str, Any]:
    """Return the object of a response; it is queued or in progress without an end of its answer."""
    end, text = answer.end, answer.text
    status = "queued" if answer.is_queued else "in_progress"
    error, incomplete, output = None, None, list[dict[str, Any]]()
    items = [] if end is None else select_items(end, fields.tools)
    if end is not None and end.status == "COMPLETED":
        status = STATUSES[end.finish_reason]
        if status == "incomplete":
            incomplete = {"reason": _INCOMPLETE_REASONS[end.finish_reason]}
        output = [build_item(format_item_id(answer), status, [build_part(text)])]
    elif items:
        status = "completed"
        if text:
            output = [build_item(format_item_id(answer), status, [build_part(text)])]
        output += items
    elif end is not None:
        status = "cancelled" if end.status == "CANCELLED" else "failed"
        failure = describe_end(end, PAUSED_CODE)["error"]
        error = {"code": failure["code"], "message": failure["message"]}
        if text:
            output = [build_item(format_item_id(answer), "incomplete", [build_part(text)])]
    return {
        "id": format_response_id(answer.run_id, answer.leg),
        "object": "response",
        "created_at": answer.created_at,
        "status": status,
        "background": fields.background,
        "error": error,
        "incomplete_details": incomplete,
        "instructions": fields.instructions,
        "metadata": fields.metadata or {},
        "model": fields.model,
        "output": output,
        "conversation": {"id": answer.session_id},
        "parallel_tool_calls": not fields.tools.one_by_one,
        "previous_response_id": fields.previous,
        "store": True,
        "temperature": None,
        "text": {"format": fields.format or {"type": "text"}},
        "tool_choice": _build_choice(fields.tools.choice),
        "tools": [
            {"type": "function", "strict": None, "parameters": None, "description": None, **tool}
            for tool in fields.tools.tools or ()
        ],
        "top_p": None,
        "truncation": "disabled",
        "usage": _build_usage((end and end.metrics) or {}),
        "user": fields.user,
    }


def _build_choice(choice: str | None) -> str | dict[str, str]:
    if choice in (None, REQUIRED):
        return choice or "auto"
    return {"type": "function", "name": str(choice)}


def format_item_id(answer: Answer | RunEvents) -> str:
    """Return the id of the output item with the text."""
    return f"msg_{answer.run_id}" if answer.leg == 1 else f"msg_{answer.run_id}_{answer.leg}"


def read_item_id(item_id: object) -> str | None:
    """Return the id of the run of an output item with text; None for any other id."""
    if not isinstance(item_id, str) or not item_id.startswith("msg_"):
        return None
    return item_id.removeprefix("msg_").partition("_")[0]


def build_stored_response(
    run: Mapping[str, Any], model: str, waiting: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the response of a run record of any status; a paused run waits for `waiting`."""
    stored = {**(run["metadata"] or {})}
    user = stored.pop("user", None)
    fields = RequestFields(model, metadata=stored, user=user)
    return build_response(fields, read_answer(run, waiting))


def build_input_items(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the list of the input items of a response: the message of its run."""
    item_id = f"msg_in_{run['run_id']}"
    item = {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": run["input"]}],
    }
    return {
        "object": "list",
        "data": [item],
        "first_id": item_id,
        "last_id": item_id,
        "has_more": False,
    }


def build_item(item_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the output item with the answer."""
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def build_part(text: str) -> dict[str, Any]:
    """Return the content part with a text of the answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _build_usage(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    if metrics.get("total_tokens") is None:
        return None
    return {
        "input_tokens": metrics["input_tokens"],
        "input_tokens_details": {"cached_tokens": metrics["cache_read_tokens"]},
        "output_tokens": metrics["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": metrics["reasoning_tokens"]},
        "total_tokens": metrics["total_tokens"],
    }
