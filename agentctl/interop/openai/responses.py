"""Responses: `POST /v1/responses`, and the objects of new and of stored responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from agentctl.interface.requests import EarlierMessage, StreamEvent
from agentctl.interop.openai.calls import RequestTools, build_call_item, read_tools, select_handed
from agentctl.interop.openai.events import Answer, AnswerEnd, RunEvents, format_leg_id, read_answer
from agentctl.interop.openai.failures import RefusedParameter, describe_end
from agentctl.interop.openai.messages import read_input_items
from agentctl.interop.openai.parameters import (
    RESPONSE_RULES,
    OpenAIParameters,
    check_type,
    read_schema,
)
from agentctl.records.run_spec import REQUIRED
from agentctl.records.text import is_unique_id

PAUSED_CODE = "approval_pending"
"""The code of a run that waits for a decision which a response cannot ask its caller for."""

STATUSES = {"stop": "completed", "length": "incomplete", "content_filter": "incomplete"}
"""The status of a response by the finish reason of its run."""

_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}

RESPONSE_ID = "resp_"
"""The beginning of the id of a response."""

ITEM_ID = "msg_"
"""The beginning of the id of its output item with the text."""

UNSTORED_ID = f"{RESPONSE_ID}unstored_"
"""The beginning of the id of a response with `store = false`: no request finds its run by it."""


class RequestFields(NamedTuple):
    """The fields of a response that repeat its request."""

    model: str
    instructions: str | None = None
    metadata: Mapping[str, Any] | None = None
    user: str | None = None

    previous: str | None = None
    """`previous_response_id`."""

    format: Mapping[str, Any] | None = None
    """`text.format`; None for text."""

    tools: RequestTools = RequestTools()
    background: bool = False

    is_stored: bool = True
    """`store`."""


def select_items(end: AnswerEnd, tools: RequestTools) -> list[dict[str, Any]]:
    """Return an item for each call that the caller has to make; empty if it can make none."""
    approvals = select_handed(end.waiting, one_by_one=tools.one_by_one, with_approvals=True)
    return [build_call_item(approval) for approval in approvals]


def build_response(fields: RequestFields, answer: Answer) -> dict[str, Any]:
    """Return the object of a response; it is queued or in progress without an end of its answer."""
    end = answer.end
    call_items = [] if end is None else select_items(end, fields.tools)

    # The statuses of the response and of its item with the text.
    status = "queued" if answer.is_queued else "in_progress"
    item_status = "completed"
    error = None
    incomplete = None
    if end is not None and end.status == "COMPLETED":
        status = STATUSES[end.finish_reason]
        item_status = status
        if status == "incomplete":
            incomplete = {"reason": _INCOMPLETE_REASONS[end.finish_reason]}
    elif call_items:
        status = "completed"
    elif end is not None:
        status = "cancelled" if end.status == "CANCELLED" else "failed"
        item_status = "incomplete"
        failure = describe_end(end, PAUSED_CODE)["error"]
        error = {"code": failure["code"], "message": failure["message"]}

    output = list[dict[str, Any]]()
    if end is not None and (answer.text or end.status == "COMPLETED"):
        item_id = format_leg_id(ITEM_ID, answer)
        output.append(build_item(item_id, item_status, [build_part(answer.text)]))
    output += call_items

    metrics: Mapping[str, Any] = {}
    if end is not None and end.metrics is not None:
        metrics = end.metrics

    return {
        "id": format_leg_id(RESPONSE_ID if fields.is_stored else UNSTORED_ID, answer),
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
        "store": fields.is_stored,
        "temperature": None,
        "text": {"format": fields.format or {"type": "text"}},
        "tool_choice": _format_choice(fields.tools.choice),
        "tools": [
            {"type": "function", "strict": None, "parameters": None, "description": None, **tool}
            for tool in fields.tools.tools or ()
        ],
        "top_p": None,
        "truncation": "disabled",
        "usage": _build_usage(metrics),
        "user": fields.user,
    }


def _format_choice(choice: str | None) -> str | dict[str, Any]:
    if choice is None:
        return "auto"
    if choice == REQUIRED:
        return REQUIRED
    return {"type": "function", "name": choice}


def build_stored_response(
    run: Mapping[str, Any], model: str, waiting_approvals: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the response of a run record of any status.

    Args:
        waiting_approvals: the approvals that a paused run waits for.
    """
    # The request stored its `user` in the metadata of the run.
    metadata = dict(run["metadata"] or {})
    user = metadata.pop("user", None)
    fields = RequestFields(model, metadata=metadata, user=user)
    return build_response(fields, read_answer(run, waiting_approvals))


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
        "input_tokens_details": {
            "cached_tokens": metrics["cache_read_tokens"],
            "cache_write_tokens": metrics["cache_write_tokens"],
        },
        "output_tokens": metrics["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": metrics["reasoning_tokens"]},
        "total_tokens": metrics["total_tokens"],
    }


