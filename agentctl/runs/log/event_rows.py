"""The forms of events: for clients, and as rows, with one encoder and one decoder.

docs/contract.md "Events" has the form that clients receive, decision 125 that of rows. A
row has consecutive events of a stream as lines. A line is an event as clients receive it,

    ToolCallStarted {"event":"ToolCallStarted","created_at":1763892000,...}

or the pieces of a text, without what the run of the row and these values determine:

    RunContent [["agent","offers","Offers"],[1763892000123456,20013],["Hel","lo"]]

First its source: kind, id and name of the component; if it has them, the id of a run of a member,
the id of the parent of its run, and pairs of more members of the events. Then the times of the
pieces: the time of the first piece in microseconds UTC, and for each other piece the distance to
the time before. Then the pieces, one for each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.records.approvals import ApprovalRow
from agentctl.records.event_records import AskedApproval, DecidedApproval
from agentctl.records.events import END_KINDS, EVENT_NAMES, TEXT_KINDS, EventKind, find_event_kind
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.run_spec import Origin
from agentctl.records.runs import RunRow
from agentctl.records.times import format_optional_time, format_rfc3339, now, whole_seconds
from agentctl.runs.states import Ending
from agentctl.runtime.pauses import DecidedCall
from agentctl.runtime.transcript.events import Content, RunEvent, ThinkingDelta
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.repositories.events import EventRow
from agentctl.store.repositories.sessions import NO_USAGE

KNOWN_FRAMES = 1_024
"""Number of frames that are remembered: the frames of the texts that were read or written last."""

Members = tuple[tuple[str, str], ...]
"""Members of the JSON of an event after its text, which some libraries of agents report."""


@dataclass(frozen=True)
class RunIdentity:
    """The fields that every event of a run has."""

    run_id: str
    session_id: str
    parent_run_id: str | None
    kind: ComponentKind
    component_id: str
    component_name: str

    @cached_property
    def content_frame(self) -> TextFrame:
        """The frame of the content of the run."""
        return TextFrame(self, EventKind.CONTENT)

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
    """The common part of all events with pieces of one text, encoded once.

    Args:
        kind: `CONTENT`, or the kind of an event of thinking.
        members: more members of the JSON, after the text.
    """

    __slots__ = ("_head", "_members", "_middle", "_run", "_tail", "name")

    def __init__(self, run: RunIdentity, kind: EventKind, members: Members = ()) -> None:
        self.name = EVENT_NAMES[run.kind][kind]
        """The name of the events."""

        self._run = run
        self._members = members

        text_name = "reasoning_content"
        after: dict[str, str] = {}
        if kind is EventKind.CONTENT:
            text_name = "content"
            after["content_type"] = "str"
        after |= dict(members)

        # The JSON of an event is cut where its times and its text belong: after the name of the
        # event, and between the quotes of an empty text.
        before = {**run.list_members(), text_name: ""}
        self._head = orjson.dumps({"event": self.name})[:-1]
        self._middle = orjson.dumps(before)[1:-3]
        self._tail = b"," + orjson.dumps(after)[1:] if after else b"}"

    def format(self, text: str, at: int) -> bytes:
        """Return the data of the event with a piece of the text.

        Args:
            at: its time in microseconds UTC.
        """
        time = format_rfc3339(at).encode()
        return b'%b,"created_at":%d,"at":"%b",%b%b%b' % (
            self._head,
            whole_seconds(at),
            time,
            self._middle,
            orjson.dumps(text),
            self._tail,
        )

    def list_source(self, root_id: str) -> list[str | None]:
        """Return the source of a line in a row of the run `root_id`.

        `_find_source_frame` builds the frame from it again.
        """
        run = self._run
        source = [
            run.kind,
            run.component_id,
            run.component_name,
            None if run.run_id == root_id else run.run_id,
            run.parent_run_id,
            *(text for member in self._members for text in member),
        ]
        while source[-1] is None:
            source.pop()
        return source


class Piece(NamedTuple):
    """A piece of a text. Its event follows from it."""

    frame: TextFrame

    at: int
    """The time of the event in microseconds UTC."""

    text: str


@lru_cache(maxsize=KNOWN_FRAMES)
def find_frame(run: RunIdentity, kind: EventKind, members: Members) -> TextFrame:
    """Return the frame of a text; the frame of plain content is `RunIdentity.content_frame`."""
    return TextFrame(run, kind, members)


def encode_event(name: str, data: bytes) -> str:
    """Return the line of an event. JSON has no raw line feeds, and names have no spaces."""
    return f"{name} {data.decode()}\n"


def encode_events(
    run_id: str, portion: Sequence[StreamEvent], pieces: Sequence[Piece | None]
) -> str:
    """Return the text of a row.

    Args:
        run_id: the root run, under whose id the row is stored.
        pieces: for each event the piece of text that it follows from; None to store its JSON.
    """
    lines = list[str]()
    # Consecutive pieces of one text are one line.
    for frame, pairs in groupby(zip(portion, pieces, strict=True), _get_frame):
        if frame is None:
            lines += [encode_event(event.name, event.data) for event, _ in pairs]
            continue

        text_pieces = [piece for _, piece in pairs if piece is not None]
        times = [piece.at for piece in text_pieces]
        distances = [later - earlier for earlier, later in pairwise(times)]
        texts = [piece.text for piece in text_pieces]
        line = [frame.list_source(run_id), [times[0], *distances], texts]
        lines.append(encode_event(frame.name, orjson.dumps(line)))

    return "".join(lines)


def _get_frame(pair: tuple[StreamEvent, Piece | None]) -> TextFrame | None:
    _, piece = pair
    return None if piece is None else piece.frame


def decode_events(row: EventRow, *, texts: bool = True) -> Iterator[StreamEvent]:
    """Yield the events of a row, byte for byte as they were published.

    A line that this version cannot read is yielded as an event with the data of the line.

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
    component_kind, component_id, name = source[:3]
    # A source has no None at its end: both of these ids may be missing.
    run_id, parent_id = (*source[3:5], None, None)[:2]
    run = RunIdentity(run_id or root_id, session_id, parent_id, component_kind, component_id, name)
    members = zip(source[5::2], source[6::2], strict=True)
    return TextFrame(run, kind, tuple(members))


