"""A run as it is drawn: its items, with texts that are safe for a terminal.

All texts of a model are cleaned here: control characters are escaped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import orjson

from agentctl.records.files import is_saved
from agentctl.records.items import LIVE_STATUSES, Item, RunItem, ToolCallItem
from agentctl.records.kinds import Record, find_component
from agentctl.records.strict import find_object
from agentctl.records.text import escape_controls
from agentctl.records.times import format_span

MAXIMUM_LEVELS = 8
"""Levels of members; a server could return runs that are their own parents."""

_SHORT_ITEMS = frozenset({"prompt", "thinking", "tool_call"})
"""The types of items that a transcript shows whole with `--full` only."""


@dataclass(slots=True)
class DrawnRun:
    """One run."""

    record: Record
    """The record of the run in the view `items`, or the part of it that is known."""

    members: dict[str, DrawnRun] = field(default_factory=dict)
    """The runs of members, steps and background work, by id."""

    causes: Sequence[Record] = ()
    """The causes of its failures and of its members' failures, if the caller may read them."""

    @property
    def component(self) -> str:
        """The id of its component; `run` if the record names none."""
        component = find_component(self.record)
        return clean_line("run" if component is None else component[1])

    @property
    def input(self) -> str:
        """The message, and the object `input` of the request if the message is not its text.

        Lines name its files.
        """
        message = self.record.get("input") or ""
        lines = [message]

        input_object = self.record.get("input_object")
        if input_object is not None and find_object(message) != input_object:
            lines.append(f"input: {orjson.dumps(input_object).decode()}")

        for file in self.record.get("files") or ():
            if not is_saved(file):
                lines.append(f"file: {file['name']} ({file['media_type']})")
        return clean_text("\n".join(lines))

    @property
    def items(self) -> Iterator[Item | DrawnMember]:
        """The items in their order, without runs that are not known."""
        for item in self.record.get("items") or ():
            if item["type"] in ("member", "step", "background"):
                member = self.members.get(str(item["run_id"]))
                if member is not None:
                    yield DrawnMember.of(item, member)
            else:
                yield item

    @property
    def tool_calls(self) -> int:
        """The number of calls of tools, without delegations."""
        return sum(item["type"] == "tool_call" for item in self.record.get("items") or ())

    @property
    def has_short_parts(self) -> bool:
        """True if a transcript shortens tools, prompts or thinking of the run or of a member."""
        items = self.record.get("items") or ()
        if any(item["type"] in _SHORT_ITEMS for item in items):
            return True
        return any(member.has_short_parts for member in self.members.values())

    def count_tokens(self, counter: str) -> int:
        """Return a counter of the metrics, summed over the run and its members."""
        own_count = (self.record.get("metrics") or {}).get(counter)
        if not isinstance(own_count, int):
            own_count = 0
        return own_count + sum(member.count_tokens(counter) for member in self.members.values())

    @property
    def is_live(self) -> bool:
        """True while it waits for its turn or works."""
        return self.record.get("status") in LIVE_STATUSES

    @property
    def seconds(self) -> float | None:
        """The duration, until the end or until now; None before the start."""
        record = self.record
        ended_at = record.get("finished_at")
        if parse_time(ended_at) is None and not self.is_live:
            return None
        return count_seconds(record.get("started_at") or record.get("created_at"), ended_at)


class DrawnMember(NamedTuple):
    """The run of a member, a step or background work."""

    run: DrawnRun

    label: str
    """The name of the step, or the kind of background work; else empty."""

    task: str
    """The input, if it differs from the input of the parent; else empty."""

    @classmethod
    def of(cls, item: RunItem, run: DrawnRun) -> DrawnMember:
        """Return the member of an item."""
        return cls(run, clean_line(item["name"]), clean_line(clean_text(item["task"] or "")))


