"""The repository of halts, on both engines."""

from __future__ import annotations

from dataclasses import replace

from agentctl.interface.requests.halts import HaltFilter
from agentctl.store.listing import Slice
from agentctl.store.repositories import halts, workers
from agentctl.store.repositories.halts import HaltRow
from tests.kit.rows import START
from tests.store.conftest import Store
from tests.store.test_workers import ONE

HALT = HaltRow("h1", "agent", "writer", "too many mails", 0, "me", START, None)


def test_each_change_has_the_next_number(store: Store) -> None:
    assert store.read(halts.list_active()) == (0, [])
    first = store.write(halts.create(HALT))
    second = store.write(halts.create(replace(HALT, halt_id="h2", created_at=START + 1)))
    assert (first.change_number, second.change_number) == (1, 2)
    assert store.read(halts.list_active()) == (2, [first, second])

    ended = store.write(halts.end("h1", "you", START + 5))
    assert ended == replace(first, ended_at=START + 5, ended_by="you", change_number=3)
    assert store.read(halts.list_active()) == (3, [second])
    assert store.write(halts.end("h1", "you", START + 6)) is None
    assert store.write(halts.end("none", "you", START + 6)) is None
    assert store.read(halts.get("h1")) == ended
    assert store.read(halts.list_ended_since(START + 5)) == [ended]
    assert store.read(halts.list_ended_since(START + 6)) == []


def test_heartbeat_reads_the_number_of_the_last_change(store: Store) -> None:
    store.write(workers.register(ONE))
    heartbeat = store.write(workers.record_heartbeat("w1", START))
    assert heartbeat is not None
    assert heartbeat.halts_number == 0
    store.write(halts.create(HALT))
    heartbeat = store.write(workers.record_heartbeat("w1", START))
    assert heartbeat is not None
    assert heartbeat.halts_number == 1


def test_workers_confirm_a_number_once(store: Store) -> None:
    store.write(workers.register(ONE))
    store.write(workers.register(replace(ONE, worker_id="w2")))
    assert sorted(store.read(halts.list_unconfirmed(2))) == ["w1", "w2"]
    assert store.write(halts.confirm("w1", 2))
    assert not store.write(halts.confirm("w1", 1))
    assert not store.write(halts.confirm("gone", 2))
    assert store.read(halts.list_unconfirmed(2)) == ["w2"]
    assert sorted(store.read(halts.list_unconfirmed(3))) == ["w1", "w2"]


def test_halts_are_listed_by_state_and_scope(store: Store) -> None:
    for number, row in enumerate(
        [HALT, replace(HALT, scope="all", scope_id=None), replace(HALT, scope="tool")]
    ):
        store.write(halts.create(replace(row, halt_id=f"h{number}", created_at=START + number)))
    store.write(halts.end("h2", "me", START + 9))

    def find(**filters: str) -> list[str]:
        page = store.read(halts.list_page(HaltFilter(**filters), Slice()))  # type: ignore[arg-type]
        return [row.halt_id for row in page.rows]

    assert find() == ["h2", "h1", "h0"]
    assert find(state="active") == ["h1", "h0"]
    assert find(state="ended") == ["h2"]
    assert find(scope="agent", scope_id="writer") == ["h0"]


def test_halts_are_due_at_their_time(store: Store) -> None:
    store.write(halts.create(replace(HALT, until=START + 10)))
    store.write(halts.create(replace(HALT, halt_id="h2")))
    assert store.read(halts.list_due(START + 9)) == []
    assert store.read(halts.list_due(START + 10)) == ["h1"]
