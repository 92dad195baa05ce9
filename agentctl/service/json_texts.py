"""JSON texts of documents, joined from pieces; long stored JSON is not parsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import orjson

from agentctl.errors import Unavailable
from agentctl.records.runs import LastRunState, RunRow, RunState
from agentctl.records.times import format_rfc3339
from agentctl.runs.states import is_final

CHECKED_BYTES = 16_384
"""Size of a stored text that is parsed before it is sent."""

JsonText = bytes | list[bytes]
"""A JSON text, possibly in pieces."""


def join_object(members: Mapping[str, JsonText]) -> bytes:
    """Join the members of an object, each a JSON text."""
    pieces: list[bytes] = []
    for key, text in members.items():
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


def dump_holding(run: RunRow | RunState | LastRunState) -> bytes:
    """Return the names of the work that goes on after the end of a run, `null` if not known."""
    if not is_final(run.status) or run.stopped_at is not None:
        return b"[]"
    return stored_json(run.holding)
