"""Recorded runs: lists of events as a service has stored them, for the tests of faces.

`test_recorded_runs.py` makes the runs again and compares; with AGENTCTL_TEST_WRITE=1 it writes the
files in `recorded`. Ids, times and versions are replaced, so that a new recording is equal to the
old one unless the events have changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.records.events import CONTENT_NAMES, EventKind, parse_event
from agentctl.records.kinds import ComponentKind
from tests.kit.world_agents import ADD, OFFICE, OPEN, PLANNED

__all__ = [
    "CODE",
    "CONFIG",
    "ENDINGS",
    "RECORDINGS",
    "Recording",
    "Ruled",
    "format_events",
    "join_texts",
    "read_events",
    "split_legs",
]

FOLDER = Path(__file__).with_name("recorded")

CODE = '''
from collections.abc import AsyncIterator

from agentctl import Progress, RunContext, Thinking


async def tell(message: str, context: RunContext) -> AsyncIterator[object]:
    """Think, report progress, save a file, and answer."""
    yield Thinking("I look ")
    yield Thinking("it up.")
    yield Progress("half", 0.5)
    await context.save_file("notes.txt", b"seen")
    yield "Hello "
    yield message


async def clerk(message: str, context: RunContext) -> str:
    """Ask."""
    schema = {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]}
    answer = await context.ask("How many seats?", schema)
    return f"{answer}"


async def slip(message: str) -> AsyncIterator[str]:
    """Answer in part, and fail."""
    yield "Nearly "
    raise RuntimeError("secret of the agent")


async def dawdle(message: str) -> AsyncIterator[str]:
    """Answer in part, and wait for a cancel."""
    import asyncio

    yield "Some "
    await asyncio.Event().wait()
'''

CONFIG = (
    PLANNED
    + OFFICE
    + """
[[agents]]
id = "adder"
model = "plan"
tools = ["world_tools:add"]

