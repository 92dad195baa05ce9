"""Parse server-sent events from chunks of bytes (WHATWG HTML 9.2.6)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentctl.remote.failures import build_invalid_response

MAXIMUM_EVENT_BYTES = 134_217_728
"""Bytes of the largest event: no event of a run is larger, because of `limits.run_bytes`."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `id` is the id of this event or of the last event that had one, else None."""

    id: str | None
    name: str
    data: bytes


class EventParser:
    """A parser that turns the chunks of a stream, cut at any byte, into events.

    Lines end in LF, CR or CRLF. Comments, `retry` fields and events without data are ignored. An
    event that the end of the stream cuts off is dropped.

        parser = EventParser()
        async for chunk in chunks:
            for event in parser.feed(chunk):
                show(event)

    Attributes:
        blocks: the number of empty lines so far, which end events and comments.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._first_line = True
        self._id: str | None = None
        self._name = ""
        self._data = bytearray()
        self.blocks = 0

    @property
    def incomplete(self) -> bool:
        """True if the last line, or the event of the last lines, has not ended yet."""
        return bool(self._line or self._data)

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Return the events that `chunk` completes; InvalidResponse above MAXIMUM_EVENT_BYTES."""
        events = []
        for line in self._lines(chunk):
            event = self._take(line)
            if event is not None:
                events.append(event)
        if len(self._data) + len(self._line) > MAXIMUM_EVENT_BYTES:
            raise build_invalid_response(
                f"an event of the stream is larger than {MAXIMUM_EVENT_BYTES >> 20} MB"
            )
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk

        if not chunk:
            return []

        self._after_cr = chunk.endswith(b"\r")
        first, *rest = _LINE_END.split(chunk)
        self._line += first

        if not rest:
            return []

        *middle, last = rest
        lines = [bytes(self._line), *middle]
        self._line = bytearray(last)
        return lines

    def _take(self, line: bytes) -> ServerEvent | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)

        if not line:
            name = self._name
            data = self._data
            self._name = ""
            self._data = bytearray()
            self.blocks += 1
            if not data:
                return None
            del data[-1]
            return ServerEvent(self._id, name or "message", bytes(data))

        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data += value
            self._data += b"\n"
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        return None
