"""The state of the connection to the target: since when it does not respond, and the next try."""

from __future__ import annotations

import time
from contextlib import suppress

from agentctl.errors import AgentctlError, Forbidden, InvalidToken, Unauthenticated
from agentctl.records.times import format_span
from agentctl.transcripts.model import clean_line

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds before the next try; they double with each failure."""

SLOW_SECONDS = 3.0
"""Seconds of a request without an answer after which the screen reports it."""


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
        self.problem, self._is_refused, self._pause, self._asked = "", False, 0.0, None
        self.answered_at, self._answered = time.time(), time.monotonic()

    def fail(self, failure: AgentctlError, token: str | None, every: float) -> float:
        """Note a failure and return the seconds until the next try.

        Args:
            token: the token of the requests.
            every: the seconds between two requests without failures, the least pause.
        """
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
