"""The lines above the list: the target, the numbers of runs, and the views."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from rich.text import Text

from agentctl.errors import AgentctlError, Forbidden, InvalidToken, Unauthenticated
from agentctl.interface.requests import MAXIMUM_OFFSET
from agentctl.light_dataclass import dataclass
from agentctl.records.times import format_span
from agentctl.top.feed import RunFeed
from agentctl.transcripts.model import clean_line

PHASES = ("running", "stopping", "queued")
ENDS = (("completed", "✓"), ("failed", "✗"), ("stopped", "■"))

FIRST_PAUSE = 1.0
"""Seconds before the first retry; the pause doubles with each failure."""

LONGEST_PAUSE = 15.0
"""Seconds before a retry at most."""

SLOW_SECONDS = 3.0
"""Seconds of a request without an answer after which the screen reports it."""


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
    live = feed.count_live()
    ended = feed.count_ended()
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


class ConnectionState:
    """Failures in a row, and the pauses between them.

    Attributes:
        problem: the reason that the last try failed; empty if it succeeded.
        answered_at: the time of the last success, seconds since the epoch.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.answered_at = time.time()
        self._answered = time.monotonic()
        self._asked: float | None = None
        self._is_refused = False
        self._pause = 0.0
        self._next = 0.0

    def ask(self) -> None:
        self._asked = time.monotonic()

    def succeed(self) -> None:
        self.problem = ""
        self._is_refused = False
        self._pause = 0.0
        self._asked = None
        self.answered_at = time.time()
        self._answered = time.monotonic()

    def fail(self, failure: AgentctlError, token: str | None, every: float) -> float:
        """Note a failure and return the seconds until the next try, at least `every`."""
        self._asked = None
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
        pause = max(self._pause, every)
        self._next = time.monotonic() + pause
        self._is_refused = isinstance(failure, Unauthenticated | Forbidden)
        self.problem = describe_failure(failure, token)
        return pause

    @property
    def is_lost(self) -> bool:
        """True if the last try failed, or if a request has had no answer for a while."""
        is_slow = self._asked is not None and time.monotonic() - self._asked >= SLOW_SECONDS
        return bool(self.problem) or is_slow

    def describe(self) -> str:
        """Return since when there is no answer, the next try, and the reason; '' with answers."""
        if not self.is_lost:
            return ""
        silent = max(0.0, time.monotonic() - self._answered)
        since = time.strftime("%H:%M:%S", time.gmtime(self.answered_at))
        words = "access refused" if self._is_refused else "no answer"
        begin = f"{words} since {since} UTC, for {format_span(silent)}"
        if self._asked is not None:
            return f"{begin} · waiting for the server\n{self.problem}".rstrip("\n")
        left = max(0.0, self._next - time.monotonic())
        return f"{begin} · trying again in {left:.0f} s\n{self.problem}"


def describe_failure(failure: AgentctlError, token: str | None) -> str:
    """Return the reason of a failure in one line, and what to do about it."""
    if isinstance(failure, Unauthenticated):
        if token is None:
            return "the server requires a token: set AGENTCTL_TOKEN, or use --token-file"
        from agentctl.auth.tokens.mint import inspect_token

        again = "start top again with a new one"
        with suppress(InvalidToken):
            content = inspect_token(token)
            if content["expired"]:
                return f"the token expired at {clean_line(content['times'].get('exp'))}: {again}"
        return f"the server rejects the token, which may be revoked or expired: {again}"
    parts = [failure.detail, failure.cause if not isinstance(failure, Forbidden) else failure.hint]
    return clean_line(": ".join(filter(None, parts)))
