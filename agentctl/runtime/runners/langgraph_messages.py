"""Messages of LangChain: their texts, their tokens, and their neutral form."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
    convert_to_messages,
)

from agentctl.runtime.files import find_kind
from agentctl.runtime.models.answering import PROVIDER
from agentctl.runtime.transcript.history import MAXIMUM_CALLS, clean_name, complete_history


def to_langchain_messages(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Convert neutral messages of earlier runs."""
    converted: list[Any] = []
    for message in complete_history(messages):
        content = message["content"]

        if message["role"] == "user":
            converted.append(HumanMessage(build_content(message)))
        elif message["role"] == "tool":
            converted.append(
                ToolMessage(
                    content, tool_call_id=message["tool_call_id"], name=message["tool_name"]
                )
            )
        else:
            calls = [
                {"id": call["id"], "name": call["name"], "args": call["arguments"]}
                for call in message.get("tool_calls", ())
            ]
            converted.append(AIMessage(content, tool_calls=calls))

    return converted


def build_content(message: Mapping[str, Any]) -> Any:
    """Return the content of a message of the user, with its loaded files as blocks."""
    files = message.get("files")
    if not files:
        return message["content"]

    blocks = [
        {
            "type": "file" if kind == "pdf" else kind,
            "base64": file.base64,
            "mime_type": file.reference.media_type,
            **({"filename": file.reference.name} if kind == "pdf" else {}),
        }
        for file in files
        for kind in [find_kind(file.reference.media_type)]
    ]

    text = message["content"]
    return [*([{"type": "text", "text": text}] if text else []), *blocks]


def read_text(message: Any) -> str:
    """Return the text of a message, whose content is a string or a list of blocks."""
    if isinstance(message.content, str):
        return message.content
    return "".join(
        block if isinstance(block, str) else str(block.get("text", ""))
        for block in message.content
        if isinstance(block, str) or block.get("type") == "text"
    )


def read_thinking(message: Any) -> str:
    """Return the thinking in a message, in the forms of the providers."""
    reasoning = message.additional_kwargs.get("reasoning_content")
    pieces = [reasoning] if isinstance(reasoning, str) else []
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and block.get("type") in ("thinking", "reasoning"):
            piece = block.get("thinking") or block.get("reasoning")
            pieces += [piece] if isinstance(piece, str) else []
    return "".join(pieces)


def read_model(message: Any) -> str | None:
    """Return the model of the configuration that has written an answer; None for another model."""
    details = message.response_metadata
    return details["model_name"] if details.get("model_provider") == PROVIDER else None


def read_usage(message: Any) -> dict[str, int] | None:
    """Return the nine counters of a message; None if it has none.

    langchain-openai puts those of a streamed structured answer into the metadata of the response,
    as its provider sends them.
    """
    if message.usage_metadata:
        return extract_usage(message.usage_metadata)

    raw = message.response_metadata.get("token_usage")
    if not isinstance(raw, Mapping) or not isinstance(raw.get("prompt_tokens"), int):
        return None

    prompt = raw["prompt_tokens"]
    answer = raw.get("completion_tokens") or 0

    before = raw.get("prompt_tokens_details")
    after = raw.get("completion_tokens_details")
    before = before or {}
    after = after or {}

    usage = {
        "input_tokens": prompt,
        "output_tokens": answer,
        "total_tokens": raw.get("total_tokens") or prompt + answer,
        "input_token_details": {
            "audio": before.get("audio_tokens"),
            "cache_read": before.get("cached_tokens"),
            "cache_creation": before.get("cache_write_tokens"),
        },
        "output_token_details": {
            "audio": after.get("audio_tokens"),
            "reasoning": after.get("reasoning_tokens"),
        },
    }

    return extract_usage(usage)


def extract_usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the nine counters of the `usage_metadata` of a message."""
    prompt = usage.get("input_token_details", {})

    answer = usage.get("output_token_details", {})

    audio_in = prompt.get("audio") or 0
    audio_out = answer.get("audio") or 0

    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "audio_input_tokens": audio_in,
        "audio_output_tokens": audio_out,
        "audio_total_tokens": audio_in + audio_out,
        "cache_read_tokens": prompt.get("cache_read") or 0,
        "cache_write_tokens": prompt.get("cache_creation") or 0,
        "reasoning_tokens": answer.get("reasoning") or 0,
    }


def find_open_calls(messages: Iterable[Any]) -> dict[str, str]:
    """Return the names of the calls without a result, by their ids."""
    calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, AIMessage):
            calls |= {call["id"] or "": call["name"] for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            calls.pop(message.tool_call_id, None)
    return calls


def repair_messages(messages: Sequence[Any]) -> Iterator[Any]:
    """Yield the changes of a thread after which models accept it, for the reducer `add_messages`.

    A model can answer with nothing or with a call that it must not send back (`is_acceptable`),
    and a step that fails can leave calls without a result before later messages.
    """
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                yield RemoveMessage(message.id)
            open_calls.discard(message.tool_call_id)
            continue

        open_calls = set()
        if not isinstance(message, AIMessage):
            continue

        after = range(number + 1, len(messages))
        end = next((at for at in after if not isinstance(messages[at], ToolMessage)), None)
        results = messages[number + 1 : end]
        answered = None if end is None else {result.tool_call_id for result in results}
        calls = _keep_calls(message, answered)
        open_calls = {call["id"] for call in calls}
        is_empty = not calls and not (
            message.content.strip() if isinstance(message.content, str) else message.content
        )
        if is_empty:
            yield RemoveMessage(message.id)
        elif message.invalid_tool_calls or calls != message.tool_calls:
            additional_kwargs = dict(message.additional_kwargs)
            additional_kwargs.pop("tool_calls", None)
            changes = {
                "tool_calls": calls,
                "invalid_tool_calls": [],
                "additional_kwargs": additional_kwargs,
            }
            yield message.model_copy(update=changes)


def _keep_calls(message: AIMessage, answered: Container[str] | None) -> list[Any]:
    """Return the calls that a model can get back; without `answered` those without a result too."""
    calls = {
        call["id"]: {**call, "name": clean_name(call["name"])}
        for call in message.tool_calls
        if call["id"] and (answered is None or call["id"] in answered)
    }
    return [*calls.values()][:MAXIMUM_CALLS]


def find_messages(state: object) -> Any:
    """Return the messages in the state of a graph, as the state has them; None if it has none.

    They are its key `messages`, or the first other key with a list of messages, such as the
    `supervisor_messages` of an inner supervisor.
    """
    values = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})

    if "messages" in values:
        return values["messages"]
    for value in values.values():
        if isinstance(value, list) and value and isinstance(value[-1], BaseMessage):
            return value
    return getattr(state, "messages", None)


def read_messages(state: object) -> list[Any]:
    """Return the messages in the state of a graph.

    They are in every form that LangGraph takes: the reducer of `MessagesState` converts them, that
    of another state may not.
    """
    state_messages = find_messages(state)
    if not state_messages:
        return []

    items = state_messages if isinstance(state_messages, list) else [state_messages]
    messages: list[Any] = []
    for item in items:
        if isinstance(item, BaseMessage):
            messages.append(item)
            continue
        try:
            messages += convert_to_messages([item])
        except (NotImplementedError, TypeError, ValueError):
            continue

    return messages
