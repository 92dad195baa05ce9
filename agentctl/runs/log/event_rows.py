"""The rows of stored events: their one encoder and their one decoder (docs/decisions/0125).

A row has consecutive events of a stream as lines. A line is an event as clients receive it,

    ToolCallStarted {"event":"ToolCallStarted","created_at":1763892000,...}

or the pieces of a text, without what the run of the row and these values determine:

    RunContent [["agent","offers","Offers"],[1763892000123456,20013],["Hel","lo"]]

First its source: kind, id and name of the component; if it has them, the id of a run of a member,
the id of the parent of its run, and pairs of more members of the events. Then the times of the
pieces: that of the first one in microseconds UTC, each other one as the distance to the time
before. Then the pieces, one for each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.light_dataclass import dataclass
from agentctl.records.events import EVENT_NAMES, TEXT_KINDS, EventKind, find_event_kind
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.times import format_rfc3339, whole_seconds
from agentctl.store.repositories.events import EventRow

KNOWN_FRAMES = 1_024
"""Number of frames that are remembered: those of the texts that were read or written last."""

Members = tuple[tuple[str, str], ...]
"""Members of the JSON of an event after its text, which some libraries of agents report."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The fields that every event of a run has.

    Attributes:
        content_frame: the frame of its content.
    """

    run_id: str
    session_id: str
    parent_run_id: str | None
    kind: ComponentKind
    component_id: str
    component_name: str
    content_frame: TextFrame = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "content_frame", TextFrame(self, EventKind.CONTENT))

    def list_members(self) -> dict[str, str]:
        """Return the members of the JSON of an event, in their order."""
        names = KINDS[self.kind]
        members = {
            names.id_field: self.component_id,
            f"{names.kind}_name": self.component_name,
            "run_id": self.run_id,
            "session_id": self.session_id,
        }
        if self.parent_run_id is not None:
            members["parent_run_id"] = self.parent_run_id
        return members


class TextFrame:
    """The common part of all events with pieces of one text, encoded once."""

    __slots__ = ("_head", "_members", "_middle", "_run", "_tail", "name")

    def __init__(self, run: RunIdentity, kind: EventKind, members: Members = ()) -> None:
        self.name = EVENT_NAMES[run.kind][kind]
        self._run = run
        self._members = members
        is_content = kind is EventKind.CONTENT
        before = {**run.list_members(), "content" if is_content else "reasoning_content": ""}
        after = {**({"content_type": "str"} if is_content else {}), **dict(members)}
        self._head = orjson.dumps({"event": self.name})[:-1]
        self._middle = orjson.dumps(before)[1:-3]
        self._tail = b"," + orjson.dumps(after)[1:] if after else b"}"

    def format(self, text: str, at: int) -> bytes:
        """Return the data of an event."""
        time = format_rfc3339(at).encode()
        return b'%b,"created_at":%d,"at":"%b",%b%b%b' % (
            self._head, whole_seconds(at), time, self._middle, orjson.dumps(text), self._tail
        )  # fmt: skip

    def list_source(self, root_id: str) -> list[str | None]:
        """Return the source of a line in a row of the run `root_id`."""
        run = self._run
        source = [
            run.kind, run.component_id, run.component_name,
            None if run.run_id == root_id else run.run_id, run.parent_run_id,
            *(text for member in self._members for text in member),
        ]  # fmt: skip
        while source[-1] is None:
            source.pop()
        return source


class Piece(NamedTuple):
    """A piece of a text. Its event follows from it."""

    frame: TextFrame
    at: int
    text: str


@lru_cache(maxsize=KNOWN_FRAMES)
def find_frame(run: RunIdentity, kind: EventKind, members: Members) -> TextFrame:
    """Return the frame of a text; that of plain content is `RunIdentity.content_frame`."""
    return TextFrame(run, kind, members)


def encode_event(name: str, data: bytes) -> str:
    """Return the line of an event. JSON has no raw line feeds, and names have no spaces."""
    return f"{name} {data.decode()}\n"


def encode_events(
    run_id: str, portion: Sequence[StreamEvent], pieces: Sequence[Piece | None]
) -> str:
    """Return the text of a row.

    Args:
        pieces: for each event the piece of text that it follows from; None to store its JSON.
    """
    lines = list[str]()
    for frame, pairs in groupby(zip(portion, pieces, strict=True), _get_frame):
        if frame is None:
            lines += [encode_event(event.name, event.data) for event, _ in pairs]
            continue
        group = [piece for _, piece in pairs if piece is not None]
        times = [piece.at for piece in group]
        distances = [later - earlier for earlier, later in pairwise(times)]
        line = [frame.list_source(run_id), [times[0], *distances], [piece.text for piece in group]]
        lines.append(encode_event(frame.name, orjson.dumps(line)))
    return "".join(lines)


def _get_frame(pair: tuple[StreamEvent, Piece | None]) -> TextFrame | None:
    return None if pair[1] is None else pair[1].frame


def decode_events(row: EventRow, *, texts: bool = True) -> Iterator[StreamEvent]:
    """Yield the events of a row, byte for byte as they were published.

    A line that this version cannot read is yielded as an event with that data.

    Args:
        texts: False leaves out the pieces of texts.
    """
    seq = row.first_seq
    # Not `splitlines`: JSON may contain line separators other than the line feed.
    for line in row.events.split("\n")[:-1]:
        name, _, data = line.partition(" ")
        kind = find_event_kind(name)
        is_text = kind in TEXT_KINDS
        if kind is not None and is_text and data.startswith("["):
            events = _decode_texts(row, seq, kind, name, data)
            seq += len(events)
            if texts:
                yield from events
            continue
        if texts or not is_text:
            yield StreamEvent(seq, name, data.encode())
        seq += 1


def _decode_texts(
    row: EventRow, seq: int, kind: EventKind, name: str, data: str
) -> list[StreamEvent]:
    try:
        source, times, texts = orjson.loads(data)
        frame = _find_source_frame(row.run_id, row.session_id, kind, tuple(source))
        pieces = zip(accumulate(times), texts, strict=True)
        return [
            StreamEvent(number, name, frame.format(text, at))
            for number, (at, text) in enumerate(pieces, seq)
        ]
    except (ValueError, TypeError, KeyError):
        return [StreamEvent(seq, name, data.encode())]


@lru_cache(maxsize=KNOWN_FRAMES)
def _find_source_frame(
    root_id: str, session_id: str, kind: EventKind, source: tuple[Any, ...]
) -> TextFrame:
    """Return the frame for the result of `TextFrame.list_source`."""
    component, component_id, name, run_id, parent_id = [*source[:5], None, None][:5]
    run = RunIdentity(run_id or root_id, session_id, parent_id, component, component_id, name)
    return TextFrame(run, kind, tuple(zip(source[5::2], source[6::2], strict=True)))