[[workflows]]
id = "duty"
steps = [{{ name = "ask", agent = "asker" }}, {{ name = "work", agent = "echo" }}]
"""
    + "".join(
        f'\n[[agents]]\nid = "{agent}"\nobject = "telling_agents:{function}"\n'
        for agent, function in (
            ("teller", "tell"),
            ("clerk", "clerk"),
            ("slipper", "slip"),
            ("dawdler", "dawdle"),
        )
    )
)


def plan(*calls: dict[str, Any]) -> str:
    """Return the message that makes the model `plan` send these calls in one answer."""
    made = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for number, call in enumerate(calls)
    ]
    return json.dumps([{"content": "Let me see.", "tool_calls": made}])


@dataclass(frozen=True)
class Ruled:
    """A decision about an approval: the parameters of `build_ruling`."""

    verb: Any
    value: Any = None
    note: str | None = None


@dataclass(frozen=True)
class Recording:
    """A recorded run."""

    name: str
    """The name of its file."""

    kind: ComponentKind
    component: str
    message: str

    rulings: tuple[Ruled, ...] = ()
    """The decisions, in the order of the approvals. Without them a run stays paused."""

    tools: tuple[dict[str, Any], ...] = ()
    """The tools of the caller."""

    is_cancelled: bool = False
    """True if the run is cancelled after its first text."""


RECORDINGS = (
    Recording("text", "agent", "teller", "ada"),
    Recording("call", "agent", "tool-add", '{"a": 1, "b": 2}'),
    Recording("failed-call", "agent", "adder", plan({"name": "add", "arguments": {"a": 1}})),
    Recording("member", "team", "crew", "ask echo"),
    Recording("steps", "workflow", "line", "ask echo"),
    Recording("failed", "agent", "slipper", "x"),
    Recording("failed-step", "workflow", "broken", "x"),
    Recording("cancelled", "agent", "dawdler", "x", is_cancelled=True),
    Recording("approved", "agent", "payer", plan(ADD), (Ruled("approve"),)),
    Recording(
        "decided",
        "agent",
        "payer",
        plan(ADD, ADD),
        (Ruled("approve"), Ruled("reject", note="too much")),
    ),
    Recording("waiting", "agent", "careful", plan(ADD)),
    Recording("question", "agent", "clerk", "book", (Ruled("answer", {"seats": 2}),)),
    Recording(
        "tools-of-the-caller",
        "agent",
        "adder",
        plan(
            {"name": "open_file", "arguments": {"path": "a"}},
            {"name": "open_file", "arguments": {"path": "b"}},
        ),
        (Ruled("complete", "text of a"), Ruled("fail", note="no such file")),
        tools=(OPEN,),
    ),
    Recording("member-approval", "team", "office", '{"a": 1, "b": 2}', (Ruled("approve"),)),
    Recording("step-approval", "workflow", "duty", '{"a": 1, "b": 2}', (Ruled("approve"),)),
)


ENDINGS = (
    Recording("cut", "agent", "teller", "ada"),
    Recording("limited", "agent", "teller", "ada"),
    Recording("open-member", "team", "crew", "ask echo"),
)
"""Recorded runs with other ends: the process of the run `text` is gone, or its model has reached
its limit; the member of the run `member` is lost, and has no end.
"""


def read_events(name: str) -> list[StreamEvent]:
    """Return the events of a recorded run."""
    if name == "cut":
        return read_events("text")[:-1]
    if name == "limited":
        *events, last = read_events("text")
        data = {**json.loads(last.data), "finish_reason": "length"}
        return [*events, replace(last, data=orjson.dumps(data))]
    if name == "open-member":
        return [event for event in read_events("member") if event.name != "RunCompleted"]

    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [
        StreamEvent(entry["seq"], entry["name"], orjson.dumps(entry["data"])) for entry in entries
    ]


def split_legs(events: Sequence[StreamEvent]) -> list[list[StreamEvent]]:
    """Return the events of each leg of a run: a pause of the run ends one."""
    root_id = parse_event(events[0].name, events[0].data).run_id
    legs: list[list[StreamEvent]] = [[]]
    for event in events:
        legs[-1].append(event)
        parsed = parse_event(event.name, event.data)
        if parsed.kind is EventKind.PAUSED and parsed.run_id == root_id:
            legs.append([])
    return [leg for leg in legs if leg]


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_CALL = re.compile(r"call_\d+_\d+")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(Z|\+00:00)")

_METRICS = {
    "input_tokens": 20,
    "output_tokens": 10,
    "total_tokens": 30,
    "cache_read_tokens": 2,
    "reasoning_tokens": 4,
}


def format_events(events: Sequence[StreamEvent]) -> str:
    """Return the lines of a recording: events with new ids, times, versions and counts."""
    lines = []
    for seq, event in enumerate(events):
        data = _replace_values(json.loads(event.data))
        lines.append(json.dumps({"seq": seq, "name": event.name, "data": data}))
    text = "".join(f"{line}\n" for line in lines)

    text = _renumber(text, _ID, "00000000-0000-7000-8000-{:012}")
    text = _renumber(text, _CALL, "call-{}")
    text = _renumber(text, _HASH, "sha256:{:064}")
    return _TIME.sub("2026-01-02T03:04:05.000000Z", text)


def _renumber(text: str, pattern: re.Pattern[str], form: str) -> str:
    """Replace the values that a pattern finds by their numbers, in the order of the text."""
    for number, found in enumerate(dict.fromkeys(pattern.findall(text))):
        text = text.replace(found, form.format(number))
    return text


def _replace_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_replace_values(item) for item in value]
    if not isinstance(value, dict):
        return value

    replaced = {name: _replace_values(member) for name, member in value.items()}
    if isinstance(replaced.get("created_at"), int):
        replaced["created_at"] = 1_767_323_045
    if replaced.get("version"):
        replaced["version"] = "0123456789ab"
    for name, count in _METRICS.items():
        if replaced.get(name):
            replaced[name] = count
    return replaced


def join_texts(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Return events with the adjacent parts of a text as one: models send them by chance."""
    joined: list[StreamEvent] = []
    for event in events:
        if joined and event.name in CONTENT_NAMES and joined[-1].name == event.name:
            data = json.loads(event.data)
            before = json.loads(joined[-1].data)
            if before["run_id"] == data["run_id"]:
                before["content"] += data["content"]
                joined[-1] = replace(joined[-1], data=orjson.dumps(before))
                continue
        joined.append(event)
    return joined
