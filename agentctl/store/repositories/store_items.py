"""The items of the stores of users, in the system database, with the words that find them.

An item belongs to a user and is in one of two spaces: `own` is the space of the user alone,
`shared` the space of all users. The space is the first label of a stored namespace, so no namespace
that code names leads out of it. Items without a user have the user ''.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import orjson

from agentctl.config.quotas import Quotas
from agentctl.records.memories import split_words
from agentctl.records.store_items import (
    ItemPut,
    ItemSearch,
    Namespace,
    StoreItem,
    check_key,
    check_page,
    convert_ttl,
    dump_value,
    join_labels,
)
from agentctl.records.text import new_id
from agentctl.store.database import Sql, Statement, Steps, Value, Work, unit
from agentctl.store.listing import ID_GROUP, group_ids, prefix_end, read_group
from agentctl.store.repositories.quotas import check_added
from agentctl.store.repositories.terms import TermTable

SCANNED_ITEMS = 10_000
"""Items of a namespace, last changed first, that one search considers; namespaces of one list."""

UNIT_ITEMS = 100
"""Items that one unit of a cleanup deletes."""

_READ = "SELECT item_id, namespace, key, value, created_at, updated_at, ttl FROM store_items"

_OF_SPACE = "user_id = :user_id AND namespace >= :namespace_from AND namespace < :namespace_to"
_IS_ALIVE = "(expires_at IS NULL OR expires_at > :now)"
_IS_NAMED = "user_id = :user_id AND namespace = :namespace AND key = :key"

_GET = Sql(f"{_READ} WHERE {_IS_NAMED} AND {_IS_ALIVE}")
_GET_ALL = Sql(f"{_READ} WHERE item_id IN ({ID_GROUP})")
_LIST_OF_USER = Sql(
    f"{_READ} WHERE user_id = :user_id AND (namespace, key) > (:namespace, :key)"
    " ORDER BY namespace, key LIMIT :limit"
)

# The expression keeps the planners from the index of the names, whose rows they would have to sort.
_NEWEST = Sql(
    "SELECT item_id FROM store_items WHERE user_id = :user_id AND namespace || '' >="
    f" :namespace_from AND namespace || '' < :namespace_to AND {_IS_ALIVE}"
    f" ORDER BY updated_at DESC, item_id DESC LIMIT {SCANNED_ITEMS}"
)

_NAMESPACES = Sql(
    f"SELECT DISTINCT namespace FROM store_items WHERE {_OF_SPACE} AND {_IS_ALIVE}"
    f" ORDER BY namespace LIMIT {SCANNED_ITEMS}"
)

_PUT = Sql(
    "INSERT INTO store_items (item_id, user_id, namespace, key, created_at, updated_at, ttl,"
    " expires_at, value) VALUES (:item_id, :user_id, :namespace, :key, :now, :now, :ttl,"
    " :expires_at, :value) ON CONFLICT (user_id, namespace, key) DO UPDATE SET"
    # An item that has expired is a new one.
    " created_at = CASE WHEN store_items.expires_at <= excluded.created_at"
    " THEN excluded.created_at ELSE store_items.created_at END,"
    " updated_at = excluded.updated_at, ttl = excluded.ttl, expires_at = excluded.expires_at,"
    " value = excluded.value RETURNING item_id"
)

_DELETE = Sql(f"DELETE FROM store_items WHERE {_IS_NAMED}")

_REFRESH = Sql(
    "UPDATE store_items SET expires_at = cast(:now as bigint) + ttl"
    f" WHERE item_id IN ({ID_GROUP}) AND ttl IS NOT NULL"
)

_HAS_EXPIRED = Sql("SELECT 1 FROM store_items WHERE expires_at <= :now LIMIT 1")
_DELETE_EXPIRED = Sql(
    "DELETE FROM store_items WHERE item_id IN (SELECT item_id FROM store_items"
    f" WHERE expires_at <= :now LIMIT {UNIT_ITEMS}) RETURNING item_id"
)

_TERMS = TermTable("store_terms", "item_id", "namespace")


class Space(NamedTuple):
    """The items that a run can reach."""

    user_id: str
    """The user of the items; '' for a run without a user, and for shared items."""

    name: Literal["own", "shared"] = "own"

    def locate(self, namespace: Namespace, key: str) -> dict[str, Value]:
        """Return the parameters of one item."""
        place = f"{self.name}.{join_labels(namespace)}"
        return {"user_id": self.user_id, "namespace": place, "key": check_key(key)}

    def bound(self, prefix: Namespace) -> dict[str, Value]:
        """Return the parameters of the items whose namespace begins with some labels."""
        place = f"{self.name}.{join_labels(prefix)}"
        return {"user_id": self.user_id, "namespace_from": place, "namespace_to": prefix_end(place)}


class ItemRow(NamedTuple):
    """A stored item; its namespace begins with its space. Times are microseconds UTC."""

    item_id: str
    namespace: str
    key: str
    value: str
    created_at: int
    updated_at: int
    ttl: int | None

    @property
    def labels(self) -> Namespace:
        """The namespace without the space."""
        return _split_labels(self.namespace)

    def build_item(self, score: float | None = None) -> StoreItem:
        """Build the item."""
        value = orjson.loads(self.value)
        return StoreItem(self.labels, self.key, value, self.created_at, self.updated_at, score)


class FoundItems(NamedTuple):
    """The items that a read has found."""

    items: list[StoreItem]

    limited: list[str]
    """The ids of the items with a time to live."""


@unit
def get(space: Space, namespace: Namespace, key: str, now: int) -> Steps[FoundItems]:
    """Return one item, or none."""
    rows = yield Statement(_GET, {**space.locate(namespace, key), "now": now})
    return _build_found_items([ItemRow(*row) for row in rows], {})


@unit
def search(space: Space, query: ItemSearch, now: int) -> Steps[FoundItems]:
    """Return a page of the items below a namespace, the best matches of a text first.

    The text orders the items, it leaves out none. Items without its words follow, the last changed
    first. At most `SCANNED_ITEMS` are considered.

    Raises:
        ValidationFailed: a label or the page is not allowed.
    """
    check_page(query.limit, query.offset)
    within = space.bound(query.prefix)
    newest_rows = yield Statement(_NEWEST, {**within, "now": now})
    newest_ids = [str(item_id) for (item_id,) in newest_rows]

    scores = dict[str, float]()
    if query.text:
        scores = yield from _TERMS.rank(query.text, **within)
    living_ids = set(newest_ids)
    ids = [item_id for item_id in scores if item_id in living_ids]
    ids += [item_id for item_id in newest_ids if item_id not in scores]

    # Without a filter, the page itself is enough. With one, read until the page is full.
    end = query.offset + query.limit
    if query.matches is None:
        ids = ids[:end]

    items = list[ItemRow]()
    for group in group_ids(ids):
        rows_by_id = {row[0]: ItemRow(*row) for row in (yield Statement(_GET_ALL, group))}
        for item_id in read_group(group):
            row = rows_by_id.get(item_id)
            if row is None:
                # It was deleted since the ids were read.
                continue
            if query.matches is None or query.matches(orjson.loads(row.value)):
                items.append(row)
        if len(items) >= end:
            break

    return _build_found_items(items[query.offset : end], scores)


@unit
def list_namespaces(space: Space, now: int) -> Steps[list[Namespace]]:
    """Return the namespaces that have items, in order; at most `SCANNED_ITEMS`."""
    rows = yield Statement(_NAMESPACES, {**space.bound(()), "now": now})
    return [_split_labels(namespace) for (namespace,) in rows]


@unit
def put(space: Space, puts: Sequence[ItemPut], quotas: Quotas, now: int) -> Steps[None]:
    """Write and delete items.

    Raises:
        ValidationFailed: a namespace, a key, a value or a time to live is not allowed.
        TooLarge: a value is too large.
        QuotaExceeded: the user has as many items as the quotas allow.
    """
    # In one order, so that two callers cannot deadlock.
    for item in sorted(puts, key=lambda put: (put.namespace, put.key)):
        place = space.locate(item.namespace, item.key)
        if item.value is None:
            yield Statement(_DELETE, place)
            continue

        ttl = convert_ttl(item.ttl)
        times = {"now": now, "ttl": ttl, "expires_at": None if ttl is None else now + ttl}
        row = {"item_id": new_id(), **place, **times, "value": dump_value(item.value)}

        ((item_id,),) = yield Statement(_PUT, row)
        yield from _TERMS.replace(
            item_id,
            split_words(item.words),
            user_id=space.user_id,
            updated_at=now,
            namespace=place["namespace"],
        )

    if any(item.value is not None for item in puts):
        yield from check_added(quotas, space.user_id, "store_items")


@unit
def refresh(item_ids: Sequence[str], now: int) -> Steps[None]:
    """Begin the time to live of items again, as they were used."""
    for group in group_ids(item_ids):
        yield Statement(_REFRESH, {**group, "now": now})


def list_of_user(user_id: str, after: tuple[str, str], limit: int) -> Work[list[ItemRow]]:
    """Return items of a user, in the order of their namespaces and keys.

    Args:
        after: namespace and key of the item before the first one.
    """
    namespace, key = after
    return _LIST_OF_USER.rows(ItemRow, user_id=user_id, namespace=namespace, key=key, limit=limit)


def has_expired(now: int) -> Work[bool]:
    """Return True if `delete_expired` has rows to delete."""
    return _HAS_EXPIRED.has_rows(now=now)


def delete_expired(now: int) -> Work[int]:
    """Delete a batch of the items that have expired. Call it again until it returns 0."""
    return _DELETE_EXPIRED.count_rows(now=now)


def _build_found_items(rows: Sequence[ItemRow], scores: Mapping[str, float]) -> FoundItems:
    items = [row.build_item(scores.get(row.item_id)) for row in rows]
    return FoundItems(items, [row.item_id for row in rows if row.ttl is not None])


def _split_labels(namespace: str) -> Namespace:
    return tuple(namespace.split(".")[1:-1])
