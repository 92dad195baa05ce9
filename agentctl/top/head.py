"""The lines above the list: the target, the numbers of runs, and the views."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from agentctl.interface.requests import MAXIMUM_OFFSET
from agentctl.light_dataclass import dataclass
from agentctl.records.times import format_span
from agentctl.top.connection import ConnectionState
from agentctl.top.feed import RunFeed
from agentctl.transcripts.model import clean_line

PHASES = ("running", "stopping", "queued")
ENDS = (("completed", "✓"), ("failed", "✗"), ("stopped", "■"))


@dataclass(frozen=True, slots=True)
class ScreenSettings:
    """The choices for the screen.

    Attributes:
        every: seconds between two readings.
        caller: the name of the caller; empty if it is not known.
        read_only: the reason that nothing can be cancelled; empty if it can.
    """

    every: float
    caller: str = ""
    read_only: str = ""


def draw_head(
    place: str, settings: ScreenSettings, state: ConnectionState, width: int, *, paused: bool
) -> Text:
    """Return the target, the caller and the choices, with the time of the last answer (UTC).

    Some of them are left out if space is short.
    """
    clock = time.strftime("%H:%M:%S", time.gmtime(state.answered_at))
    room = max(0, width - len(clock) - 2)
    read_only = f"read-only: {settings.read_only}" if settings.read_only else ""
    parts = ["agentctl top", clean_line(place.removeprefix("on ")), clean_line(settings.caller)]
    parts += [f"every {settings.every:g} s", "paused" if paused else "", read_only]
    for dropped in (3, 2, 0):
        if len(" · ".join(filter(None, parts))) > room:
            parts[dropped] = ""
    head = Text(" · ".join(filter(None, parts)), "bold")
    head.truncate(room, overflow="ellipsis", pad=True)
    return head.append(f"  {clock}", "none")


def count_runs(feed: RunFeed, width: int) -> str:
    """Return the numbers of runs by state, and the tokens per minute, in one line if it fits."""
    live, ended = feed.count_live(), feed.count_ended()
    ends = "  ".join(f"{_format_total(ended[name])} {glyph}" for name, glyph in ENDS)
    since = format_span(feed.counted_seconds)
    tokens = feed.count_tokens()
    rate = f"{tokens / 1000:.1f} k" if tokens >= 1000 else f"{tokens:.0f}"
    # Of the runs that ended unseen only the number is known.
    rate += " tokens/min seen" if feed.has_unseen else " tokens/min"
    names = (*PHASES, "paused") if live["paused"] else PHASES
    whole = "  ".join(f"{live[name]} {name}" for name in names)
    brief = "  ".join(f"{live[name]} {name}" for name in names if live[name] or name == "running")
    lines = [
        f"{whole} · ended in {since}: {ends} · {rate}",
        f"{brief} · ended in {since}: {ends} · {rate}",
        f"{brief} · ended in {since}: {ends}",
    ]
    return next((line for line in lines if len(line) <= width), lines[-1])


def _format_total(total: int) -> str:
    return f"{total:,}{'+' if total >= MAXIMUM_OFFSET else ''}"


def draw_tabs(names: Sequence[str], selected: str, sort: str, words: str) -> Text:
    """Return the names of the views with their keys, the order and the filter of the list."""
    tabs = Text()
    for at, name in enumerate(names, 1):
        is_selected = name == selected
        label = f"[{at} {name}]" if is_selected else f" {at} {name} "
        tabs.append(label, "bold" if is_selected else "none").append(" ")
    tabs.append(f"· sort: {sort}")
    return tabs.append(f" · filter: {clean_line(words)}" if words else "")
