"""JSON texts of documents, joined from pieces; long stored JSON is not parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property
from operator import attrgetter
from typing import Any

import orjson

from agentctl.errors import Unavailable
from agentctl.records.runs import LastRunState
from agentctl.records.times import Timestamp, format_rfc3339
from agentctl.records.value_types import ValueType, field_types
from agentctl.runs.states import is_final

CHECKED_BYTES = 16_384
"""Size of a stored text that is parsed before it is sent."""

JsonText = bytes | list[bytes]
"""A JSON text, possibly in pieces."""


def join_object(members: Mapping[str, JsonText | None]) -> bytes:
    """Join the members of an object, each a JSON text; None leaves a member out."""
    pieces: list[bytes] = []
    for key, text in members.items():
        if text is None:
            continue
        pieces.append(_member_label(key))
        if isinstance(text, bytes):
            pieces.append(text)
        else:
            pieces += text
    pieces[0] = b"{" + pieces[0][1:]
    pieces.append(b"}")
    return b"".join(pieces)


@cache
def _member_label(key: str) -> bytes:
    return b',"%b":' % key.encode()


def join_array(items: Iterable[bytes]) -> bytes:
    """Join documents into a JSON array."""
    return b"[" + b",".join(items) + b"]"


def dump(value: str | int | None) -> bytes:
    """Return the JSON text of a scalar."""
    return orjson.dumps(value)


def stored_json(text: str | None) -> bytes:
    """Return a stored JSON text; None is null.

    A text of up to `CHECKED_BYTES` is parsed, of a longer one only its two ends are checked: the
    time of a parse grows with the text.

    Raises:
        Unavailable: the text is not JSON.
    """
    if text is None:
        return b"null"
    raw = text.encode()
    try:
        if len(raw) <= CHECKED_BYTES:
            orjson.loads(raw)
            return raw
    except orjson.JSONDecodeError:
        pass
    else:
        if raw[:1] + raw[-1:] in (b"{}", b"[]", b'""'):
            return raw
    raise Unavailable(
        "The database is damaged",
        cause="a stored JSON text is not valid",
        hint="restore the database from a backup",
    )


def dump_time(microseconds: int | None) -> bytes:
    """Return a time in RFC 3339; None is null."""
    return b"null" if microseconds is None else b'"%b"' % format_rfc3339(microseconds).encode()


def join_arrays(inner: Sequence[bytes]) -> list[bytes]:
    """Join the inner texts of JSON arrays into one array, without a copy of them."""
    pieces = [piece for text in inner if text for piece in (b",", text)]
    pieces[:1] = [b"["]
    pieces.append(b"]")
    return pieces


class RecordWriter:
    """Writes the JSON texts of a record from rows of a class, by the types of the fields.

    A time is stored in microseconds; objects, arrays and values of any type are stored as JSON.

    Args:
        record, row: the class of the record, a typed dictionary, and of the rows.
        columns: the columns of the fields that have another name.
        computed: the fields that `write` takes as texts, although the row has such a column.
        last: the fields that come last; the others have the order of the record.
    """

    def __init__(
        self,
        record: type,
        row: type,
        columns: Mapping[str, str] | None = None,
        *,
        computed: Collection[str] = (),
        last: Sequence[str] = (),
    ) -> None:
        named = {field.name: field.name for field in fields(row)} | dict(columns or {})
        order = [*(name for name in record.__annotations__ if name not in last), *last]
        self._record = record
        self._stored = [name for name in order if name in named and name not in computed]
        self._read = attrgetter(*(named[name] for name in self._stored))
        # Each member is two pieces: its label and its text. The first one is always stored.
        self._labels = {name: _member_label(name) for name in order}
        self._labels[order[0]] = b"{" + _member_label(order[0])[1:]
        self._places = {name: 2 * index for index, name in enumerate(order)}

    @cached_property
    def _template(self) -> list[Any]:
        pieces = [b""] * (2 * len(self._places))
        for name in self._stored:
            pieces[self._places[name]] = self._labels[name]
        return [*pieces, b"}"]

    @cached_property
    def _writers(self) -> list[tuple[int, Callable[[Any], bytes]]]:
        types = field_types(self._record)
        return [(self._places[name] + 1, _choose_writer(types[name])) for name in self._stored]

    def write(self, row: Any, computed: Mapping[str, JsonText]) -> bytes:
        """Return the text of a record; a field that is neither a column nor computed is left out.

        Raises:
            Unavailable: see `stored_json`.
        """
        pieces = self._template.copy()
        for (place, write), value in zip(self._writers, self._read(row), strict=True):
            pieces[place] = write(value)
        in_pieces = []
        for name, text in computed.items():
            place = self._places[name]
            pieces[place : place + 2] = self._labels[name], text
            if isinstance(text, list):
                in_pieces.append(place + 1)
        for place in sorted(in_pieces, reverse=True):
            pieces[place : place + 1] = pieces[place]
        return b"".join(pieces)


def _choose_writer(field: ValueType) -> Callable[[Any], bytes]:
    if field.kind is Timestamp:
        return dump_time
    return dump if field.classes else stored_json


def dump_holding(run: LastRunState) -> bytes:
    """Return the names of the work that goes on after the end of a run, `null` if not known."""
    if not is_final(run.status) or run.stopped_at is not None:
        return b"[]"
    return stored_json(run.holding)
