"""Ids: their grammars (docs/contract.md "Records") and new ids."""

from __future__ import annotations

import os
import re
import time

COMPONENT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""The grammar of ids in the configuration: agents, teams, workflows, models, databases."""

SESSION_ID = (
    r"^([A-Za-z0-9_~@-][A-Za-z0-9._~@-]{0,127}"
    r"|\.[A-Za-z0-9_~@-][A-Za-z0-9._~@-]{0,126}"
    r"|\.\.[A-Za-z0-9._~@-]{1,126})$"
)
"""The grammar of session ids from clients: `.` and `..` are excluded, because no path can have them
as a segment (RFC 3986 5.2.4). A lookahead would say so in fewer words, but not every reader of the
OpenAPI document knows them."""

IDEMPOTENCY_KEY = r"^[!-~]{1,255}$"
"""The grammar of idempotency keys: visible ASCII, as in a header."""

_component_id = re.compile(COMPONENT_ID[1:-1])
_session_id = re.compile(SESSION_ID[1:-1])
_unique_id = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_idempotency_key = re.compile(IDEMPOTENCY_KEY[1:-1])


def is_component_id(text: str) -> bool:
    """Return True if `text` is a valid id in the configuration."""
    return _component_id.fullmatch(text) is not None


def is_session_id(text: str) -> bool:
    """Return True if a client may choose this session id."""
    return _session_id.fullmatch(text) is not None


def is_idempotency_key(text: str) -> bool:
    """Return True if a client may use this idempotency key."""
    return _idempotency_key.fullmatch(text) is not None


def is_unique_id(text: str) -> bool:
    """Return True for a text of the form of `new_id`."""
    return _unique_id.fullmatch(text) is not None


def new_id() -> str:
    """Return a new UUIDv7 (RFC 9562 5.7): 48 bits of milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(_random_bytes(), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_RANDOM_BYTES = 10
_POOL_SIZE = 256
_random_pool: list[bytes] = []


def _random_bytes() -> bytes:
    """Return random bytes, read from the system for 256 ids at once, because the read is slow."""
    try:
        return _random_pool.pop()
    except IndexError:
        many = os.urandom(_RANDOM_BYTES * _POOL_SIZE)
        pieces = [many[at : at + _RANDOM_BYTES] for at in range(0, len(many), _RANDOM_BYTES)]
        _random_pool.extend(pieces[1:])
        return pieces[0]


# A forked process must not create the ids of its parent.
os.register_at_fork(after_in_child=_random_pool.clear)


def lower_bound_id(milliseconds: int) -> str:
    """Return a text that every id of `new_id` from a time on follows, in the order of text.

    Args:
        milliseconds: the time since the epoch, UTC.
    """
    text = f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}"
    return f"{text[:8]}-{text[8:]}"