class ModelResponse:
    """The form of one response of a component."""

    rules = RESPONSE_RULES
    paused_code = PAUSED_CODE
    stop: tuple[str, ...] = ()

    def __init__(self, parameters: OpenAIParameters, model: str) -> None:
        instructions = parameters.get("instructions")
        text_format = _read_format(parameters)

        self.previous = parameters.get("previous_response_id")
        self.background = bool(parameters.get("background", bool))

        is_stored = parameters.get("store", bool) is not False
        if self.background and not is_stored:
            raise RefusedParameter("A response in the background needs store = true", "store")

        self.tools = read_tools(parameters, nested=False)
        self._fields = RequestFields(
            model=model,
            instructions=instructions,
            metadata=parameters.get("metadata", dict),
            user=parameters.get("user"),
            previous=self.previous,
            format=text_format,
            tools=self.tools,
            background=self.background,
            is_stored=is_stored,
        )

        if parameters.get_include_usage():
            raise RefusedParameter(
                "stream_options.include_usage is not supported: the last event has the usage",
                "stream_options",
            )
        self.output_schema = read_schema(text_format, "text.format")

        conversation = parameters.get_any("conversation")
        if isinstance(conversation, dict):
            conversation = conversation.get("id", "")
        if conversation is not None:
            check_type(conversation, str, "conversation")
        self.conversation: str | None = conversation

        if self.conversation is None and self.previous and is_unique_id(self.previous):
            # Microsoft's Agent Framework sends the id of a conversation that is not `conv_…` so.
            self.conversation = self.previous
            self.previous = None

        if self.previous is not None and self.conversation is not None:
            raise RefusedParameter(
                "Only one of previous_response_id and conversation can be given",
                "previous_response_id",
            )

        items = parameters.get_any("input")
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        messages = read_input_items(check_type(items, list, "input"))

        instruction_messages = [EarlierMessage("user", instructions)] if instructions else []
        self.messages = messages._replace(
            earlier=[*instruction_messages, *messages.earlier],
            instructions=[*instruction_messages, *messages.instructions],
        )

    def build(self, answer: Answer) -> dict[str, Any] | None:
        """Return the response for an answer; None if it is an error (`describe_end`)."""
        end = answer.end
        if end is None or end.status == "COMPLETED" or select_items(end, self.tools):
            return build_response(self._fields, answer)
        return None

    def build_encoder(self, events: RunEvents) -> Callable[[list[StreamEvent]], bytes]:
        """Return the function that encodes each portion of the events of a run."""
        return _Encoder(self._fields, events).encode


class _Encoder:
    """Encodes the events of a run as the events of a response."""

    def __init__(self, fields: RequestFields, events: RunEvents) -> None:
        self._fields = fields
        self._events = events
        self._texts: list[str] = []
        self._number = -1
        self._item_id = format_leg_id(ITEM_ID, events)
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._has_message = False

    def encode(self, portion: list[StreamEvent]) -> bytes:
        """Return the events of a portion; an empty one is the end of the stream."""
        parts: list[bytes] = []

        if portion and self._number < 0:
            parts.append(self._event("response.created", response=self._build(None)))
            parts.append(self._event("response.in_progress", response=self._build(None)))

        for item in self._events.read(portion):
            if isinstance(item, str):
                parts += self._open_message()
                self._texts.append(item)
                delta = {**self._place, "delta": item, "logprobs": []}
                parts.append(self._event("response.output_text.delta", **delta))
            else:
                parts += self._encode_end(item)

        return b"".join(parts)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        self._number += 1
        body = {"type": name, "sequence_number": self._number, **fields}
        return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(body))

    def _build(self, end: AnswerEnd | None) -> dict[str, Any]:
        return build_response(self._fields, self._events.build_answer("".join(self._texts), end))

    def _open_message(self) -> list[bytes]:
        if self._has_message:
            return []
        self._has_message = True
        item = build_item(self._item_id, "in_progress", [])
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=build_part("")),
        ]

    def _encode_end(self, end: AnswerEnd) -> list[bytes]:
        call_items = select_items(end, self._fields.tools)
        if end.status != "COMPLETED" and not call_items:
            return [self._event("response.failed", response=self._build(end))]

        # An answer without a text is an empty message, unless it has calls.
        parts = [] if call_items else self._open_message()
        status = STATUSES[end.finish_reason]

        if self._has_message:
            text = "".join(self._texts)
            part = build_part(text)
            item = build_item(self._item_id, status, [part])
            parts += [
                self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
                self._event("response.content_part.done", **self._place, part=part),
                self._event("response.output_item.done", output_index=0, item=item),
            ]

        for index, item in enumerate(call_items, start=int(self._has_message)):
            parts += self._encode_item(item, index)

        return [*parts, self._event(f"response.{status}", response=self._build(end))]

    def _encode_item(self, item: Mapping[str, Any], index: int) -> list[bytes]:
        """Return the events of an item of a call. They are numbered in the order of this list."""
        if item["type"] != "function_call":
            return [
                self._event("response.output_item.added", output_index=index, item=item),
                self._event("response.output_item.done", output_index=index, item=item),
            ]

        place = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        arguments_event = "response.function_call_arguments"
        begun_item = {**item, "status": "in_progress", "arguments": ""}
        return [
            self._event("response.output_item.added", output_index=index, item=begun_item),
            self._event(f"{arguments_event}.delta", **place, delta=arguments),
            self._event(f"{arguments_event}.done", **place, name=item["name"], arguments=arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]


def _read_format(parameters: OpenAIParameters) -> dict[str, Any] | None:
    """Return `text.format`; another option of `text` is refused."""
    text = parameters.get("text", dict) or {}
    for name, value in text.items():
        if name != "format" and value is not None:
            raise RefusedParameter("Options of text other than format are not supported", "text")
    return text.get("format")
