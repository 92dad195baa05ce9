"""Items that graphs of LangGraph keep in the store of a user (docs/agents.md "LangGraph")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agentctl.errors import ValidationFailed
from agentctl.records.text import check_text, dump_checked_json

MAXIMUM_ITEM_BYTES = 262_144
"""Bytes of the value of an item as JSON."""

MAXIMUM_NAME_BYTES = 512
"""Bytes of the namespace of an item, and of its key: an index of PostgreSQL has both."""

MAXIMUM_ITEMS_READ = 100
"""Items of one search, and namespaces of one list."""

MAXIMUM_ITEMS_WRITTEN = 100
"""Items that one call writes or deletes."""

MAXIMUM_TTL_MINUTES = 5_256_000
"""The longest time to live of an item: ten years."""

MICROSECONDS_OF_MINUTE = 60_000_000

Namespace = tuple[str, ...]
"""The labels of a namespace, from the outermost one."""


class StoreItem(NamedTuple):
    """A stored item. Times are microseconds UTC."""

    namespace: Namespace
    key: str

    value: dict[str, Any]
    """A JSON object."""

    created_at: int
    updated_at: int

    score: float | None = None
    """Rank in a search by text; None if the item shares no word with the text."""


class ItemPut(NamedTuple):
    """An item to write."""

    namespace: Namespace
    key: str

    value: dict[str, Any] | None
    """Its JSON object; None deletes the item."""

    words: str = ""
    """The text whose words find it."""

    ttl: float | None = None
    """Minutes from its last use to its end; None if it does not end."""


class ItemSearch(NamedTuple):
    """A search of items: items that share words with a text first, then the last changed items."""

    prefix: Namespace
    """The first labels of their namespaces; empty for all."""

    limit: int
    offset: int

    text: str | None = None
    """The text to search for; None to list without a text."""

    matches: Callable[[Mapping[str, Any]], bool] | None = None
    """Returns True if the value of an item matches; None if all do."""


def join_labels(labels: Namespace) -> str:
    """Return the text of the labels of a namespace, or of its first labels.

    No label has a period. So a text begins with the text of other labels if and only if these are
    the first labels of its namespace.

    Raises:
        ValidationFailed: a label is empty, has a period or cannot be stored, or they are too long.
    """
    for label in labels:
        if not isinstance(label, str) or not label or "." in label:
            raise ValidationFailed("a label of a namespace must be a text without a period")
    return _check_name("a namespace", "".join(f"{label}." for label in labels))


def check_key(key: str) -> str:
    """Return the key of an item.

    Raises:
        ValidationFailed: it is no text, is too long, or cannot be stored.
    """
    if not isinstance(key, str):
        raise ValidationFailed("the key of an item must be a text")
    return _check_name("the key of an item", key)


def dump_value(value: Any) -> str:
    """Return the JSON text of the value of an item.

    Raises:
        ValidationFailed: it is no JSON object that can be stored.
        TooLarge: it has more than `MAXIMUM_ITEM_BYTES`.
    """
    if not isinstance(value, dict):
        raise ValidationFailed("the value of an item must be an object")
    return dump_checked_json("the value of an item", value, MAXIMUM_ITEM_BYTES) or ""


def convert_ttl(ttl: float | None) -> int | None:
    """Return a time to live in microseconds.

    Raises:
        ValidationFailed: it is no number of minutes that is greater than 0, or it is too long.
    """
    if ttl is None:
        return None
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if not is_number or not 0 < ttl <= MAXIMUM_TTL_MINUTES:
        raise ValidationFailed(
            f"the ttl of an item must be greater than 0 and at most {MAXIMUM_TTL_MINUTES} minutes"
        )
    return max(round(ttl * MICROSECONDS_OF_MINUTE), 1)


def check_page(limit: int, offset: int) -> None:
    """Check the page of a search or of a list.

    Raises:
        ValidationFailed: a number is out of its range.
    """
    if not 1 <= limit <= MAXIMUM_ITEMS_READ:
        raise ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_ITEMS_READ}")
    if offset < 0:
        raise ValidationFailed("offset must not be negative")


def _check_name(what: str, text: str) -> str:
    check_text(what, text)
    if len(text.encode()) > MAXIMUM_NAME_BYTES:
        raise ValidationFailed(f"{what} must have at most {MAXIMUM_NAME_BYTES} bytes")
    return text
