"""What happens in a run, for people: the answer on stdout, everything else beside it on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from agentctl.cli.show.answer import RunOutput
from agentctl.cli.show.terminal import display_width, note_dim
from agentctl.records.kinds import KINDS

if TYPE_CHECKING:
    from agentctl.operations import StreamEvent

__all__ = ["Transcript"]

MAXIMUM_LINE_WIDTH = 160
"""Columns of a line about a tool: its arguments and results can be as large as a run."""

MAXIMUM_LINE_LENGTH = 400
"""Characters after which a member's line is shown without waiting for its end."""

Data = Mapping[str, Any]


class Transcript:
    """Shows the events of a run as they arrive.

    What members say is shown line by line with their names, since they may speak at once.

    Args:
        answer: takes the text of the run itself.
    """

    def __init__(self, answer: RunOutput) -> None:
        self._answer = answer
        self._unended: dict[str, tuple[str, str]] = {}

    def take(self, event: StreamEvent) -> None:
        """Show one event."""
        import orjson

        data: Data = orjson.loads(event.data)
        own = data.get("run_id") == self._answer.run_id
        name = "" if own else _component_name(data)
        if event.name.endswith("Content"):
            if not own:
                self._say_of_member(str(data.get("run_id")), name, str(data.get("content") or ""))
        else:
            if not own:
                self._end_line_of_member(str(data.get("run_id")))
            for line in _event_lines(event.name, data, own=own):
                self._beside(name, line)
        self._answer.hear(event.name, data)

    def flush(self) -> None:
        """Show what is held back, and end the line: what is said next begins one."""
        for run_id in [*self._unended]:
            self._end_line_of_member(run_id)
        self._answer.end_line()

    def _say_of_member(self, run_id: str, name: str, text: str) -> None:
        held = self._unended.pop(run_id, ("", ""))[1] + text
        *lines, rest = held.split("\n")
        for line in lines:
            self._beside(name, line)
        if len(rest) > MAXIMUM_LINE_LENGTH:
            self._beside(name, rest)
        elif rest:
            self._unended[run_id] = name, rest

    def _end_line_of_member(self, run_id: str) -> None:
        name, rest = self._unended.pop(run_id, ("", ""))
        if rest:
            self._beside(name, rest)

    def _beside(self, name: str, line: str) -> None:
        note_dim(f"  {name}: {line}" if name else f"  {line}", in_line=self._answer.in_line)


def _component_name(data: Data) -> str:
    """What the component of an event is called."""
    for names in KINDS.values():
        if data.get(names.id_field):
            return str(data.get(f"{names.kind}_name") or data[names.id_field])
    return str(data.get("run_id"))


def _event_lines(event: str, data: Data, *, own: bool) -> list[str]:
    """What to say of an event that is no content; of the run itself, how it ended is no news."""
    if event.endswith("ToolCallStarted"):
        tool = data.get("tool") or {}
        arguments = json.dumps(tool.get("tool_args") or {}, ensure_ascii=False)
        return [_shorten(f"calls {tool.get('tool_name')} {arguments}")]
    if event.endswith("ToolCallCompleted"):
        return [_tool_result_line(data.get("tool") or {})]
    if event == "StepStarted":
        return [f"step {data.get('step_name')}"]
    if event == "StepCompleted":
        return [f"step {data.get('step_name')} is done"]
    if own:
        return []
    return [_MEMBER_LINES[end](data) for end in _MEMBER_LINES if event.endswith(end)]


def _tool_result_line(tool: Data) -> str:
    how = "failed" if tool.get("tool_call_error") else "answers"
    return _shorten(f"{tool.get('tool_name')} {how}: {tool.get('result')}")


def _error_line(data: Data) -> str:
    error = data.get("error") or {}
    return f"ended as ERROR, {error.get('code')}: {error.get('detail')}"


_MEMBER_LINES = {
    "Started": lambda _: "begins",
    "Completed": lambda _: "is done",
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
