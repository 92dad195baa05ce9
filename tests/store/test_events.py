"""The repository of events, on both engines."""

from __future__ import annotations

import time

from agentctl.records.text import lower_bound_id, new_id
from agentctl.store.database import Sql, Steps, unit
from agentctl.store.repositories import events, runs, sessions
from tests.kit.rows import START, a_run, a_session, a_session_with_run, an_end
from tests.store.conftest import Store


def stored(store: Store, run_id: str = "r1") -> list[tuple[int, int, str]]:
    rows = store.read(events.list_after(run_id, -1))
    return [(row.first_seq, row.last_seq, row.events) for row in rows]


def test_events_are_read_after_a_number(store: Store) -> None:
    store.write(a_session_with_run())
    for first, last in ((0, 4), (5, 5), (6, 9)):
        assert store.write(events.append_batch("r1", 1, first, last, f"[{first}]"))
    expected = {-1: [0, 5, 6], 0: [0, 5, 6], 3: [0, 5, 6], 4: [5, 6], 5: [6], 8: [6], 9: [], 10: []}
    for seq, batches in expected.items():
        assert [row.first_seq for row in store.read(events.list_after("r1", seq))] == batches
    assert store.read(events.list_after("r1", 7))[0].events == "[6]"
    assert store.read(events.list_after("absent", -1)) == []


def test_a_gap_in_the_numbers_hides_no_event(store: Store) -> None:
    store.write(a_session_with_run())
    for first, last in ((3, 4), (1_000_005, 1_000_005)):
        store.write(events.append_batch("r1", 1, first, last, "[]"))
    found = {
        seq: len(store.read(events.list_after("r1", seq))) for seq in (-1, 0, 2, 3, 4, 5, 1_000_004)
    }
    assert found == {-1: 2, 0: 2, 2: 2, 3: 2, 4: 1, 5: 1, 1_000_004: 1}


def test_events_are_read_in_batches_without_gap_or_repeat(store: Store) -> None:
    @unit
    def work() -> Steps[None]:
        yield from a_session_with_run()
        for number in range(150):
            yield from events.append_batch("r1", 1, 2 * number, 2 * number + 1, f"{number}")

    store.write(work())
    assert len(store.read(events.list_after("r1", -1))) == 64
    seq = -1
    texts = list[str]()
    while rows := store.read(events.list_after("r1", seq, 50)):
        seq = rows[-1].last_seq
        texts += [row.events for row in rows]
    assert texts == [str(number) for number in range(150)]
    assert seq == store.read(events.get_last_seq("r1"))


def test_the_last_number_is_returned(store: Store) -> None:
    store.write(a_session_with_run())
    assert store.read(events.get_last_seq("r1")) == -1
    store.write(events.append_batch("r1", 1, 0, 0, "[]"))
    assert store.read(events.get_last_seq("r1")) == 0
    store.write(events.append_batch("r1", 1, 1, 7, "[]"))
    assert store.read(events.get_last_seq("r1")) == 7


def test_a_repeated_batch_is_stored_once(store: Store) -> None:
    store.write(a_session_with_run())
    assert store.write(events.append_batch("r1", 1, 0, 1, "a\nb\n"))
    assert store.write(events.append_batch("r1", 1, 0, 2, "a\nb\nc\n"))
    assert stored(store) == [(0, 2, "a\nb\nc\n")]


def test_only_the_current_attempt_appends_events(store: Store) -> None:
    store.write(a_session_with_run())
    assert not store.write(events.append_batch("r1", 2, 0, 0, "[]"))
    assert not store.write(events.append_batch("absent", 1, 0, 0, "[]"))
    assert store.write(events.append_batch("r1", 1, 0, 0, "pending"))
    store.write(runs.claim("r1", 1, "w1", START))
    assert store.write(events.append_batch("r1", 1, 1, 1, "running"))
    store.write(runs.finish(an_end()))
    assert not store.write(events.append_batch("r1", 1, 2, 2, "late"))
    assert not store.write(events.append_batch("r1", 1, 1, 1, "changed"))
    assert [text for _, _, text in stored(store)] == ["pending", "running"]


def test_the_last_batch_is_stored_with_the_end(store: Store) -> None:
    @unit
    def work(status: str) -> Steps[bool]:
        kept = yield from events.append_batch("r1", 1, 0, 0, status)
        ended = (yield from runs.finish(an_end(status=status))) is not None
        assert kept is ended
        return ended

    store.write(a_session_with_run())
    assert store.write(work("COMPLETED"))
    assert not store.write(work("ERROR"))
    assert stored(store) == [(0, 0, "COMPLETED")]


