"""The timeline of a run: a bar for each model call, tool, member and step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from agentctl.records.kinds import Record
from agentctl.records.times import format_elapsed, format_rfc3339, now
from agentctl.transcripts.model import clean_line, parse_time

LABEL_WIDTH = 26
"""Columns of the name of a row."""

TIME_WIDTH = 8
"""Columns of the duration of a row."""

MAXIMUM_LEVELS = 4
"""Levels of members that are drawn."""

MAXIMUM_ROWS = 1_000

_GLYPHS = {"model": "◇", "tool": "ƒ", "member": "→", "step": "→", "wait": "‖"}
_OUTCOMES = {"failed": " ✗", "cancelled": " ■"}


class _Row(NamedTuple):
    """A row of the timeline, before it is drawn."""

    level: int
    name: str
    span: Record

    @property
    def start(self) -> datetime | None:
        return parse_time(self.span.get("started_at"))

    @property
    def end(self) -> datetime | None:
        return parse_time(self.span.get("finished_at"))


class _Scale(NamedTuple):
    """The scale of the bars: the whole time, and the columns for it."""

    began: datetime

    seconds: float
    """The whole time; greater than 0."""

    columns: int

    def find_column(self, moment: datetime) -> float:
        """Return the columns from the beginning to a time."""
        return _seconds(self.began, moment) / self.seconds * self.columns


def draw_timeline(run: Record, children: Mapping[str, Sequence[Record]], width: int) -> list[str]:
    """Return the lines of the timeline of a run and its members.

    A bar is `▒` until the first token of a model call, and `█` after it; `░` is a wait for people.
    """
    began = parse_time(run.get("started_at") or run.get("created_at"))
    rows = list(_list_rows(run, children, 0))[:MAXIMUM_ROWS]
    if began is None or not rows:
        return ["no times are recorded for this run"]

    ends = [row.end for row in rows]
    ends.append(parse_time(run.get("finished_at")))
    longest = max((_seconds(began, end) for end in ends if end is not None), default=0.0)
    columns = max(10, width - LABEL_WIDTH - TIME_WIDTH - 2)
    scale = _Scale(began, longest or 1e-6, columns)

    total_text = format_elapsed(scale.seconds)
    lines = [f"{'':{LABEL_WIDTH}} {'0':<{columns - len(total_text)}}{total_text}"]
    lines += [_draw_row(row, scale) for row in rows]
    if run.get("cancel_requested_at"):
        lines += _draw_mark("cancel requested", run.get("cancel_requested_at"), scale)
        lines += _draw_mark("stopped", run.get("stopped_at"), scale)
    return [*lines, _sum_up(rows, scale.seconds)]


def _list_rows(run: Record, children: Mapping[str, Sequence[Record]], level: int) -> Iterator[_Row]:
    """Yield the rows of a run in the order of their starts, each member with its own rows."""
    spans = [*(run.get("spans") or []), *_list_waits(run)]
    spans.sort(key=lambda span: str(span.get("started_at")))

    own_children = children.get(str(run.get("run_id")), ())
    members = {str(child.get("run_id")): child for child in own_children}
    for span in spans:
        member = members.get(str(span.get("member_run_id") or ""))
        if member is not None and span.get("kind") != "member":
            # The row of the member has the same bar.
            continue

        yield _Row(level, clean_line(span.get("name")), span)
        if member is not None and level < MAXIMUM_LEVELS:
            yield from _list_rows(member, children, level + 1)


def _list_waits(run: Record) -> Iterator[Record]:
    """Yield the times in which a run waited for people, in the form of spans."""
    for approval in run.get("approvals") or ():
        if approval.get("run_id") != run.get("run_id"):
            continue
        waited_until = approval.get("decided_at")
        if not waited_until and run.get("status") == "PAUSED":
            waited_until = format_rfc3339(now())
        yield {
            "kind": "wait",
            "name": approval.get("tool_name"),
            "started_at": approval.get("created_at"),
            "finished_at": waited_until,
        }


def _draw_row(row: _Row, scale: _Scale) -> str:
    """Return the line of a row: its name, its bar, and its duration once it has ended."""
    span = row.span
    glyph = _GLYPHS.get(str(span.get("kind")), "·")
    outcome = _OUTCOMES.get(str(span.get("status")), "")
    label = f"{'  ' * row.level}{glyph} {row.name}"
    if len(label) + len(outcome) > LABEL_WIDTH:
        label = f"{label[: LABEL_WIDTH - len(outcome) - 1]}…"
    label += outcome

    start = row.start
    end = row.end
    if start is None or end is None:
        return f"{label:{LABEL_WIDTH}}"

    # Every bar has at least one column, inside of the scale.
    left = min(scale.columns - 1, int(scale.find_column(start)))
    right = min(scale.columns, max(left + 1, round(scale.find_column(end))))

    waiting_columns = 0
    first_token_at = parse_time(span.get("first_token_at"))
    if first_token_at is not None:
        share = _seconds(start, first_token_at) / scale.seconds
        waiting_columns = min(round(share * scale.columns), right - left - 1)

    fill = "░" if span.get("kind") == "wait" else "█"
    bar = " " * left + "▒" * waiting_columns + fill * (right - left - waiting_columns)
    duration = format_elapsed(_seconds(start, end))
    return f"{label:{LABEL_WIDTH}} {bar:{scale.columns}} {duration:>{TIME_WIDTH}}"


def _draw_mark(label: str, moment_text: object, scale: _Scale) -> Iterator[str]:
    """Yield the line of a moment of the run, if it is known."""
    moment = parse_time(moment_text)
    if moment is not None:
        column = min(scale.columns - 1, int(scale.find_column(moment)))
        yield f"{f'■ {label}':{LABEL_WIDTH}} {' ' * column}┊"


def _sum_up(rows: Sequence[_Row], total: float) -> str:
    """Return the shares of models and tools in the whole time."""
    models = [row for row in rows if row.span.get("kind") == "model"]
    tools = [row for row in rows if row.span.get("kind") == "tool"]
    model_share = _measure_cover(models) / total
    tool_share = _measure_cover(tools) / total
    rest = 1 - _measure_cover([*models, *tools]) / total
    return (
        f"total {format_elapsed(total)}: model {model_share:.0%}, tool {tool_share:.0%},"
        f" rest {rest:.0%}"
    )


def _measure_cover(rows: Iterable[_Row]) -> float:
    """Return the seconds in which at least one of the rows was at work."""
    intervals = list[tuple[float, float]]()
    for row in rows:
        start = row.start
        end = row.end
        if start is not None and end is not None:
            intervals.append((start.timestamp(), end.timestamp()))

    seconds = 0.0
    covered_until = float("-inf")
    for start_seconds, end_seconds in sorted(intervals):
        seconds += max(0.0, end_seconds - max(start_seconds, covered_until))
        covered_until = max(covered_until, end_seconds)
    return seconds


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
