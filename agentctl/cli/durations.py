"""Time spans and timestamps in options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from agentctl.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN_PATTERN = re.compile(r"(?:[0-9]{1,9}[smhdw])+")
_SPAN_PART = re.compile(r"([0-9]+)([smhdw])")
_MOMENT_PATTERN = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_MISTAKES = (
    (re.compile(r"\s*\d+\s*"), "a bare number has no unit"),
    (re.compile(r"-.*"), "a time span has no sign"),
    (re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ][\d:.]*)?"), "the time of day or the zone is missing"),
)
"""Frequent mistakes, and the cause that an error names."""

_LONGEST = timedelta(days=36_500)
_HINT = "write 15m, 2h, 7d, 1h30m, or a time like 2030-01-31T12:00:00Z"
_HINT_AGO = "write 15m, 2h, 7d, 1h30m, or a time like 2020-01-31T12:00:00Z"


def parse_until(text: str, *, now: datetime) -> timedelta:
    """Return the time from `now` until the time that `text` names.

    Args:
        text: `15m`, `2h`, `7d`, `1h30m`, or a timestamp of RFC 3339 in the future. A bare
            number is rejected: it could mean seconds or minutes.
        now: an aware datetime.

    Raises:
        UsageError: any other text, a time span of 0, the past, or over a hundred years.
    """
    span = _parse_span(text) if _SPAN_PATTERN.fullmatch(text) else _parse_moment(text, _HINT) - now
    if not timedelta(0) < span <= _LONGEST:
        raise UsageError(f"{text!r} is not between now and a hundred years from now", hint=_HINT)
    return span


def parse_option_until(flag: str, text: str) -> timedelta:
    """Parse the text of an option with `parse_until`, from now on; an error names the option."""
    try:
        return parse_until(text, now=datetime.now(UTC))
    except UsageError as failure:
        failure.detail = f"{flag}: {failure.detail}"
        raise


def parse_days(text: str) -> int:
    """Return the days of a span such as `90d`, `12w` or `48h`; UsageError above a hundred years."""
    day = timedelta(days=1)
    span = _parse_span(text) if _SPAN_PATTERN.fullmatch(text) else timedelta(0)
    if not day <= span <= _LONGEST or span % day:
        raise UsageError(f"{text!r} is not a number of days", hint="write 90d, or 12w")
    return span // day


def parse_ago(text: str, *, now: datetime) -> datetime:
    """Return the time that `text` names: a span before `now`, or a timestamp of RFC 3339.

    Raises:
        UsageError: any other text, the future, or more than a hundred years ago.
    """
    span = (
        _parse_span(text) if _SPAN_PATTERN.fullmatch(text) else now - _parse_moment(text, _HINT_AGO)
    )
    if not timedelta(0) <= span <= _LONGEST:
        raise UsageError(f"{text!r} is not within the last hundred years", hint=_HINT_AGO)
    return now - span


def microseconds_ago(flag: str, text: str | None) -> int | None:
    """Parse the text of an option with `parse_ago`, in microseconds UTC; None stays None."""
    if text is None:
        return None
    try:
        since = parse_ago(text, now=datetime.now(UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    except UsageError as failure:
        failure.detail = f"{flag}: {failure.detail}"
        raise
    return since // timedelta(microseconds=1)


def _parse_span(text: str) -> timedelta:
    try:
        return timedelta(seconds=sum(int(n) * _UNITS[unit] for n, unit in _SPAN_PART.findall(text)))
    except OverflowError:
        return timedelta.max


def _parse_moment(text: str, hint: str) -> datetime:
    if not _MOMENT_PATTERN.fullmatch(text):
        cause = next((cause for pattern, cause in _MISTAKES if pattern.fullmatch(text)), None)
        raise UsageError(f"{text!r} is not a time span", cause=cause, hint=hint)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a valid time", hint=hint) from None