def test_a_worker_considered_dead_appends_nothing(store: Store) -> None:
    @unit
    def lose() -> Steps[None]:
        last = yield from events.get_last_seq("r1")
        yield from events.append_batch("r1", 1, last + 1_000_000, last + 1_000_000, "lost")
        assert (yield from runs.finish(an_end(status="ERROR"), lost=True))

    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    store.write(events.append_batch("r1", 1, 0, 4, "first"))
    store.write(lose())
    for attempt in (1, 2):
        assert not store.write(events.append_batch("r1", attempt, 5, 9, "late"))
    assert stored(store) == [(0, 4, "first"), (1_000_004, 1_000_004, "lost")]


def an_id(microseconds: int, name: str) -> str:
    """Return the id of a run that was created at a time."""
    return f"{lower_bound_id(microseconds // 1000)}-{name}"


def test_events_are_deleted_some_time_after_the_end(store: Store) -> None:
    day = START + 50_000_000
    old = an_id(START, "old")
    long = an_id(START, "long")
    new = an_id(day, "new")
    live = an_id(START, "live")

    @unit
    def work() -> Steps[None]:
        yield from sessions.create(a_session())
        for run_id, finished_at in ((old, day - 1), (long, day + 5), (new, day), (live, None)):
            yield from runs.create(a_run(run_id))
            yield from events.append_batch(run_id, 1, 0, 1, "[]")
            if finished_at is not None:
                yield from runs.finish(an_end(run_id, finished_at=finished_at))

    store.write(work())
    assert not store.read(events.has_older(day - 1))
    assert store.read(events.has_older(day))
    assert store.write(events.delete_older(day)) == 1
    assert store.write(events.delete_older(day)) == 0
    assert not store.read(events.has_older(day))
    assert [len(stored(store, run_id)) for run_id in (old, long, new, live)] == [0, 1, 1, 1]
    assert store.write(events.delete_older(day + 1)) == 1
    assert store.write(events.delete_older(day + 6)) == 1
    assert [len(stored(store, run_id)) for run_id in (old, long, new, live)] == [0, 0, 0, 1]


def test_events_are_deleted_run_by_run(store: Store) -> None:
    ids = [an_id(START, f"{number:03}") for number in range(6)]

    @unit
    def add_runs_at_once() -> Steps[None]:
        for run_id in ids:
            yield from runs.create(a_run(run_id))
        for number in range(200):
            for run_id in ids:
                yield from events.append_batch(run_id, 1, number, number, "[]")
        for run_id in ids:
            yield from runs.finish(an_end(run_id, finished_at=START + 9))

    store.write(sessions.create(a_session()))
    store.write(add_runs_at_once())
    removed: list[int] = []
    while not removed or removed[-1]:
        removed.append(store.write(events.delete_older(START + 10)))
        assert {len(store.read(events.list_after(run_id, -1, 1000))) for run_id in ids} <= {0, 200}
    assert sum(removed) == 1200
    assert max(removed) < 1200


def test_ids_are_in_the_order_of_their_creation() -> None:
    before = time.time_ns() // 1_000_000
    made = new_id()
    after = time.time_ns() // 1_000_000
    assert lower_bound_id(before) < made < lower_bound_id(after + 1)


ADD_BATCHES = Sql(
    "INSERT INTO run_events (run_id, first_seq, last_seq, events)"
    " WITH RECURSIVE numbers (number) AS (SELECT 0 UNION ALL SELECT number + 1 FROM numbers"
    " WHERE number < 1999) SELECT 'r1', number * 10, number * 10 + 9, cast(:text as text)"
    " FROM numbers"
)


def test_late_reader_of_20_000_events_needs_few_statements(store: Store) -> None:
    """The run goes on meanwhile: each read finds a new batch at its end, and catches up."""
    store.write(a_session_with_run())
    store.run(store.database.write(ADD_BATCHES.execute(text="x" * 1_500)))
    position = -1
    reads = 0
    last = 19_999
    while position < last:
        part = store.read(events.read_part("r1", position))
        assert part.batches[0].first_seq == position + 1
        assert part.newest == last
        position = part.batches[-1].last_seq
        reads = reads + 1
        if reads % 2:
            store.write(events.append_batch("r1", 1, last + 1, last + 10, "x" * 1_500))
            last += 10
    assert reads <= 80
