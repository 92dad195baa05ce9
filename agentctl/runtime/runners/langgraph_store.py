"""The store of a run as a `BaseStore` of LangGraph (docs/agents.md "LangGraph")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    get_text_at_path,
    tokenize_path,
)

from agentctl.errors import ValidationFailed
from agentctl.records.store_items import (
    MAXIMUM_ITEMS_WRITTEN,
    ItemPut,
    ItemSearch,
    Namespace,
    StoreItem,
    check_page,
)
from agentctl.runtime.context import ItemStore

_CALL_SECONDS = 30.0
"""Maximum time of a call in a thread. The databases end sooner."""

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, other: value == other,
    "$ne": lambda value, other: value != other,
    "$gt": lambda value, other: float(value) > float(other),
    "$gte": lambda value, other: float(value) >= float(other),
    "$lt": lambda value, other: float(value) < float(other),
    "$lte": lambda value, other: float(value) <= float(other),
}
"""The operators of a filter, by their names."""


class RunStore(BaseStore):  # type: ignore[misc]
    """The store of one run. Its methods may be called in the event loop and in threads.

    As in the stores of LangGraph, the reads of a batch come before its writes, and of two writes of
    one item the last one counts. A search by text finds words.
    """

    supports_ttl = True

    __slots__ = ("_items", "_loop")

    def __init__(self, items: ItemStore) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations in a thread.

        Raises:
            InvalidStateError: it is called in the event loop, which it would block.
        """
        with suppress(RuntimeError):  # no loop runs in this thread
            if asyncio.get_running_loop() is self._loop:
                raise asyncio.InvalidStateError(
                    "the store was called in the event loop: await aget, asearch, aput, adelete or"
                    " alist_namespaces, or write the node as a function without async"
                )
        call = asyncio.run_coroutine_threadsafe(self.abatch(ops), self._loop)
        return call.result(_CALL_SECONDS)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations.

        Raises:
            AgentctlError: a value is not allowed, a quota is used up, or the database is not
                available.
            CancelledError: the run was cancelled, and an operation writes.
        """
        results = list[Result]()
        puts = dict[tuple[Namespace, str], ItemPut]()

        for op in ops:
            if isinstance(op, PutOp):
                put = _build_put(op)
                puts[put.namespace, put.key] = put
                results.append(None)
            else:
                results.append(await self._read(op))

        if len(puts) > MAXIMUM_ITEMS_WRITTEN:
            raise ValidationFailed(f"a batch can write at most {MAXIMUM_ITEMS_WRITTEN} items")

        if puts:
            await self._items.put(list(puts.values()))

        return results

    async def _read(self, op: GetOp | SearchOp | ListNamespacesOp) -> Result:
        if isinstance(op, GetOp):
            item = await self._items.get(op.namespace, op.key, refresh=op.refresh_ttl)
            if item is None:
                return None

            return Item(**_convert(item))

        if isinstance(op, SearchOp):
            wanted_values = dict(op.filter or {})

            _check_operators(wanted_values)
            item_search = ItemSearch(
                op.namespace_prefix,
                op.limit,
                op.offset,
                op.query,
                partial(_matches, filter_value=wanted_values) if wanted_values else None,
            )

            items = await self._items.search(item_search, refresh=op.refresh_ttl)
            return [SearchItem(**_convert(item), score=item.score) for item in items]

        check_page(op.limit, op.offset)
        spaces = [
            space
            for space in await self._items.list_namespaces()
            if all(_has_labels(space, condition) for condition in op.match_conditions or ())
        ]
        distinct = sorted({space[: op.max_depth] for space in spaces})
        return distinct[op.offset : op.offset + op.limit]


def _build_put(op: PutOp) -> ItemPut:
    namespace = tuple(op.namespace)
    if not namespace:
        raise ValidationFailed("the namespace of an item must have a label")

    if op.value is None:
        return ItemPut(namespace, op.key, None)

    try:
        # Dates and tuples get their JSON form, as in the stores of LangGraph with a database.
        value = orjson.loads(orjson.dumps(op.value))
    except (TypeError, ValueError):
        raise ValidationFailed(f"the value of the item {op.key!r} has no JSON form") from None

    if op.index is None:
        words = " ".join(_list_texts(value))
    else:
        paths = [tokenize_path(path) for path in op.index or ()]
        words = " ".join(text for path in paths for text in get_text_at_path(value, path))

    return ItemPut(namespace, op.key, value, words, op.ttl)


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the texts and the numbers of a JSON value."""
    if isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _list_texts(member)
    elif value is not None:
        yield str(value)


def _convert(item: StoreItem) -> dict[str, Any]:
    created_at, updated_at = (
        datetime.fromtimestamp(time / 1_000_000, UTC) for time in (item.created_at, item.updated_at)
    )

    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": item.value,
        "created_at": created_at,
        "updated_at": updated_at,
    }


def _check_operators(filters: Mapping[str, Any]) -> None:
    for condition in filters.values():
        if isinstance(condition, dict):
            unknown = [
                name for name in condition if name.startswith("$") and name not in _COMPARISONS
            ]
            if unknown:
                raise ValidationFailed(
                    f"the operator of the filter must be one of: {', '.join(_COMPARISONS)}"
                )
            _check_operators(condition)


def _matches(value: Any, filter_value: Any) -> bool:
    """Return True if a JSON value is what a filter asks for, by the rules of LangGraph.

    A value that is no number is not less and not greater than any other one.
    """
    if isinstance(filter_value, dict):
        if any(name.startswith("$") for name in filter_value):
            return all(_compare(value, name, condition) for name, condition in filter_value.items())

        members = value if isinstance(value, dict) else None
        return members is not None and all(
            _matches(members.get(name), condition) for name, condition in filter_value.items()
        )

    if isinstance(filter_value, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(filter_value)
            and all(map(_matches, value, filter_value))
        )

    return bool(value == filter_value)


def _compare(value: Any, name: str, operand: Any) -> bool:
    try:
        return _COMPARISONS[name](value, operand)
    except (KeyError, TypeError, ValueError):
        return False


def _has_labels(space: Namespace, condition: MatchCondition) -> bool:
    """Return True if a namespace begins or ends with some labels; `*` is any label."""
    path = tuple(condition.path)
    if len(space) < len(path):
        return False

    first = 0 if condition.match_type == "prefix" else len(space) - len(path)
    labels = space[first : first + len(path)]

    return all(
        expected_label in ("*", label) for label, expected_label in zip(labels, path, strict=True)
    )