class DrawnCall(NamedTuple):
    """One call of a tool."""

    name: str

    arguments: str
    """One line, as keyword arguments of Python; `…` if they are not known."""

    result: str
    """The result as text; empty while the tool works."""

    outcome: str
    """The status of the item (`records.items.CallStatus`)."""

    seconds: float | None
    """The duration so far or in total; None if it is not known."""

    characters: int
    """The length of the whole result if the server has cut it, else 0."""

    decision: str
    """The decision of a person about it, or that it waits; empty without a question."""

    @classmethod
    def of(cls, item: ToolCallItem) -> DrawnCall:
        """Return the call of an item."""
        result = item["result"]
        if not isinstance(result, str | None):
            result = json.dumps(result, ensure_ascii=False)

        arguments = "…"
        if item["tool_args"] is not None:
            arguments = format_arguments(item["tool_args"])

        return cls(
            name=clean_line(item["tool_name"]),
            arguments=arguments,
            result=clean_text(result or ""),
            outcome=item["status"],
            seconds=count_seconds(item["started_at"], item["finished_at"]),
            characters=count_characters(item),
            decision=describe_decision(item.get("approval"), waits=item["status"] == "waiting"),
        )


def describe_decision(approval: Record | None, *, waits: bool) -> str:
    """Return the decision about a call in one line: `approved by eve after 2 min`.

    Args:
        waits: True if the call waits for its decision; False if its run ended before.
    """
    if approval is None:
        return ""

    status = str(approval.get("status"))
    decided_at = approval.get("decided_at")
    seconds = count_seconds(approval.get("created_at"), decided_at)
    span = "" if seconds is None else format_span(seconds)

    if status == "pending":
        if not waits:
            return "not decided"
        return f"waits for a decision, {span}" if span else "waits for a decision"

    text = clean_line(status)
    if approval.get("decided_by"):
        text += f" by {clean_line(approval['decided_by'])}"
    if span and decided_at:
        text += f" after {span}"
    if approval.get("note"):
        text += f": {clean_line(approval['note'])}"
    return text


def count_characters(item: Record) -> int:
    """Return the length of a text that the server has cut, else 0."""
    length = (item.get("truncated") or {}).get("characters")
    return length if isinstance(length, int) else 0


def clean_line(value: object) -> str:
    """Return a value as one line of printable text, white space collapsed."""
    return escape_controls(" ".join(str(value).split()))


def clean_text(value: object) -> str:
    """Return a value as printable text of several lines."""
    text = str(value).replace("\r\n", "\n").expandtabs(4)
    return escape_controls(text, lines=True)


def parse_time(value: object) -> datetime | None:
    """Return a timestamp of a record as an aware datetime, None for any other value."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def count_seconds(began: object, ended: object) -> float | None:
    """Return the seconds between two timestamps.

    Args:
        ended: the end; another value than a timestamp means now.

    Returns:
        At least 0; None if the beginning is no timestamp.
    """
    start = parse_time(began)
    if start is None:
        return None
    end = parse_time(ended)
    end_seconds = time.time() if end is None else end.timestamp()
    return max(0.0, end_seconds - start.timestamp())


def find_tokens(record: Record) -> int | None:
    """Return the tokens of a run or session, those of members included; None if not known."""
    metrics = record.get("metrics") or {}
    total = record.get("total_tokens", metrics.get("total_tokens"))
    return total if isinstance(total, int) else None


def format_arguments(arguments: object) -> str:
    """Return the arguments of a tool call as one line: `article="tea", amount=3`."""
    if not isinstance(arguments, Mapping):
        return clean_line(arguments or "")
    return ", ".join(
        f"{clean_line(name)}={clean_line(json.dumps(value, ensure_ascii=False, default=str))}"
        for name, value in arguments.items()
    )


def build_drawn_run(
    record: Record,
    children: Mapping[str, Sequence[Record]] | None = None,
    *,
    levels: int = MAXIMUM_LEVELS,
) -> DrawnRun:
    """Build a run from its record.

    Args:
        children: the records of the runs below it, by the id of their parent.
        levels: the levels of runs below it that are built.
    """
    own_children: Sequence[Record] = ()
    if children is not None and levels:
        own_children = children.get(str(record.get("run_id")), ())

    members = {
        str(child.get("run_id")): build_drawn_run(child, children, levels=levels - 1)
        for child in own_children
    }
    return DrawnRun(record, members)
