"""Parsing of server-sent events, with chunks that are cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl import errors
from agentctl.remote import events
from agentctl.remote.events import EventParser, ServerEvent
from tests.kit.tables import every_row

STREAM = (
    b"\xef\xbb\xbf: hello\n\nid: 0\nevent: RunStarted\ndata: {\"a\": 1}\n\n"
    b"id: 1\r\nevent: RunContent\r\ndata: {\"content\": \"gr\xc3\xbc\xc3\x9fe\"}\r\n\r\n"
    b": ping\r\revent:RunContent\rdata:one\rdata: two\rretry: 5\r\r"
    b"event: Nothing\n\nid: 7\ndata\n\ndata: cut off\n"
)  # fmt: skip
EVENTS = [
    ServerEvent("0", "RunStarted", b'{"a": 1}'),
    ServerEvent("1", "RunContent", '{"content": "grüße"}'.encode()),
    ServerEvent("1", "RunContent", b"one\ntwo"),
    ServerEvent("7", "message", b""),
]


def _parsed(*chunks: bytes) -> list[ServerEvent]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_events_of_one_chunk_are_parsed() -> None:
    assert _parsed(STREAM) == EVENTS


def test_stream_is_parsed_byte_by_byte() -> None:
    assert _parsed(*(bytes([byte]) for byte in STREAM)) == EVENTS


@every_row("at", range(len(STREAM)))
def test_stream_can_be_cut_anywhere(at: int) -> None:
    assert _parsed(STREAM[:at], b"", STREAM[at:]) == EVENTS


@given(st.lists(st.sampled_from([b"data: x", b"id: 3", b"event: e", b"\n", b"\r", b"\r\n", b":"])))
def test_chunk_boundaries_do_not_matter(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert _parsed(whole) == _parsed(*(bytes([byte]) for byte in whole))


def test_id_with_nul_is_ignored() -> None:
    assert _parsed(b"id: 1\nid: 2\0\ndata: x\n\n") == [ServerEvent("1", "message", b"x")]


def test_invalid_utf8_is_accepted() -> None:
    assert _parsed(b"event: \xff\ndata: \xff\n\n") == [ServerEvent(None, "�", b"\xff")]


def test_endless_event_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAXIMUM_EVENT_BYTES", 100)
    with pytest.raises(errors.Unavailable):
        _parsed(b"data: " + b"x" * 50 + b"\n", b"data: " + b"x" * 60)
