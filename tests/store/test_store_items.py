"""The store of a run on both databases, and its differences to the store of LangGraph."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from agentctl import errors
from agentctl.config.quotas import Quotas
from agentctl.records.store_items import MAXIMUM_ITEM_BYTES
from agentctl.records.times import now
from agentctl.runs.life.run_files import RunItems
from agentctl.runtime.runners.langgraph_store import RunStore
from agentctl.store.repositories import store_items
from agentctl.store.sqlite.database import SqliteDatabase
from tests.kit.tables import every_row
from tests.store.conftest import Store

OPERATIONS = 250
LABELS = ("notes", "a", "a0", "é", "%", "_")
KEYS = ("tea", "日本")
WORDS = ("tea", "rome", "Straße", "cat", "日本")
MINUTE = 60_000_000


def use(
    store: Store,
    work: Callable[[Any], Awaitable[Any]],
    user: str | None = "ada",
    *,
    is_shared: bool = False,
    is_cancelled: bool = False,
    quotas: Quotas = Quotas(),  # noqa: B008
) -> Any:
    """Run code with the store of a run."""

    def checkpoint() -> None:
        if is_cancelled:
            raise asyncio.CancelledError

    async def main() -> Any:
        run: Any = SimpleNamespace(
            spec=SimpleNamespace(user_id=user),
            checkpoint=checkpoint,
            stop_requested=asyncio.get_running_loop().create_future(),
        )
        items = RunItems(store.database, run, quotas, is_shared=is_shared)
        return await work(RunStore(items))

    return store.run(cast(Any, main()))


FILTERS: tuple[dict[str, Any] | None, ...] = (
    None,
    {},
    {"n": 7},
    {"of": {"a": 1}},
    {"of": [1, 2]},
    {"n": {"$ne": 7}},
    {"of": {"a": {"b": [1, "x"]}}},
    {"text": {"$eq": "tea tea tea"}},
    {"none": None},
    {"of": {"a": {"$gt": 0}}},
    {"of": {"a": {"$gt": 2}}},
    {"of": {"a": {"$gt": 2.5}}},
)


class RandomOperations:
    """Operations of a store, of which a seed decides."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def build_batch(self) -> list[Any]:
        batch = [self._build() for _ in range(self._chance.choice([1, 1, 1, 5]))]
        # All reads of a batch come before its writes. LangGraph creates the namespace that it reads
        # an item from, so the lists of namespaces come before the other reads.
        return sorted(batch, key=lambda each: not isinstance(each, ListNamespacesOp))

    def _build(self) -> Any:
        match self._chance.randint(0, 6):
            case 0:
                return GetOp(self._name(), self._chance.choice(KEYS))
            case 1:
                return self._build_search()
            case 2:
                return self._build_list()
            case _:
                content = self._value() if self._chance.random() < 0.8 else None
                return PutOp(self._name(), self._chance.choice(KEYS), content)

    def _build_search(self) -> SearchOp:
        prefix = self._name()[: self._chance.randint(0, 2)]
        query = self._chance.choice([None, "tea", "…", "strasse Rome"])
        return SearchOp(prefix, self._chance.choice(FILTERS), 100, 0, query)

    def _build_list(self) -> ListNamespacesOp:
        path = tuple(self._chance.choices((*LABELS, "*"), k=self._chance.randint(1, 2)))
        kind = self._chance.choice(["prefix", "suffix"])
        conditions = (MatchCondition(kind, path),)
        depth = self._chance.choice([None, 1, 2])
        return ListNamespacesOp(self._chance.choice([None, conditions]), depth, 5, 1)

    def _name(self) -> tuple[str, ...]:
        return tuple(self._chance.choices(LABELS, k=self._chance.randint(1, 2)))

    def _value(self) -> dict[str, Any]:
        return {
            "text": " ".join(self._chance.choices(WORDS, k=3)),
            "n": self._chance.choice([1, 2.5, -3, 7, "x", None, True]),
            "of": self._chance.choice([{"a": 1}, {"a": {"b": [1, "x"]}}, [1, 2], [], "tea"]),
        }


def test_random_operations_equal_those_of_langgraph(store: Store) -> None:
    operations = RandomOperations(f"store {store.is_embedded}")

    async def compare(own: BaseStore) -> None:
        other = InMemoryStore()
        for _ in range(OPERATIONS):
            batch = operations.build_batch()
            try:
                expected = await other.abatch(batch)
            except (TypeError, ValueError):
                # LangGraph fails when it compares values that are no numbers; here they differ.
                batch = [each for each in batch if not isinstance(each, SearchOp)]
                expected = await other.abatch(batch)
            for found, result in zip(await own.abatch(batch), expected, strict=True):
                assert _simplify(found) == _simplify(result), batch

            # LangGraph lists a namespace from which all items were deleted.
            for namespace in [name for name, items in other._data.items() if not items]:
                del other._data[namespace]

    use(store, compare)


def _simplify(result: Any) -> Any:
    if isinstance(result, list):
        return sorted(map(_simplify, result), key=repr)
    if result is None or isinstance(result, tuple):
        return result
    return (result.namespace, result.key, result.value)


def test_users_and_shared_items_are_apart(store: Store) -> None:
    async def write(own: BaseStore) -> None:
        await own.aput(("own", "notes"), "k", {"text": "secret tea"})

    async def read(own: BaseStore) -> Any:
        return [
            await own.aget(("own", "notes"), "k"),
            await own.asearch(()),
            await own.asearch(("own",), query="tea"),
            await own.asearch(("shared",)),
            await own.alist_namespaces(),
        ]

    use(store, write)
    assert use(store, read)[0].value == {"text": "secret tea"}
    for reader in ({"user": "bob"}, {"user": None}, {"is_shared": True}, {"user": "ada."}):
        assert use(store, read, **cast(Any, reader)) == [None, [], [], [], []]
        use(store, lambda own: own.adelete(("own", "notes"), "k"), **cast(Any, reader))
    assert use(store, read)[0] is not None


