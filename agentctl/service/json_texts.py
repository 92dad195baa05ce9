"""JSON texts of documents: long stored JSON is part of them and is not parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import orjson

from agentctl.records.document import build_damage
from agentctl.records.runs import LastRunState
from agentctl.records.times import Timestamp, format_rfc3339
from agentctl.records.value_types import field_types
from agentctl.runs.states import is_final

CHECKED_BYTES = 1_048_576
"""Size of a stored text that is parsed before it is sent, in some milliseconds."""


def join_array(items: Iterable[bytes]) -> bytes:
    """Join documents into a JSON array."""
    return b"[" + b",".join(items) + b"]"


def stored_json(text: str | None, opening: str = "") -> bytes:
    """Return a stored JSON text; None is null.

    A text of up to `CHECKED_BYTES` is parsed, of a longer one only its two ends are checked: the
    time of a parse grows with the text.

    Args:
        opening: the bracket with which the text begins; `""` for any value.

    Raises:
        Unavailable: the text is not JSON.
    """
    if text is None:
        return b"null"
    raw = text.encode()
    try:
        if not text.startswith(opening):
            raise build_damage()
        if len(raw) <= CHECKED_BYTES:
            orjson.loads(raw)
            return raw
    except orjson.JSONDecodeError:
        pass
    else:
        if raw[:1] + raw[-1:] in (b"{}", b"[]", b'""'):
            return raw
    raise build_damage()


def embed_stored(text: str | None, opening: str = "") -> orjson.Fragment:
    """Return a stored JSON text as a part of a document. Raises Unavailable, see `stored_json`."""
    return orjson.Fragment(stored_json(text, opening))


def check_array(pieces: Iterable[bytes]) -> None:
    """Check the inner texts of stored JSON arrays that are joined.

    Raises:
        Unavailable: they are not JSON.
    """
    try:
        orjson.loads(b"[%b]" % b",".join(filter(None, pieces)))
    except orjson.JSONDecodeError:
        raise build_damage() from None


def join_arrays(inner: Sequence[bytes]) -> list[bytes]:
    """Join the inner texts of JSON arrays into one array, without a copy of them."""
    pieces = [piece for text in inner if text for piece in (b",", text)]
    pieces[:1] = [b"["]
    pieces.append(b"]")
    return pieces


def dump_in_pieces(record: Mapping[str, Any], name: str, pieces: Sequence[bytes]) -> bytes:
    """Serialize a record with one long member from pieces, which are copied only once.

    Args:
        name: the member; it is neither the first nor the last one.
    """
    names = list(record)
    at = names.index(name)
    head, tail = (
        orjson.dumps({each: record[each] for each in part})
        for part in (names[:at], names[at + 1 :])
    )
    return b"".join([head[:-1], b',"%b":' % name.encode(), *pieces, b",", tail[1:]])


class RecordWriter:
    """Writes the JSON texts of a record from rows of a class, by the types of the fields.

    A time is stored in microseconds; objects, arrays and values of any type are stored as JSON.

    Args:
        record, row: the class of the record, a typed dictionary, and of the rows.
        columns: the columns of the fields that have another name.
        computed: the fields that `write` takes, although the row has such a column.
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
        names = getattr(row, "_fields", None) or [field.name for field in fields(row)]
        named = dict(zip(names, names, strict=True)) | dict(columns or {})
        order = [*(name for name in record.__annotations__ if name not in last), *last]
        self._record = record
        self._stored = [name for name in order if name in named and name not in computed]
        self._read = attrgetter(*(named[name] for name in self._stored))
        self._template: dict[str, Any] = dict.fromkeys(order)
        self._others = frozenset(order).difference(self._stored)

    @cached_property
    def _converters(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """The functions for the columns that are not stored as they are sent."""
        types = field_types(self._record)
        kinds: dict[object, Callable[[Any], Any]] = {
            Timestamp: format_rfc3339,
            dict: partial(embed_stored, opening="{"),
            list: partial(embed_stored, opening="["),
        }
        return [
            (name, kinds.get(types[name].kind, embed_stored))
            for name in self._stored
            if types[name].kind is Timestamp or not types[name].classes
        ]

    def build(self, row: Any, computed: Mapping[str, Any]) -> Any:
        """Build a record; a field that is neither a column nor computed is left out.

        Raises:
            Unavailable: see `stored_json`.
        """
        record = self._template | dict(zip(self._stored, self._read(row), strict=True))
        for name, convert in self._converters:
            if (value := record[name]) is not None:
                record[name] = convert(value)
        record.update(computed)
        for name in self._others.difference(computed):
            del record[name]
        return record

    def write(self, row: Any, computed: Mapping[str, Any]) -> bytes:
        """Return the text of what `build` returns."""
        return orjson.dumps(self.build(row, computed))


def dump_holding(run: LastRunState) -> bytes:
    """Return the names of the work that goes on after the end of a run, `null` if not known."""
    if not is_final(run.status) or run.stopped_at is not None:
        return b"[]"
    return stored_json(run.holding)
