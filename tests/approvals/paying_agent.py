"""An agent in code that waits for people; the tests write this file to a folder.

The message is a list of words: what the agent asks for, in order. `|` separates legs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentctl import RunContext
from agentctl.runtime.context import RunEnvironment, perform_decided
from agentctl.runtime.pauses import Ask, CallOutcome, Paused

LEDGER = Path(__file__).with_name("ledger.jsonl")
"""The payments that were made."""

SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer"}, "to": {"type": "string"}},
    "required": ["amount", "to"],
}
CHOICE = {"type": "string", "enum": ["left", "right"]}
FORM = {
    "type": "object",
    "properties": {
        "seats": {"type": "integer"},
        "name": {"type": "string", "description": "as in the passport"},
        "window": {"type": "boolean"},
        "class": {"enum": ["first", "second"]},
    },
    "required": ["seats", "window"],
}


def build_ask(word: str, call_id: str) -> Ask:
    match word:
        case "ask":
            return Ask("input", call_id, "ask", question="Which way?", schema=CHOICE)
        case "form":
            return Ask("input", call_id, "book", question="Which seats?", schema=FORM)
        case "lost":
            call = {"amount": 10, "to": "bob"}
            return Ask("outcome", call_id, "pay", call, policy="other")
        case "large":
            return Ask("approval", call_id, "pay", {"amount": 2**53 + 1, "to": "bob"})
        case "open":
            return Ask("external", call_id, "open_file", {"path": "a.txt"})
        case "other" | "user":
            call = {"amount": 10, "to": "bob"}
            return Ask("approval", call_id, "pay", call, policy=word, schema=SCHEMA)
    raise ValueError(word)


async def pay(arguments: Mapping[str, Any]) -> CallOutcome:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{json.dumps(arguments)}\n")
    return CallOutcome("paid")


async def wait_for_people(message: str, context: RunContext) -> str:
    host: Any = context._host
    environment: RunEnvironment = host._environment
    legs = [leg.split() for leg in message.split("|") if leg.strip() != "none"]
    number = 0 if environment.leg is None else environment.leg.state["leg"] + 1
    results = []
    for index, _ in enumerate(legs[number - 1] if number else ()):
        assert environment.leg is not None
        decision = environment.leg.find(f"call-{number - 1}-{index}")
        assert decision is not None
        if decision.kind == "input":
            results.append(str(decision.answer))
        else:
            results.append((await perform_decided(environment, decision, pay)).text)
    if number < len(legs):
        asks = [
            build_ask(word, f"call-{number}-{index}") for index, word in enumerate(legs[number])
        ]
        raise Paused(asks, {"leg": number})
    given = dict(context.dependencies)
    return f"Results: {', '.join(results)}{f'; given {given}' if given else ''}"