LOST_SEQ_STEP = 1_000_000
"""Distance between the numbers of the last stored event of an orphaned run and of its end.

Event numbers only grow, and the dead worker may have delivered events that were never stored.
"""

UNRECORDED_EVENTS = 2
"""Number of events of a run without stored events: its content, and its end or its pause."""


def identify_run(run: RunRow, component_name: str | None) -> RunIdentity:
    """Return the fields of the events of a stored run.

    Args:
        component_name: None if it is unknown: the component may not be configured here.
    """
    return RunIdentity(
        run.run_id,
        run.session_id,
        run.parent_run_id,
        run.component_type,
        run.component_id,
        component_name or run.component_id,
    )


def format_started(
    run: RunIdentity,
    origin: Origin | None = None,
    at: int | None = None,
    version: Mapping[str, Any] = {},
) -> tuple[str, bytes]:
    """Return name and data of `RunStarted`, `TeamRunStarted` or `WorkflowStarted`.

    Args:
        origin: the run that this one repeats; None if it repeats none.
        at: time in microseconds UTC; None for the present.
        version: `version` of the component, and its `version_change`, as far as there are any.
    """
    fields: dict[str, Any] = {}
    if origin is not None:
        fields["origin_run_id"] = origin.run_id
        fields["origin_kind"] = origin.kind
        fields["origin_at"] = origin.at
    return _format(run, EventKind.STARTED, {**fields, **version}, at)


def format_queued(run: RunIdentity, position: int, at: int) -> tuple[str, bytes]:
    """Return name and data of the first event of a run that waits in the queue.

    Args:
        position: its place in the queue of its session, from 1.
    """
    fields = {"queue_position": position, "queued_at": format_rfc3339(at)}
    return _format(run, EventKind.QUEUED, fields, at)


def format_paused(
    run: RunIdentity, approvals: Sequence[Mapping[str, Any]], at: int
) -> tuple[str, bytes]:
    """Return name and data of the event of a pause.

    Args:
        approvals: what the run waits for, as its record and `GET /approvals` name it.
    """
    return _format(run, EventKind.PAUSED, {"approvals": approvals}, at)


def format_continued(
    run: RunIdentity,
    attempt: int,
    content: str,
    decisions: Sequence[DecidedCall],
    at: int | None = None,
    version: Mapping[str, Any] = {},
) -> tuple[str, bytes]:
    """Return name and data of the event of a new leg.

    Args:
        content: the content of the legs before it.
        decisions: the decisions about the run so far, without decisions about its members.
        at: time in microseconds UTC; None for the present.
        version: as of `format_started`, with the change before the leg.
    """
    approvals = [_describe_decision(decision) for decision in decisions]
    fields = {"attempt": attempt, "content": content, "approvals": approvals}
    return _format(run, EventKind.CONTINUED, {**fields, **version}, at)


