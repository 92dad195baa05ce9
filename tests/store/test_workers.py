"""The repository of workers, on both engines."""

from __future__ import annotations

from dataclasses import replace

from agentctl.records.times import now
from agentctl.store.repositories import workers
from agentctl.store.repositories.workers import WorkerRow
from tests.store.conftest import Store
from tests.store.rows import START

ONE = WorkerRow("w1", "höst", "boot/4026531836", 2**22, 123_456, START, START)


def known(store: Store, row: WorkerRow | None) -> WorkerRow | None:
    """Return the row with the heartbeat of `ONE`, because PostgreSQL stores its present time."""
    if row is None or store.is_embedded:
        return row
    assert abs(row.beat - now()) < 60_000_000
    return replace(row, beat=START)


def test_a_registered_worker_is_read_unchanged(store: Store) -> None:
    store.write(workers.register(ONE))
    assert known(store, store.read(workers.get("w1"))) == ONE
    assert store.read(workers.get("W1")) is None


def test_workers_are_listed_oldest_first(store: Store) -> None:
    assert store.read(workers.list_workers()) == []
    rows = [
        replace(ONE, worker_id=name, started_at=START + at)
        for name, at in (("w3", 5), ("w1", 9), ("w2", 5))
    ]
    for row in rows:
        store.write(workers.register(row))
    listed = [known(store, row) for row in store.read(workers.list_workers())]
    assert listed == [rows[2], rows[0], rows[1]]


def test_a_heartbeat_changes_nothing_else(store: Store) -> None:
    store.write(workers.register(ONE))
    store.write(workers.register(replace(ONE, worker_id="w2")))
    before = {row.worker_id: row for row in store.read(workers.list_workers())}
    assert store.write(workers.record_heartbeat("w1", START + 3))
    after = {row.worker_id: row for row in store.read(workers.list_workers())}
    assert after["w2"] == before["w2"]
    assert after["w1"].beat > before["w1"].beat
    assert replace(after["w1"], beat=0) == replace(before["w1"], beat=0)
    assert not store.is_embedded or after["w1"].beat == START + 3


def test_the_heartbeat_of_a_removed_worker_fails(store: Store) -> None:
    store.write(workers.register(ONE))
    store.write(workers.register(replace(ONE, worker_id="w2")))
    assert store.write(workers.remove("w1"))
    assert not store.write(workers.remove("w1"))
    assert not store.write(workers.record_heartbeat("w1", START + 3))
    assert [row.worker_id for row in store.read(workers.list_workers())] == ["w2"]
