"""The content of a transcript: one run as an ordered list of items, built from its record.

All texts of a model are safe for a terminal: control characters are escaped here, once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agentctl.records.kinds import find_component
from agentctl.records.text import escape_controls

DELEGATIONS = ("delegate_task_to_member", "route_to_member")
"""The tools of a team that start the run of a member, which is shown in the place of the call."""

MAXIMUM_LEVELS = 8
"""Levels of members; a server could return runs that are their own parents."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Text of the component, usually Markdown.

    Attributes:
        characters: the length of the whole text if the server has cut it, else 0.
    """

    text: str
    characters: int = 0


@dataclass(frozen=True, slots=True)
class Thinking:
    """The reasoning of the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A message that the model received besides the input of the run, such as its instructions."""

    role: str
    text: str


@dataclass(slots=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        arguments: one line, as keyword arguments of Python.
        result: None while the tool works.
        seconds: duration so far or in total; None if unknown.
        outcome: `cancelled` if the run ended before the tool did.
        characters: the length of the whole result if the server has cut it, else 0.
    """

    name: str
    arguments: str
    result: str | None
    outcome: str
    seconds: float | None = None
    call_id: str = ""
    characters: int = 0


@dataclass(slots=True)
class Member:
    """The run of a member, a step or background work.

    Attributes:
        label: the name of the step, or the kind of background work; else empty.
        task: the input, if it differs from the input of the parent; else empty.
    """

    run: RunView
    label: str
    task: str


Item = Answer | Thinking | Prompt | ToolCall | Member


@dataclass(slots=True)
class RunView:
    """One run.

    Attributes:
        record: the record of the run, or the part of it that is known.
        items: in the order in which they happened.
    """

    record: Record
    component: str
    input: str
    items: list[Item] = field(default_factory=list)

    @property
    def members(self) -> Iterator[Member]:
        return (item for item in self.items if isinstance(item, Member))

    @property
    def tool_calls(self) -> int:
        """The number of calls of tools, without delegations."""
        return sum(isinstance(item, ToolCall) for item in self.items)

    def count_tokens(self, counter: str) -> int:
        """Return a counter of the metrics, summed over the run and its members."""
        own = (self.record.get("metrics") or {}).get(counter)
        number = own if isinstance(own, int) else 0
        return number + sum(member.run.count_tokens(counter) for member in self.members)

    @property
    def is_live(self) -> bool:
        return self.record.get("status") in ("PENDING", "RUNNING")

    @property
    def seconds(self) -> float | None:
        """The duration, until the end or until now; None before the start."""
        began = parse_time(self.record.get("started_at") or self.record.get("created_at"))
        ended = parse_time(self.record.get("finished_at"))
        if began is None or (ended is None and not self.is_live):
            return None
        return max(0.0, (time.time() if ended is None else ended.timestamp()) - began.timestamp())


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


def format_arguments(arguments: object) -> str:
    """Return the arguments of a tool call as one line: `article="tea", amount=3`."""
    if not isinstance(arguments, Mapping):
        return clean_line(arguments or "")
    return ", ".join(
        f"{clean_line(name)}={_format_value(each)}" for name, each in arguments.items()
    )


def _format_value(value: object) -> str:
    return clean_line(json.dumps(value, ensure_ascii=False, default=str))


def build_run_view(
    record: Record,
    children: Mapping[str, Sequence[Record]] | None = None,
    *,
    levels: int = MAXIMUM_LEVELS,
) -> RunView:
    """Build the view of a run.

    Args:
        record: the record of the run.
        children: the records of child runs by the id of their parent.
        levels: the number of levels of members below the run.
    """
    own = list((children or {}).get(str(record.get("run_id")), ())) if levels else []
    view = RunView(record, _component_of(record), clean_text(record.get("input") or ""))
    runs = [build_run_view(each, children, levels=levels - 1) for each in own]
    members = _Members(record, runs)
    view.items = list(_build_items(record, members))
    return view


def _component_of(record: Record) -> str:
    named = find_component(record)
    return clean_line(named[1] if named is not None else "run")


