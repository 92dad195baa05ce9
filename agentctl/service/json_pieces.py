"""JSON texts in pieces, from which a document is joined once.

Stored JSON is copied into a document and not parsed. A history may be large: memory holds the
pieces and the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import orjson

from agentctl.records.times import format_rfc3339
from agentctl.runs.states import is_final
from agentctl.store.repositories.run_rows import RunRow, RunState

JsonText = bytes | list[bytes]
"""A JSON text, possibly in pieces."""


def join_object(members: Mapping[str, JsonText]) -> bytes:
    """Join members into a JSON object, in their order."""
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
    """Return the JSON text of a value."""
    return orjson.dumps(value)


def stored_json(text: str | None) -> bytes:
    """Return a stored JSON text unchanged, `null` without one."""
    return b"null" if text is None else text.encode()


def dump_time(microseconds: int | None) -> bytes:
    """Return a time (microseconds UTC) as a JSON text of RFC 3339, or `null`."""
    return b"null" if microseconds is None else b'"%b"' % format_rfc3339(microseconds).encode()


def join_arrays(inner: Sequence[bytes]) -> list[bytes]:
    """Join the inner texts of JSON arrays into one array, without a copy of them."""
    pieces = [piece for text in inner if text for piece in (b",", text)]
    pieces[:1] = [b"["]
    pieces.append(b"]")
    return pieces


def dump_holding(run: RunRow | RunState) -> bytes:
    """Return the names of the work that goes on after the end of a run, `null` if not known."""
    if not is_final(run.status) or run.stopped_at is not None:
        return b"[]"
    return stored_json(run.holding)
