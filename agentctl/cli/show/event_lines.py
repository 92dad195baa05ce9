"""The events of a run off a terminal: its text on stdout, a line for each other event on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from agentctl.cli.show.answer import RunOutput, parse_event
from agentctl.cli.show.terminal import display_width, note_dim
from agentctl.records.kinds import KINDS

if TYPE_CHECKING:
    from agentctl.requests import (
        StreamEvent,
    )

MAXIMUM_LINE_WIDTH = 160
"""Columns of a line about a tool: its arguments and results can be very long."""

MAXIMUM_LINE_LENGTH = 400
"""Characters of a member's line that are shown before the line ends."""

MAXIMUM_PARTIAL_LINES = 1_000
"""Members with an unfinished line; that of the first one then ends."""

Data = Mapping[str, Any]


class EventLines:
    """Writes the events of a run as they arrive.

    The text of members is written line by line with their names, since they can run concurrently.

    Args:
        output: receives the text of the run itself.
    """

    def __init__(self, output: RunOutput) -> None:
        self.output = output
        self._partial_lines: dict[str, tuple[str, str]] = {}

    def take(self, event: StreamEvent) -> None:
        """Write one event."""
        data: Data = parse_event(event)
        own = data.get("run_id") == self.output.run_id
        name = "" if own else _component_name(data)
        if event.name.endswith("Content"):
            if not own:
                self._write_member_text(
                    str(data.get("run_id")), name, str(data.get("content") or "")
                )
        else:
            if not own:
                self._end_member_line(str(data.get("run_id")))
            for line in describe_event(event.name, data, own=own):
                self._write_line(name, line)
        self.output.take_data(event.name, data)

    @property
    def in_line(self) -> bool:
        """True if the text so far does not end with a line feed."""
        return self.output.in_line

    def conclude(self, record: Data) -> None:
        """Write the rest of a run whose last event is missing, from its record."""
        self.output.conclude(record)

    def flush(self) -> None:
        """Write the unfinished lines and end the current line."""
        for run_id in [*self._partial_lines]:
            self._end_member_line(run_id)
        self.output.end_line()

    def _write_member_text(self, run_id: str, name: str, text: str) -> None:
        text = self._partial_lines.pop(run_id, ("", ""))[1] + text
        *lines, rest = text.split("\n")
        for line in lines:
            self._write_line(name, line)
        if len(rest) > MAXIMUM_LINE_LENGTH:
            self._write_line(name, rest)
        elif rest:
            self._partial_lines[run_id] = name, rest
        if len(self._partial_lines) > MAXIMUM_PARTIAL_LINES:
            self._end_member_line(next(iter(self._partial_lines)))

    def _end_member_line(self, run_id: str) -> None:
        name, rest = self._partial_lines.pop(run_id, ("", ""))
        if rest:
            self._write_line(name, rest)

    def _write_line(self, name: str, line: str) -> None:
        note_dim(f"  {name}: {line}" if name else f"  {line}", in_line=self.output.in_line)


def _component_name(data: Data) -> str:
    """Return the name of the component of an event."""
    for names in KINDS.values():
        if data.get(names.id_field):
            return str(data.get(f"{names.kind}_name") or data[names.id_field])
    return str(data.get("run_id"))


def describe_event(event: str, data: Data, *, own: bool = False) -> list[str]:
    """Return the lines about an event without content.

    Args:
        own: leave out the start and the end of the run, which the caller reports.
    """
    if event.endswith("ToolCallStarted"):
        tool = data.get("tool") or {}
        arguments = json.dumps(tool.get("tool_args") or {}, ensure_ascii=False)
        return [_shorten(f"calls {tool.get('tool_name')} {arguments}")]
    if event.endswith("ToolCallCompleted"):
        return [_tool_result_line(data.get("tool") or {})]
    if event.endswith("RunProgress"):
        return [_progress_line(data)]
    if event == "StepStarted":
        return [f"step {data.get('step_name')}"]
    if event == "StepCompleted":
        return [f"step {data.get('step_name')} completed"]
    if own:
        return []
    return [_MEMBER_LINES[end](data) for end in _MEMBER_LINES if event.endswith(end)]


def _progress_line(data: Data) -> str:
    fraction, text = data.get("fraction"), data.get("text")
    percent = f"{fraction:.0%}" if isinstance(fraction, int | float) else None
    return _shorten("progress: " + " ".join(str(part) for part in (percent, text) if part))


def _tool_result_line(tool: Data) -> str:
    outcome = "failed" if tool.get("tool_call_error") else "returned"
    return _shorten(f"{tool.get('tool_name')} {outcome}: {tool.get('result')}")


def _error_line(data: Data) -> str:
    error = data.get("error") or {}
    return f"ended as ERROR, {error.get('code')}: {error.get('detail')}"


_MEMBER_LINES = {
    "Started": lambda _: "started",
    "Completed": lambda _: "completed",
    "Cancelled": lambda _: "was cancelled",
    "Error": _error_line,
}


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= MAXIMUM_LINE_WIDTH:
        return line
    widths = accumulate(map(display_width, line))
    kept = sum(width <= MAXIMUM_LINE_WIDTH - len("...") for width in widths)
    return line if kept == len(line) else f"{line[:kept]}..."
