"""The objects of OpenAI's responses, for new and for stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agentctl.interop.openai.events import RunEnd, find_finish_reason
from agentctl.interop.openai.failures import describe_end
from agentctl.records.times import parse_rfc3339, whole_seconds

STATUSES = {"stop": "completed", "length": "incomplete", "content_filter": "incomplete"}
"""The status of a response by the finish reason of its run."""

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIX = "resp_"


class RequestFields(NamedTuple):
    """The fields of a response that repeat its request.

    Attributes:
        model: id of the component.
        previous: id of the previous response.
        format: `text.format`.
    """

    model: str
    instructions: str | None = None
    metadata: Mapping[str, Any] | None = None
    user: str | None = None
    previous: str | None = None
    format: Mapping[str, Any] | None = None


def read_response_id(response_id: str) -> str | None:
    """Return the id of the run of a response; None for an id that is none of a response."""
    return response_id.removeprefix(_PREFIX) if response_id.startswith(_PREFIX) else None


def build_response(
    fields: RequestFields,
    run_id: str,
    session_id: str,
    created_at: int,
    end: RunEnd | None,
    text: str,
) -> dict[str, Any]:
    """Return the object of a response.

    Args:
        created_at: seconds since the epoch.
        end: the end of the run; None: it is in progress.
        text: the text of the answer so far.
    """
    status, error, incomplete, output = "in_progress", None, None, list[dict[str, Any]]()
    if end is not None and end.status == "COMPLETED":
        status = STATUSES[end.finish_reason]
        if status == "incomplete":
            incomplete = {"reason": _INCOMPLETE_REASONS[end.finish_reason]}
        output = [build_item(f"msg_{run_id}", status, [build_part(text)])]
    elif end is not None:
        status = "cancelled" if end.status == "CANCELLED" else "failed"
        failure = describe_end(end.status, end.error, end.reason)["error"]
        error = {"code": failure["code"], "message": failure["message"]}
        if text:
            output = [build_item(f"msg_{run_id}", "incomplete", [build_part(text)])]
    return {
        "id": f"{_PREFIX}{run_id}",
        "object": "response",
        "created_at": created_at,
        "status": status,
        "error": error,
        "incomplete_details": incomplete,
        "instructions": fields.instructions,
        "metadata": fields.metadata or {},
        "model": fields.model,
        "output": output,
        "conversation": {"id": session_id},
        "parallel_tool_calls": True,
        "previous_response_id": fields.previous,
        "store": True,
        "temperature": None,
        "text": {"format": fields.format or {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": _build_usage((end and end.metrics) or {}),
        "user": fields.user,
    }


def build_stored_response(
    run: Mapping[str, Any], model: str, fields: RequestFields | None = None
) -> dict[str, Any]:
    """Return the response of a run record of any status.

    Args:
        model: id of the component.
        fields: those of the request; None: those that the record has.
    """
    if fields is None:
        stored = {**(run["metadata"] or {})}
        user = stored.pop("user", None)
        fields = RequestFields(model, metadata=stored, user=user)
    end = None
    if run["status"] == "COMPLETED":
        end = RunEnd("COMPLETED", find_finish_reason(run), run["metrics"])
    elif run["status"] in ("ERROR", "CANCELLED"):
        end = RunEnd(
            run["status"], metrics=run["metrics"], error=run["error"], reason=run["cancel_reason"]
        )
    created_at = whole_seconds(parse_rfc3339(run["created_at"]))
    return build_response(
        fields, run["run_id"], run["session_id"], created_at, end, run["content"] or ""
    )


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
