"""The rules by which strict providers refuse the messages of a request.

A request that keeps them is accepted by OpenAI (chat completions), by Anthropic and by servers
that parse the arguments of calls, such as vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["find_violations"]

Body = dict[str, Any]

ROLES = {"system", "developer", "user", "assistant", "tool"}

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""A name of a function (OpenAI, "Function calling"; Anthropic, "tools")."""

TEXT_CHARACTERS = 10_485_760
"""Characters of one text (OpenAI)."""

CALLS = 128
"""Calls of one answer (OpenAI)."""


def find_violations(body: Body) -> list[str]:
    """Return the rules that the messages of a request break, without their texts."""
    messages: list[Body] = body["messages"]
    found = [
        f"message {number} of {len(messages)} ({message.get('role')}): {problem}"
        for number, message in enumerate(messages)
        for problem in _check_message(message)
    ]
    return [*found, *_check_order(messages), *_check_pairs(messages)]


def _check_message(message: Body) -> Iterator[str]:
    role = message.get("role")
    text = read_text(message)
    calls = message.get("tool_calls")
    if role not in ROLES:
        yield "unknown role"
    if role in ("user", "assistant", "system") and not text.strip() and not calls:
        yield "neither text nor calls"
    if len(text) > TEXT_CHARACTERS:
        yield "a text is too long"
    if re.search("[\ud800-\udfff]", text):
        yield "a text is no Unicode"
    if calls is not None:
        yield from _check_calls(calls)


def _check_calls(calls: list[Body]) -> Iterator[str]:
    if not calls or len(calls) > CALLS:
        yield f"{len(calls)} calls"
    ids = [call.get("id") or "" for call in calls]
    if len({*ids}) < len(ids):
        yield "two calls have the same id"
    for call in calls:
        function = call.get("function") or {}
        if call.get("type") != "function":
            yield "a call has no type"
        # A provider takes back every id that it has given.
        if not call.get("id"):
            yield "a call has no id"
        if not NAME.fullmatch(str(function.get("name"))):
            yield "a name of a function is invalid"
        try:
            is_object = isinstance(json.loads(function["arguments"]), dict)
        except (KeyError, TypeError, ValueError, RecursionError):
            is_object = False
        if not is_object:
            yield "the arguments of a call are no JSON object"


def _check_order(messages: list[Body]) -> Iterator[str]:
    roles = [message.get("role") for message in messages]
    turns = [role for role in roles if role not in ("system", "developer")]
    if not turns:
        yield "there is no message"
    elif turns[0] != "user":
        yield f"the first message is of the role {turns[0]}"
    if turns and turns[-1] == "assistant":
        yield "the last message is an answer"
    if any(role in ("system", "developer") for role in roles[len(roles) - len(turns) :]):
        yield "instructions follow a message"


def _check_pairs(messages: list[Body]) -> Iterator[str]:
    """Check that the results of all calls of an answer, and no others, follow it."""
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in open_ids:
                yield f"message {number} is the result of no call"
                continue
            open_ids.remove(message["tool_call_id"])
            continue
        if open_ids:
            yield f"message {number} follows {len(open_ids)} calls without a result"
        open_ids = [str(call.get("id")) for call in message.get("tool_calls") or ()]
    if open_ids:
        yield f"{len(open_ids)} calls have no result"


def read_text(message: Body) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content)
