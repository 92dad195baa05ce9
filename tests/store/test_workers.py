"""The repository of workers, on both engines."""

from __future__ import annotations

from dataclasses import replace

from agentctl.records.times import now
from agentctl.store.repositories import run_reads, runs, sessions, workers
from agentctl.store.repositories.workers import WorkerRow
from agentctl.store.sqlite.database import SqliteDatabase
from tests.kit.rows import START, a_run, a_session
from tests.store.conftest import Store

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


def test_one_worker_has_the_lease_of_the_sweep(store: Store) -> None:
    at = now()
    for worker_id in ("w1", "w2"):
        store.write(workers.register(replace(ONE, worker_id=worker_id)))
    assert store.write(workers.acquire_sweep("w1", at))
    assert store.write(workers.acquire_sweep("w1", at + 1))
    assert not store.write(workers.acquire_sweep("w2", at + 1))
    assert not store.write(workers.acquire_sweep("w2", at + 1, exited="w3"))
    heartbeat = store.write(workers.record_heartbeat("w2", at + 1))
    assert heartbeat is not None
    assert heartbeat.sweeper == store.read(workers.get_sweeper(at + 1)) == "w1"
    # The process of the first one is known to have exited.
    assert store.write(workers.acquire_sweep("w2", at + 1, exited="w1"))
    assert store.write(workers.remove("w2"))
    assert store.read(workers.get_sweeper(at + 1)) is None
    assert store.write(workers.acquire_sweep("w1", at + 2))
    store.write(workers.remove("w1"))


def test_survey_of_the_lease_has_all_owners_and_workers(store: Store) -> None:
    at = now()
    survey = store.write(workers.acquire_sweep("w1", at))
    assert survey is not None
    assert (survey.owners, survey.workers) == (frozenset(), [])
    rows = [replace(ONE, worker_id="w2"), replace(ONE, started_at=START + 1, boot_id="")]
    for row in rows:
        store.write(workers.register(row))

    store.write(sessions.create(a_session()))
    store.write(runs.create(a_run("queued")))
    store.write(runs.create(a_run("live", owner="w1")))
    store.write(runs.claim("live", 1, "w1", START))
    survey = store.write(workers.acquire_sweep("w1", at))
    assert survey is not None
    assert survey.owners == {None, "w1"} == {*store.read(run_reads.list_owners_at_work())}
    assert [known(store, row) for row in survey.workers] == rows
    store.write(workers.remove("w1"))


def test_a_lease_that_is_not_extended_expires(sqlite: SqliteDatabase) -> None:
    at = START
    later = START + workers.LEASE_SECONDS * 1_000_000 + 1
    assert sqlite.write_blocking(workers.acquire_sweep("w1", at))
    assert not sqlite.write_blocking(workers.acquire_sweep("w2", later - 1))
    assert sqlite.write_blocking(workers.acquire_sweep("w2", later))
    # A clock that is set back by an hour does not keep a lease for an hour.
    assert sqlite.write_blocking(workers.acquire_sweep("w3", at - 3_600_000_000))


def test_a_heartbeat_shows_what_its_worker_must_do(store: Store) -> None:
    store.write(workers.register(ONE))
    store.write(sessions.create(a_session()))
    for run_id, owner in (("mine", "w1"), ("other", "w2")):
        store.write(runs.create(a_run(run_id, owner=owner)))
        store.write(runs.claim(run_id, 1, owner, START))
    found = store.write(workers.record_heartbeat("w1", START))
    assert found is not None
    assert (found.has_requests, found.has_waiting_runs) == (False, False)
    store.write(runs.request_cancel("other", START, "me", None))
    found = store.write(workers.record_heartbeat("w1", START))
    assert found is not None
    assert not found.has_requests
    store.write(runs.request_cancel("mine", START, "me", None))
    found = store.write(workers.record_heartbeat("w1", START))
    assert found is not None
    assert found.has_requests
    store.write(workers.remove("w1"))
