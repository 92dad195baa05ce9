"""Workers: a row each, from its start to its burial; both engines."""

from __future__ import annotations

from dataclasses import replace

from agentctl.store import workers
from agentctl.store.workers import WorkerRow
from tests.store.conftest import Store
from tests.store.made import START

ONE = WorkerRow("w1", "höst", "boot/4026531836", 2**22, 123_456, START, START)


def test_a_worker_is_read_as_it_was_enlisted(store: Store) -> None:
    store.write(workers.enlist(ONE))
    assert store.read(workers.get("w1")) == ONE
    assert store.read(workers.get("W1")) is None


def test_workers_are_listed_the_longest_serving_first(store: Store) -> None:
    assert store.read(workers.listed()) == []
    rows = [
        replace(ONE, worker_id=name, started_at=START + at)
        for name, at in (("w3", 5), ("w1", 9), ("w2", 5))
    ]
    for row in rows:
        store.write(workers.enlist(row))
    assert store.read(workers.listed()) == [rows[2], rows[0], rows[1]]


def test_a_beat_is_noted_and_nothing_else_changes(store: Store) -> None:
    store.write(workers.enlist(ONE))
    store.write(workers.enlist(replace(ONE, worker_id="w2")))
    assert store.write(workers.beat("w1", START + 3))
    assert store.read(workers.get("w1")) == replace(ONE, beat=START + 3)
    assert store.read(workers.get("w2")) == replace(ONE, worker_id="w2")


def test_a_worker_is_buried_once_and_hears_of_it_at_its_next_beat(store: Store) -> None:
    store.write(workers.enlist(ONE))
    store.write(workers.enlist(replace(ONE, worker_id="w2")))
    assert store.write(workers.bury("w1"))
    assert not store.write(workers.bury("w1"))
    assert not store.write(workers.beat("w1", START + 3))
    assert [row.worker_id for row in store.read(workers.listed())] == ["w2"]
