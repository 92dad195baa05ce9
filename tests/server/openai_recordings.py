"""Requests that programs have sent to the interface of OpenAI, and how to send them again.

`python -m compat.openai_recording` records them with the programs of docs/openai.md. A recording
has the requests of each operation in their order, with the status and a summary of each answer: the
program has found these answers right.

A request may have an id of an earlier answer of its operation, of a response or a call for example.
It is recorded as `{answer 0, id 2}`; the id at the same place of the new answer replaces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["FOLDER", "Exchange", "build_config", "fill_ids", "list_ids", "mark_ids", "summarize"]

FOLDER = Path(__file__).with_name("recorded") / "openai"

KEPT_HEADERS = ("accept", "content-type", "openai-beta")
"""Header fields that belong to a recorded request; others name the machine or the credential."""

AGENTS = {
    "weather": "tool:get_weather",
    "pair": "tools:get_weather",
    "plan": "plan",
    "adder": "plan",
    "person": "tool:Person",
    "typed": "tool:final_result",
    "triage": "tool:transfer_to_echo",
}
"""Agents whose models call tools of the caller, with the behaviours of `tests.kit.model_server`."""

SCOPES = ("agents:run", "teams:run", "agents:read", "teams:read", "sessions:delete")
"""Scopes of the key of the programs."""

SHORTEST_ID = 16
"""Ids with fewer characters are names, such as those of models."""

_PLACE = re.compile(r"\{answer (\d+), id (\d+)\}")


class Exchange(TypedDict):
    """A recorded request with its answer."""

    method: str

    path: str
    """With the query."""

    headers: dict[str, str]

    body: str
    """The text as it was sent, with the places of earlier ids."""

    status: int

    answer: Any
    """The summary of the answer."""


def build_config(model_url: str, extra: str = "") -> str:
    """Return the TOML for the interface of OpenAI, with agents on the stub endpoint.

    Args:
        extra: lines of the table `[openai]`.
    """
    agents = [
        f'[[models]]\nid = "{agent}"\nprovider = "openai"\nmodel = "{behaviour}"\n'
        f'base_url = "{model_url}"\nretries = 0\n'
        f'[[agents]]\nid = "{agent}"\nname = "{agent}"\nmodel = "{agent}"\n'
        + ('tools = ["world_tools:add"]\n' if agent == "adder" else "")
        for agent, behaviour in AGENTS.items()
    ]
    return "\n".join(["[openai]\nenabled = true", extra, *agents])


def mark_ids(text: str, ids: Sequence[Sequence[str]]) -> str:
    """Replace the ids of earlier answers in a text by their places, the latest answer first."""
    places = {
        name: f"{{answer {answer}, id {number}}}"
        for answer, names in enumerate(ids)
        for number, name in enumerate(names)
    }
    for name in sorted(places, key=len, reverse=True):
        text = text.replace(name, places[name])
    return text


def fill_ids(text: str, ids: Sequence[Sequence[str]]) -> str:
    """Replace the places of ids in a text by the ids of the new answers."""
    return _PLACE.sub(lambda match: ids[int(match[1])][int(match[2])], text)


def list_ids(text: str) -> list[str]:
    """Return the ids in an answer, plain or streamed, each once and in their order."""
    found: dict[str, None] = {}
    for document in _read_documents(text):
        found |= dict.fromkeys(_walk_ids(document))
    return list(found)


def _walk_ids(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, member in value.items():
            is_id = name == "id" or name.endswith("_id")
            if is_id and isinstance(member, str) and len(member) >= SHORTEST_ID:
                yield member
            yield from _walk_ids(member)
    elif isinstance(value, list):
        for member in value:
            yield from _walk_ids(member)


def _read_documents(text: str) -> list[Any]:
    """Return the JSON document of an answer, or those of its events."""
    if not _is_stream(text):
        return [json.loads(text)] if text else []
    lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line.strip() != "[DONE]"]


def _is_stream(text: str) -> bool:
    return text.startswith(("data:", "event:", ":"))


def summarize(text: str) -> Any:
    """Return what a program reads in an answer: no ids, times, counts of tokens or chunks."""
    documents = _read_documents(text)
    if not _is_stream(text):
        return _summarize_document(documents[0]) if documents else None
    if documents and documents[0].get("object") == "chat.completion.chunk":
        return _summarize_chunks(documents) | {"ends": text.strip().endswith("[DONE]")}
    summary: dict[str, Any] = {"events": [kind for kind, _ in groupby(_list_types(documents))]}
    if documents and "response" in documents[-1]:
        summary["response"] = _summarize_document(documents[-1]["response"])
    return summary


def _list_types(documents: Sequence[Any]) -> Iterator[str]:
    for document in documents:
        yield document.get("type") or ("error" if "error" in document else "")


def _summarize_document(document: Any) -> Any:
    if document.get("error"):
        return {"error": _summarize_error(document["error"])}
    kind = document.get("object")
    if kind == "chat.completion":
        return {
            "object": kind,
            "choices": [_summarize_choice(each) for each in document["choices"]],
        }
    if kind == "response":
        output = [_summarize_item(item) for item in document["output"]]
        return {"object": kind, "status": document["status"], "output": output}
    if kind == "list" and document["data"][:1] and document["data"][0]["object"] == "model":
        # The agents of the deployment of tests: each new one would change the recordings.
        return {"object": kind, "data": "models"}
    if kind == "list":
        return {"object": kind, "data": [_summarize_item(item) for item in document["data"]]}
    return _summarize_item(document)


def _summarize_error(error: Any) -> dict[str, Any]:
    return {name: error.get(name) for name in ("type", "code", "param")}


def _summarize_choice(choice: Any) -> Any:
    message = choice["message"]
    return {
        "content": message.get("content"),
        "calls": [_summarize_call(call) for call in message.get("tool_calls") or ()],
        "finish_reason": choice["finish_reason"],
    }


def _summarize_call(call: Any) -> list[str]:
    return [call["function"]["name"], call["function"]["arguments"]]


def _summarize_item(item: Any) -> Any:
    """Return the kind of an item of a response or a list, with its text or its call."""
    kept = {
        name: item[name]
        for name in ("object", "type", "role", "status", "name", "arguments", "deleted")
        if name in item
    }
    if isinstance(item.get("content"), list):
        kept["text"] = "".join(part.get("text") or "" for part in item["content"])
    return kept


def _summarize_chunks(chunks: Sequence[Any]) -> dict[str, Any]:
    content = ""
    calls: dict[int, list[str]] = {}
    finish_reasons = []
    # A run that fails while its answer is streamed ends with an error instead of choices.
    errors = [_summarize_error(chunk["error"]) for chunk in chunks if chunk.get("error")]
    for choice in (choice for chunk in chunks for choice in chunk.get("choices", ())):
        content += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls") or ():
            name_and_arguments = calls.setdefault(call["index"], ["", ""])
            name_and_arguments[0] += call["function"].get("name") or ""
            name_and_arguments[1] += call["function"].get("arguments") or ""
        if choice.get("finish_reason"):
            finish_reasons.append(choice["finish_reason"])
    summary = {
        "object": "chat.completion.chunk",
        "content": content,
        "calls": list(calls.values()),
        "finish_reasons": finish_reasons,
        "has_usage": any(chunk.get("usage") for chunk in chunks),
    }
    return summary | ({"errors": errors} if errors else {})
