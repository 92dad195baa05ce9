"""The timeline of a run: a bar for each model call, tool, member and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from agentctl.records.kinds import Record
from agentctl.records.times import format_elapsed, format_rfc3339, now
from agentctl.transcripts.model import clean_line, parse_time

LABEL_WIDTH = 26
TIME_WIDTH = 8
MAXIMUM_LEVELS = 4
MAXIMUM_ROWS = 1_000


_GLYPHS = {"model": "◇", "tool": "ƒ", "member": "→", "step": "→", "wait": "‖"}
_OUTCOMES = {"failed": " ✗", "cancelled": " ■"}


def draw_timeline(run: Record, children: Mapping[str, Sequence[Record]], width: int) -> list[str]:
    """Return the lines of the timeline of a run and its members.

    A bar is `▒` until the first token of a model call, and `█` after it; `░` is a wait for people.
    """
    began = parse_time(run.get("started_at") or run.get("created_at"))
    rows = list(_list_rows(run, children, 0))[:MAXIMUM_ROWS]
    if began is None or not rows:
        return ["no times are recorded for this run"]
    ends = [end for _, _, span in rows if (end := parse_time(span.get("finished_at")))]
    ends += [end for end in (parse_time(run.get("finished_at")),) if end]
    total = max((_seconds(began, end) for end in ends), default=0.0) or 1e-6
    room = max(10, width - LABEL_WIDTH - TIME_WIDTH - 2)
    scale = f"{'0':<{room - len(format_elapsed(total))}}{format_elapsed(total)}"
    lines = [f"{'':{LABEL_WIDTH}} {scale}"]
    for level, name, span in rows:
        lines.append(_draw_row(level, name, span, (began, total), room))
    for label, field in (("cancel requested", "cancel_requested_at"), ("stopped", "stopped_at")):
        moment = parse_time(run.get(field))
        if moment is not None and run.get("cancel_requested_at"):
            at = min(room - 1, int(_seconds(began, moment) / total * room))
            lines.append(f"{f'■ {label}':{LABEL_WIDTH}} {' ' * max(0, at)}┊")
    return [*lines, _sum_up(rows, total)]


def _list_rows(
    run: Record, children: Mapping[str, Sequence[Record]], level: int
) -> Iterator[tuple[int, str, Record]]:
    spans = [*(run.get("spans") or []), *_list_waits(run)]
    spans.sort(key=lambda span: str(span.get("started_at")))
    below = {str(child.get("run_id")): child for child in children.get(str(run.get("run_id")), ())}
    for span in spans:
        member = str(span.get("member_run_id") or "")
        if member and span.get("kind") != "member" and member in below:
            continue  # the row of the member has the same bar
        yield level, clean_line(span.get("name")), span
        child = below.get(member)
        if child is not None and level < MAXIMUM_LEVELS:
            yield from _list_rows(child, children, level + 1)


def _list_waits(run: Record) -> Iterator[Record]:
    """Yield the times in which a run waited for people, in the form of spans."""
    for approval in run.get("approvals") or ():
        if approval.get("run_id") == run.get("run_id"):
            asked = approval.get("created_at")
            decided = approval.get("decided_at")
            until = decided or (format_rfc3339(now()) if run.get("status") == "PAUSED" else None)
            name = approval.get("tool_name")
            yield {"kind": "wait", "name": name, "started_at": asked, "finished_at": until}


def _draw_row(level: int, name: str, span: Record, scale: tuple[datetime, float], room: int) -> str:
    glyph = _GLYPHS.get(str(span.get("kind")), "·")
    outcome = _OUTCOMES.get(str(span.get("status")), "")
    label = f"{'  ' * level}{glyph} {name}"
    if len(label) + len(outcome) > LABEL_WIDTH:
        label = f"{label[: LABEL_WIDTH - len(outcome) - 1]}…"
    began, total = scale
    start = parse_time(span.get("started_at"))
    end = parse_time(span.get("finished_at"))
    if start is None or end is None:
        return f"{label + outcome:{LABEL_WIDTH}}"
    first = parse_time(span.get("first_token_at"))
    left = min(room - 1, max(0, int(_seconds(began, start) / total * room)))
    right = min(room, max(left + 1, round(_seconds(began, end) / total * room)))
    waits = 0 if first is None else round(_seconds(start, first) / total * room)
    waits = min(waits, right - left - 1)
    full = "░" if span.get("kind") == "wait" else "█"
    bar = " " * left + "▒" * waits + full * (right - left - waits)
    took = format_elapsed(_seconds(start, end))
    return f"{label + outcome:{LABEL_WIDTH}} {bar:{room}} {took:>{TIME_WIDTH}}"


def _sum_up(rows: Sequence[tuple[int, str, Record]], total: float) -> str:
    parts = {}
    for kind in ("model", "tool"):
        spans = [span for _, _, span in rows if span.get("kind") == kind]
        parts[kind] = _cover(spans)
    both = _cover([span for _, _, span in rows if span.get("kind") in ("model", "tool")])
    shares = [f"{kind} {seconds / total:.0%}" for kind, seconds in parts.items()]
    return f"total {format_elapsed(total)}: {', '.join(shares)}, rest {1 - both / total:.0%}"


def _cover(spans: Sequence[Record]) -> float:
    known = [
        (start.timestamp(), end.timestamp())
        for span in spans
        if (start := parse_time(span.get("started_at")))
        and (end := parse_time(span.get("finished_at")))
    ]
    seconds = 0.0
    until = float("-inf")
    for opened, closed in sorted(known):
        seconds += max(0.0, closed - max(opened, until))
        until = max(until, closed)
    return seconds


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())