def _build_items(record: Record, members: _Members) -> Iterator[Item]:
    tools = {str(tool.get("tool_call_id")): tool for tool in record.get("tools") or []}
    spans = {
        str(span.get("id")): span
        for span in record.get("spans") or []
        if span.get("kind") == "tool"
    }
    if record.get("reasoning_content"):
        yield Thinking(clean_text(record["reasoning_content"]))
    texts: list[tuple[str, int]] = []
    seen: set[str] = set()
    asked = False
    for message in record.get("messages") or []:
        role, content = message.get("role"), message.get("content") or ""
        if role == "assistant":
            if content:
                characters = _whole_length(message)
                texts.append((content, characters))
                yield Answer(clean_text(content), characters)
            for call in message.get("tool_calls") or []:
                call_id = str(call.get("id"))
                seen.add(call_id)
                tool = tools.get(call_id) or {
                    "tool_call_id": call_id,
                    "tool_name": call.get("name"),
                    "tool_args": call.get("arguments"),
                }
                yield from _place_call(tool, spans.get(call_id) or {}, record, members)
        elif role == "system" or (role == "user" and asked):
            yield Prompt(str(role), clean_text(content))
        asked = asked or role == "user"
    for call_id, tool in tools.items():
        if call_id not in seen:
            yield from _place_call(tool, spans.get(call_id) or {}, record, members)
    for call_id, span in spans.items():
        if call_id not in seen and call_id not in tools and record.get("status") == "RUNNING":
            yield _live_call(span)
    yield from members.take_rest()
    content = str(record.get("content") or "")
    if content and not any(_is_same_text(content, *each) for each in texts):
        yield Answer(clean_text(content))


def _whole_length(entry: Record) -> int:
    length = (entry.get("truncated") or {}).get("characters")
    return length if isinstance(length, int) else 0


def _is_same_text(content: str, text: str, characters: int) -> bool:
    if not characters:
        return content == text
    return len(content) == characters and content.startswith(text)


def _place_call(
    tool: Record, span: Record, record: Record, members: _Members
) -> Iterator[ToolCall | Member]:
    if tool.get("tool_name") in DELEGATIONS:
        member = members.take(tool, span)
        if member is not None:
            yield member
            return
    yield build_call(tool, span, record)


def build_call(tool: Record, span: Record, record: Record) -> ToolCall:
    """Build the view of a tool call.

    Args:
        tool: its entry in the record of the run, or in an event.
        span: its span; only the times are read.
        record: the record of the run; only the status is read.
    """
    result = tool.get("result")
    if result is None:
        live = record.get("status") in ("PENDING", "RUNNING")
        outcome = "running" if live else "cancelled"
    else:
        outcome = "failed" if tool.get("tool_call_error") else "done"
    text = result if isinstance(result, str | None) else json.dumps(result, ensure_ascii=False)
    return ToolCall(
        name=clean_line(tool.get("tool_name")),
        arguments=format_arguments(tool.get("tool_args") or {}),
        result=None if text is None else clean_text(text),
        outcome=outcome,
        seconds=_span_seconds(span),
        call_id=str(tool.get("tool_call_id")),
        characters=_whole_length(tool),
    )


def _live_call(span: Record) -> ToolCall:
    outcome = "done" if span.get("finished_at") else "running"
    return ToolCall(clean_line(span.get("name")), "…", None, outcome, _span_seconds(span))


def _span_seconds(span: Record) -> float | None:
    began, ended = parse_time(span.get("started_at")), parse_time(span.get("finished_at"))
    if began is None:
        return None
    until = time.time() if ended is None else ended.timestamp()
    return max(0.0, until - began.timestamp())


class _Members:
    """The runs of members, each of which takes the place of the call that started it."""

    def __init__(self, parent: Record, runs: list[RunView]) -> None:
        self._parent = parent
        self._runs = sorted(runs, key=lambda run: str(run.record.get("created_at")))
        self._steps = {
            str(span.get("member_run_id")): clean_line(span.get("name"))
            for span in parent.get("spans") or []
            if span.get("kind") == "step" and span.get("name")
        }

    def take(self, tool: Record, span: Record) -> Member | None:
        """Return the member that a delegation started, None if there is none left."""
        arguments = tool.get("tool_args")
        arguments = arguments if isinstance(arguments, Mapping) else {}
        wanted = str(span.get("member_run_id") or "")
        for run in self._runs:
            if wanted and run.record.get("run_id") == wanted:
                return self._remove(run)
        task, named = arguments.get("task"), arguments.get("member_id")
        own = [
            run
            for run in self._runs
            if not run.record.get("purpose") and run.component == clean_line(named)
        ]
        same = [run for run in own if task is None or run.record.get("input") == task]
        return self._remove((same or own)[0]) if own else None

    def take_rest(self) -> Iterator[Member]:
        """Yield the members without a call: those of broadcasts and steps, background work last."""
        for run in sorted(self._runs, key=lambda run: bool(run.record.get("purpose"))):
            yield self._remove(run)

    def _remove(self, run: RunView) -> Member:
        self._runs = [other for other in self._runs if other is not run]
        label = str(run.record.get("purpose") or "")
        label = label or self._steps.get(str(run.record.get("run_id")), "")
        given = self._parent.get("workflow_id") or run.record.get("purpose")
        same = run.record.get("input") == self._parent.get("input")
        return Member(run, label, "" if given or same else clean_line(run.input))
