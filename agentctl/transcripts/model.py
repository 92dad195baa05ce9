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
    """One run.

    Attributes:
        record: the record of the run in the view `items`, or the part of it that is known.
        members: the runs of members, steps and background work, by id.
        causes: the causes of its failures and of those of its members, if the caller may read them.
    """

    record: Record
    members: dict[str, DrawnRun] = field(default_factory=dict)
    causes: Sequence[Record] = ()

    @property
    def component(self) -> str:
        named = find_component(self.record)
        return clean_line(named[1] if named is not None else "run")

    @property
    def input(self) -> str:
        """The message, and the object `input` of the request if the message is not its text.

        Lines name its files.
        """
        message = self.record.get("input") or ""
        given = self.record.get("input_object")
        asked = [message]
        if given is not None and find_object(message) != given:
            asked.append(f"input: {orjson.dumps(given).decode()}")
        files = (each for each in self.record.get("files") or () if "created_at" not in each)
        asked += (f"file: {each['name']} ({each['media_type']})" for each in files)
        return clean_text("\n".join(asked))

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
        own = (self.record.get("metrics") or {}).get(counter)
        number = own if isinstance(own, int) else 0
        return number + sum(member.count_tokens(counter) for member in self.members.values())

    @property
    def is_live(self) -> bool:
        return self.record.get("status") in LIVE_STATUSES

    @property
    def seconds(self) -> float | None:
        """The duration, until the end or until now; None before the start."""
        record = self.record
        ended = self.record.get("finished_at")
        if parse_time(ended) is None and not self.is_live:
            return None
        return count_seconds(record.get("started_at") or record.get("created_at"), ended)


class DrawnMember(NamedTuple):
    """The run of a member, a step or background work.

    Attributes:
        label: the name of the step, or the kind of background work; else empty.
        task: the input, if it differs from the input of the parent; else empty.
    """

    run: DrawnRun
    label: str
    task: str

    @classmethod
    def of(cls, item: RunItem, run: DrawnRun) -> DrawnMember:
        """Return the member of an item."""
        return cls(run, clean_line(item["name"]), clean_line(clean_text(item["task"] or "")))


class DrawnCall(NamedTuple):
    """One call of a tool.

    Attributes:
        arguments: one line, as keyword arguments of Python.
        result: empty while the tool works.
        seconds: duration so far or in total; None if unknown.
        characters: the length of the whole result if the server has cut it, else 0.
        decision: what a person decided about it, or that it waits; empty without a question.
    """

    name: str
    arguments: str
    result: str
    outcome: str
    seconds: float | None
    characters: int
    decision: str

    @classmethod
    def of(cls, item: ToolCallItem) -> DrawnCall:
        """Return the call of an item."""
        result = item["result"]
        arguments = item["tool_args"]
        text = result if isinstance(result, str | None) else json.dumps(result, ensure_ascii=False)
        return cls(
            clean_line(item["tool_name"]),
            "…" if arguments is None else format_arguments(arguments),
            clean_text(text or ""),
            item["status"],
            count_seconds(item["started_at"], item["finished_at"]),
            count_characters(item),
            describe_decision(item.get("approval"), waits=item["status"] == "waiting"),
        )


def describe_decision(approval: Record | None, *, waits: bool) -> str:
    """Return the decision about a call in one line: `approved by eve after 2 min`."""
    if approval is None:
        return ""
    status = str(approval.get("status"))
    decided = approval.get("decided_at")
    seconds = count_seconds(approval.get("created_at"), decided)
    span = "" if seconds is None else format_span(seconds)
    if status == "pending":
        if not waits:
            return "not decided"
        return f"waits for a decision, {span}" if span else "waits for a decision"

    actor = approval.get("decided_by")
    note = approval.get("note")
    text = clean_line(status) + (f" by {clean_line(actor)}" if actor else "")
    text += f" after {span}" if span and decided else ""
    return text + (f": {clean_line(note)}" if note else "")


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
    """Return the seconds between two timestamps, until now without the second; None without any."""
    start = parse_time(began)
    end = parse_time(ended)
    if start is None:
        return None
    return max(0.0, (time.time() if end is None else end.timestamp()) - start.timestamp())


def find_tokens(record: Record) -> int | None:
    """Return the tokens of a run or session, those of members included; None if not known."""
    total = record.get("total_tokens", (record.get("metrics") or {}).get("total_tokens"))
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
    """Build a run from its record."""
    own = (children or {}).get(str(record.get("run_id")), ()) if levels else ()
    members = {
        str(run.get("run_id")): build_drawn_run(run, children, levels=levels - 1) for run in own
    }
    return DrawnRun(record, members)