def _describe_decision(decision: DecidedCall) -> dict[str, Any]:
    """Return the part of the event of a new leg about a decision."""
    return {name: getattr(decision, name) for name in DecidedApproval.__annotations__} | {
        "created_at": format_optional_time(decision.created_at),
        "decided_at": format_optional_time(decision.decided_at),
    }


def format_event(run: RunIdentity, event: RunEvent) -> tuple[str, bytes, Piece | None]:
    """Return name and data of an event of the component, with its piece of a text if it has one."""
    if not isinstance(event, Content | ThinkingDelta):
        fields = {name: getattr(event, name) for name in event.__slots__}
        return *_format(run, event.kind, fields), None

    if isinstance(event, ThinkingDelta):
        frame = find_frame(run, event.kind, ())
    elif event.origin is not None:
        frame = find_frame(run, event.kind, tuple(event.origin.items()))
    else:
        # Most events of a run are these: the run keeps their frame, without a search.
        frame = run.content_frame

    piece = Piece(frame, now(), event.delta)
    return frame.name, frame.format(event.delta, piece.at), piece


def format_end(
    run: RunIdentity, ending: Ending, transcript: Transcript, at: int | None = None
) -> tuple[str, bytes]:
    """Return name and data of the last event, with the partial or complete content.

    Args:
        at: time in microseconds UTC; None for the present.
    """
    return _format_final(
        run,
        ending,
        transcript.content,
        dict(transcript.metrics),
        now() if at is None else at,
        transcript.finish_reason,
    )


def format_stored_run(
    run: RunRow, component_name: str, approvals: Sequence[Mapping[str, Any]] = ()
) -> list[tuple[int, str, bytes]]:
    """Build the events of a run that has no stored events from its row.

    Args:
        approvals: what a paused run waits for.

    Returns:
        Number, name and data of its content, if any, and of its end or its pause. A worker that
        died may have delivered events of its run, so the end of such a run has a number after all
        of these events.
    """
    identity = identify_run(run, component_name)
    content = run.content or ""
    settled_at = run.paused_at if run.status == "PAUSED" else run.finished_at
    at = settled_at or now()

    events: list[tuple[int, str, bytes]] = []
    if content:
        frame = identity.content_frame
        events.append((0, frame.name, frame.format(content, at)))

    if run.status == "PAUSED":
        pause = format_paused(identity, approvals, at)
        return [*events, (1, *pause)]

    metrics = orjson.loads(run.metrics or NO_USAGE)
    end = _format_final(identity, Ending.stored(run), content, metrics, at)
    number = 1 if run.attempt == 1 else LOST_SEQ_STEP - 1
    return [*events, (number, *end)]


def _format_final(
    run: RunIdentity,
    ending: Ending,
    content: str,
    metrics: dict[str, Any],
    at: int,
    finish_reason: str | None = None,
) -> tuple[str, bytes]:
    fields: dict[str, Any] = {"content": content}
    if ending.status == "COMPLETED":
        fields["metrics"] = metrics
        if finish_reason is not None:
            fields["finish_reason"] = finish_reason
    elif ending.status == "CANCELLED":
        fields["reason"] = ending.reason
    else:
        fields["error"] = {"code": ending.error_code, "detail": ending.error_detail}
    return _format(run, END_KINDS[ending.status], fields, at)


def _format(
    run: RunIdentity, kind: EventKind, fields: dict[str, Any], at: int | None = None
) -> tuple[str, bytes]:
    name = EVENT_NAMES[run.kind][kind]
    at = now() if at is None else at
    times = {"created_at": whole_seconds(at), "at": format_rfc3339(at)}
    body = {"event": name, **times, **run.list_members(), **fields}

    # Copy the bytes: events stay in memory, and the result of orjson keeps its 4 KB buffer alive.
    return name, bytes(memoryview(orjson.dumps(body)))


def describe_approval(row: ApprovalRow) -> dict[str, Any]:
    """Return the part of the event of a pause about an approval."""
    return {name: getattr(row, name) for name in AskedApproval.__annotations__} | {
        "arguments": orjson.loads(row.arguments),
        "schema": None if row.schema is None else orjson.loads(row.schema),
        "expires_at": format_optional_time(row.expires_at),
    }