@every_row(
    "operation",
    [
        PutOp(("notes.ada",), "k", {}),
        PutOp(("notes", ""), "k", {}),
        PutOp((), "k", {}),
        PutOp(("notes", cast(str, 7)), "k", {}),
        PutOp(("notes\0",), "k", {}),
        PutOp(("n" * 512,), "k", {}),
        PutOp(("notes",), "k" * 513, {}),
        PutOp(("notes",), "k\ud800", {}),
        PutOp(("notes",), "k", {"of": {1, 2}}),
        PutOp(("notes",), "k", {"of": "x" * MAXIMUM_ITEM_BYTES}),
        PutOp(("notes",), "k", {"of": "\0"}),
        PutOp(("notes",), "k", cast(Any, [1])),
        PutOp(("notes",), "k", {}, ttl=-1),
        PutOp(("notes",), "k", {}, ttl=float("nan")),
        GetOp(("notes.ada",), "k"),
        SearchOp(("notes.",)),
        SearchOp(("notes",), limit=101),
        SearchOp(("notes",), offset=-1),
        SearchOp(("notes",), filter={"n": {"$regex": "x"}}),
        ListNamespacesOp(limit=0),
    ],
)
def test_wrong_operations_are_refused_and_write_nothing(
    sqlite: SqliteDatabase, operation: Any
) -> None:
    # A batch is refused before its first statement: the engine makes no difference.
    store = Store(sqlite)

    async def work(own: BaseStore) -> Any:
        with pytest.raises((errors.ValidationFailed, errors.TooLarge)):
            await own.abatch([PutOp(("notes",), "good", {"n": 1}), operation])
        return await own.asearch(())

    assert use(store, work) == []


def test_search_puts_rare_words_first_and_leaves_out_none(store: Store) -> None:
    async def work(own: BaseStore) -> Any:
        for key, text in (("a", "tea"), ("b", "tea in a zeppelin"), ("c", "coffee"), ("d", "tea")):
            await own.aput(("notes",), key, {"text": text, "n": len(key)})
        await own.aput(("notes",), "e", {"text": "zeppelin"}, index=False)
        await own.aput(("notes",), "f", {"text": "zeppelin", "of": "tea"}, index=["text"])
        found = await own.asearch(("notes",), query="Zeppelin?")
        part = await own.asearch(("notes",), query="Zeppelin?", limit=2, offset=1)
        await own.aput(("notes",), "b", {"text": "water"})
        again = await own.asearch(("notes",), query="zeppelin", filter={"text": "water"})
        return found, part, again

    found, part, again = use(store, work)
    assert [item.key for item in found] == ["f", "b", "e", "d", "c", "a"]
    assert [item.score is None for item in found] == [False, False, True, True, True, True]
    assert [item.key for item in part] == ["b", "e"]
    assert [(item.key, item.score) for item in again] == [("b", None)]


def test_items_end_after_their_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    start = now()

    def at(minutes: float) -> None:
        moment = start + round(minutes * MINUTE)
        monkeypatch.setattr("agentctl.runs.life.run_files.now", lambda: moment)

    async def work(own: BaseStore) -> Any:
        at(0)
        await own.aput(("notes",), "short", {"n": 1}, ttl=1)
        await own.aput(("notes",), "used", {"n": 1}, ttl=1)
        await own.aput(("notes",), "long", {"n": 1})
        at(0.9)
        await own.aget(("notes",), "used")
        await own.aget(("notes",), "short", refresh_ttl=False)
        at(1.5)
        return [item.key for item in await own.asearch(("notes",), refresh_ttl=False)]

    assert sorted(use(store, work)) == ["long", "used"]
    assert store.read(store_items.has_expired(start + round(1.5 * MINUTE)))
    assert store.write(store_items.delete_expired(start + round(1.5 * MINUTE))) == 1
    assert not store.read(store_items.has_expired(start + round(1.5 * MINUTE)))


def test_quota_counts_items_of_each_user(store: Store) -> None:
    async def work(own: BaseStore) -> None:
        for number in range(3):
            await own.aput(("notes",), str(number), {"n": 1})
            await own.aput(("notes",), "0", {"n": number})

    bounds = Quotas(store_items_per_user=2)
    for user in ("ada", "bob"):
        with pytest.raises(errors.QuotaExceeded, match="store_items_per_user"):
            use(store, work, user, quotas=bounds)
        assert len(use(store, lambda own: own.asearch(()), user)) == 2


def test_writes_of_a_cancelled_run_have_no_effect(store: Store) -> None:
    async def work(own: BaseStore) -> None:
        await own.aput(("notes",), "late", {"n": 1})

    with pytest.raises(asyncio.CancelledError):
        use(store, work, is_cancelled=True)
    assert use(store, lambda own: own.asearch(())) == []


def test_threads_use_the_store_and_the_event_loop_is_not_blocked(store: Store) -> None:
    async def work(own: BaseStore) -> Any:
        await asyncio.to_thread(own.put, ("notes",), "k", {"n": 1})
        with pytest.raises(asyncio.InvalidStateError, match="await aget"):
            own.get(("notes",), "k")
        return await asyncio.to_thread(own.get, ("notes",), "k")

    assert use(store, work).value == {"n": 1}
