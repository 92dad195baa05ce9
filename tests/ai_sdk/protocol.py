"""The UI message stream of `ai` 7 as its client reads it: chunks that change one message.

`tests/ai_sdk/test_ai_sdk.py` has the client itself read the golden streams.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

Chunk = dict[str, Any]
Message = dict[str, Any]

FIELDS: dict[str, tuple[set[str], set[str]]] = {
    "start": ({"messageId", "messageMetadata"}, set()),
    "start-step": (set(), set()),
    "finish-step": (set(), set()),
    "text-start": ({"id"}, set()),
    "text-delta": ({"id", "delta"}, set()),
    "text-end": ({"id"}, set()),
    "reasoning-start": ({"id"}, set()),
    "reasoning-delta": ({"id", "delta"}, set()),
    "reasoning-end": ({"id"}, set()),
    "tool-input-start": ({"toolCallId", "toolName"}, {"dynamic", "providerExecuted"}),
    "tool-input-available": ({"toolCallId", "toolName", "input"}, {"dynamic", "providerExecuted"}),
    "tool-approval-request": ({"approvalId", "toolCallId", "reason", "approvalDescriptor"}, set()),
    "tool-approval-response": ({"approvalId", "approved"}, {"reason"}),
    "tool-output-available": ({"toolCallId", "output"}, set()),
    "tool-output-error": ({"toolCallId", "errorText"}, set()),
    "tool-output-denied": ({"toolCallId"}, set()),
    "finish": ({"finishReason"}, {"messageMetadata"}),
    "abort": ({"reason"}, set()),
    "error": ({"errorText"}, set()),
}
"""The required and the optional fields of each chunk that the server sends."""

ENDS = {"finish", "abort", "error"}


def parse_stream(text: str) -> list[Chunk]:
    """Return the chunks of a stream that has ended."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def apply(chunks: Iterable[Chunk], message: Message | None = None) -> Message:
    """Return a message with the chunks of a stream in it; the stream has to be valid."""
    parts: list[Any] = copy.deepcopy((message or {}).get("parts", []))
    read: Message = {"role": "assistant", **(message or {}), "parts": parts}
    opened: dict[str, Any] = {}
    types = [chunk["type"] for chunk in chunks]
    assert types[:2] == ["start", "start-step"]
    assert types[-1] in ENDS
    assert not ENDS & {*types[:-1]}
    # An error may come in a step, when the stream ends before its run.
    if types[-1] != "error" or types[-2] == "finish-step":
        assert types[-2] == "finish-step"
        assert types.count("start-step") == types.count("finish-step")
    for chunk in chunks:
        kind = chunk["type"]
        if kind.startswith("data-"):
            assert chunk.keys() == {"type", "id", "data"}
            known = [
                part for part in parts if (part["type"], part.get("id")) == (kind, chunk["id"])
            ]
            if known:
                known[0]["data"] = chunk["data"]
            else:
                parts.append({**chunk})
            continue
        required, optional = FIELDS[kind]
        assert required <= chunk.keys() - {"type"} <= required | optional, chunk
        match kind:
            case "start":
                assert message is None or message["id"] == chunk["messageId"]
                read["id"] = chunk["messageId"]
            case "start-step":
                parts.append({"type": "step-start"})
            case "text-start" | "reasoning-start":
                assert chunk["id"] not in opened
                opened[chunk["id"]] = {"type": kind.partition("-")[0], "text": ""}
                parts.append(opened[chunk["id"]])
            case "text-delta" | "reasoning-delta":
                opened[chunk["id"]]["text"] += chunk["delta"]
            case "text-end" | "reasoning-end":
                del opened[chunk["id"]]
            case _ if kind.startswith("tool-"):
                _apply_call(chunk, parts)
    assert not opened
    return read


def _apply_call(chunk: Chunk, parts: list[Any]) -> None:
    kind = chunk["type"]
    if kind == "tool-input-start":
        name = chunk["toolName"]
        own = {"type": "dynamic-tool", "toolName": name} if chunk.get("dynamic") else {}
        part = {"type": f"tool-{name}", **own, "toolCallId": chunk["toolCallId"]}
        part["providerExecuted"] = chunk.get("providerExecuted", False)
        assert chunk["toolCallId"] not in {each.get("toolCallId") for each in parts}
        parts.append(part)
        return
    if kind == "tool-approval-response":
        (part,) = (
            each for each in parts if each.get("approval", {}).get("id") == chunk["approvalId"]
        )
        part["state"] = "approval-responded"
        part["approval"] |= {name: chunk[name] for name in ("approved", "reason") if name in chunk}
        return
    (part,) = (each for each in parts if each.get("toolCallId") == chunk["toolCallId"])
    if kind == "tool-input-available":
        part |= {"state": "input-available", "input": chunk["input"]}
    elif kind == "tool-approval-request":
        approval = {"id": chunk["approvalId"], "requestReason": chunk["reason"]}
        approval["descriptor"] = chunk["approvalDescriptor"]
        part |= {"state": "approval-requested", "approval": approval}
    else:
        part["state"] = kind.removeprefix("tool-")
        part |= {name: chunk[name] for name in ("output", "errorText") if name in chunk}


def types_of(message: Message) -> list[str]:
    return [part["type"] for part in message["parts"]]


def text_of(message: Message) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def calls_of(message: Message) -> list[Any]:
    return [part for part in message["parts"] if "toolCallId" in part]


def is_complete(message: Message) -> bool:
    """Return True if `useChat` sends the message by itself: the rules of `ai` for the last step.

    They are `lastAssistantMessageIsCompleteWithToolCalls`, and the same with approval responses.
    """
    last = max(index for index, part in enumerate(message["parts"]) if part["type"] == "step-start")
    calls = calls_of({"parts": message["parts"][last:]})
    own = [part["state"] for part in calls if not part["providerExecuted"]]
    done = {"output-available", "output-error"}
    states = [part["state"] for part in calls]
    return bool(own and {*own} <= done) or (
        "approval-responded" in states
        and {*states} <= done | {"output-denied", "approval-responded"}
    )
