"""Times in requests and responses."""

from __future__ import annotations

import pytest

from agentctl.records.times import format_rfc3339, parse_rfc3339


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2026-11-20T08:18:10.000123Z", 1_795_162_690_000_123),
        ("2026-11-20t08:18:10z", 1_795_162_690_000_000),
        ("2026-11-20T08:18:10.5+02:30", 1_795_153_690_500_000),
        ("2026-11-20T08:18:10.0000019-00:00", 1_795_162_690_000_001),
    ],
)
def test_a_time_is_parsed_to_the_microsecond(text: str, expected: int) -> None:
    assert parse_rfc3339(text) == expected
    assert parse_rfc3339(format_rfc3339(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "0",
        "2026-11-20",
        "2026-11-20T08:18:10",
        "2026-11-20 08:18:10Z",
        "2026-11-20T08:18Z",
        "2026-11-20T08:18:10.Z",
        "2026-11-20T08:18:10,5Z",
        "2026-02-30T00:00:00Z",
        "2026-11-20T24:00:00Z",
        "2026-11-20T08:18:60Z",
        "0000-01-01T00:00:00Z",
        "2026-11-20T08:18:10+24:00",
        "2026-11-20T08:18:10+01:60",
        "2026-11-20T08:18:10+0100",
        "20261120T081810Z",
        "2026-W47-5T08:18:10Z",
        "٢٠٢٦-11-20T08:18:10Z",
        "2026-11-20T08:18:10Z\n",
        " 2026-11-20T08:18:10Z",
    ],
)
def test_an_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"date-time|must be in|out of range|offset"):
        parse_rfc3339(text)
