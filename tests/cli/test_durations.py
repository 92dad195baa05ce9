"""Spans of time, as they are written and read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agentctl.cli.durations import parse_ago, parse_until
from agentctl.errors import UsageError
from agentctl.records.times import format_elapsed, format_span
from tests.kit.tables import every_row

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@every_row(
    "text, span",
    [
        ("45s", timedelta(seconds=45)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("1w", timedelta(days=7)),
        ("1h30m", timedelta(minutes=90)),
        ("2026-01-01T12:00:01Z", timedelta(seconds=1)),
        ("2026-01-01t14:30:00+02:00", timedelta(minutes=30)),
        ("2026-01-01 12:00:00.5Z", timedelta(milliseconds=500)),
    ],
)
def test_parse_until_accepts_time_spans(text: str, span: timedelta) -> None:
    assert parse_until(text, now=NOW) == span


@every_row(
    "text",
    [
        "",
        "60",
        "0",
        "0s",
        "-1h",
        "1.5h",
        "1 h",
        "h",
        "1y",
        "1H",
        "1h ",
        "inf",
        "٣h",
        "999999999w",
        "999999999d999999999w",
        "36501d",
        "2026-01-01T12:00:00Z",
        "2025-12-31T00:00:00Z",
        "2026-01-02T12:00:00",
        "2026-01-02",
        "2026-13-01T00:00:00Z",
        "9999-12-31T23:59:59-23:59",
        "tomorrow",
        "20260102T120000Z",
    ],
)
def test_parse_until_rejects_other_text(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_until(text, now=NOW)
    assert "15m" in (caught.value.hint or "")


@every_row(
    "text, cause",
    [
        ("3600", "a bare number has no unit"),
        ("-5m", "a time span has no sign"),
        ("2026-01-02", "the time of day or the zone is missing"),
        ("2026-01-02T12:00:00", "the time of day or the zone is missing"),
        ("tomorrow", None),
    ],
)
def test_frequent_mistakes_are_rejected_with_the_cause(text: str, cause: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_until(text, now=NOW)
    assert caught.value.cause == cause


@every_row(
    "seconds, text",
    [
        (-1, "0 s"),
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (899.6, "15 min"),
        (3_599, "1 h"),
        (3_600, "1 h"),
        (11_100, "3 h 5 min"),
        (86_399, "1 d"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
        (864_000, "10 d"),
    ],
)
def test_durations_are_formatted_for_people(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


@every_row(
    "text, seconds", [("10m", 600), ("1h30m", 5_400), ("2026-01-01T11:59:30Z", 30), ("0s", 0)]
)
def test_parse_ago_accepts_past_times(text: str, seconds: int) -> None:
    assert parse_ago(text, now=NOW) == NOW - timedelta(seconds=seconds)


@every_row("text", ["", "10", "-5m", "2026-01-01T12:00:01Z", "40000d", "99999999w"])
def test_parse_ago_rejects_other_text(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ago(text, now=NOW)


@every_row(
    "seconds, text",
    [
        (-1, "0 ms"),
        (0.0124, "12 ms"),
        (0.0996, "0.1 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (90, "2 min"),
    ],
)
def test_elapsed_times_are_formatted(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text
