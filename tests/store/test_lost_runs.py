"""Orphaned runs, and work that continues after the end of a run; on both engines."""

from __future__ import annotations

import json

import pytest

from agentctl.records.runs import RunRow
from agentctl.records.sessions import SessionRow
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import run_reads, runs, sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import START, a_run, a_session, a_session_with_run, an_end
from tests.store.conftest import Store

HISTORY = json.dumps([{"role": "user", "content": "Grüße"}], ensure_ascii=False)


def run_of(store: Store, run_id: str = "r1") -> RunRow:
    row = store.read(run_reads.get(run_id, EVERYONE))
    assert row is not None
    return row


def session_of(store: Store) -> SessionRow:
    row = store.read(sessions.get("s1", EVERYONE))
    assert row is not None
    return row


@unit
def some_live_runs() -> Steps[None]:
    """Create runs of two workers and without one, with children, in two sessions; two have
    ended."""
    yield from sessions.create(a_session("s1"))
    yield from sessions.create(a_session("s2"))
    for run_id, session_id, parent, owner in (
        ("a", "s1", None, "w1"),
        ("a1", "s1", "a", "w1"),
        ("a11", "s1", "a1", "w1"),
        ("b", "s2", None, "w1"),
        ("b1", "s2", "b", "w1"),
        ("c", "s1", None, "w2"),
        ("d", "s2", None, None),
        ("d1", "s2", "d", None),
        ("e", "s1", None, "w3"),
        ("f", "s2", None, "w1"),
    ):
        yield from runs.create(a_run(run_id, session_id, parent_run_id=parent, owner=owner))
    yield from runs.claim("a", 1, "w1", START)
    yield from runs.finish(an_end("e"))
    yield from runs.finish(an_end("f"))


def test_each_owner_of_live_runs_is_returned_once(store: Store) -> None:
    assert store.read(run_reads.list_live_owners()) == []
    store.write(some_live_runs())
    owners = store.read(run_reads.list_live_owners())
    assert sorted(owners, key=str) == [None, "w1", "w2"]


def test_live_runs_of_a_worker_are_children_first(store: Store) -> None:
    store.write(some_live_runs())
    found = {
        owner: store.read(run_reads.list_live_of_worker(owner))
        for owner in ("w1", "w2", "w3", "W1", None)
    }
    ids = {owner: [row.run_id for row in rows] for owner, rows in found.items()}
    assert ids == {
        "w1": ["a11", "a1", "a", "b1", "b"], "w2": ["c"], "w3": [], "W1": [], None: ["d1", "d"],
    }  # fmt: skip
    assert found["w2"] == [run_of(store, "c")]


def test_a_lost_run_ends_once_and_rejects_its_old_worker(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    lost = an_end(status="ERROR", error_code="WORKER_LOST", stopped_at=START + 9)
    assert store.write(runs.finish(lost, lost=True))
    row = run_of(store)
    session = session_of(store)
    assert (row.status, row.attempt, row.error_code) == ("ERROR", 2, "WORKER_LOST")
    assert (session.total_tokens, session.last_status) == (3, "ERROR")
    for attempt in (1, 2):
        late = an_end(attempt=attempt, content="late")
        assert not store.write(runs.finish(late))
        assert not store.write(runs.finish(late, lost=True))
        assert not store.write(runs.claim("r1", attempt, "w1", START))
    assert not store.write(runs.record_work_stopped("r1", 1, START, True))
    assert (run_of(store), session_of(store)) == (row, session)


def test_the_end_of_a_lost_run_replaces_the_cancel_reason(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    store.write(runs.request_cancel("r1", START + 7, "ann", "no need"))
    end = an_end(status="CANCELLED", cancel_reason="no need; the worker was lost")
    assert store.write(runs.finish(end, lost=True))
    row = run_of(store)
    assert (row.status, row.cancel_reason) == ("CANCELLED", "no need; the worker was lost")
    assert (row.cancel_requested_at, row.cancel_requested_by) == (START + 7, "ann")


@pytest.mark.parametrize("reason", ["no need", None])
def test_an_end_without_a_reason_keeps_the_cancel_reason(store: Store, reason: str | None) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    store.write(runs.request_cancel("r1", START, "ann", reason))
    assert store.write(runs.finish(an_end(status="CANCELLED")))
    row = run_of(store)
    assert (row.cancel_reason, row.attempt) == (reason, 1)


@pytest.mark.parametrize("late_result", [False, True])
def test_work_that_stops_late_is_recorded_once(store: Store, late_result: bool) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    assert not store.write(runs.record_work_stopped("r1", 1, START + 8, late_result))
    store.write(runs.finish(an_end(status="ERROR", stopped_at=None)))
    before = run_of(store)
    session = session_of(store)
    state = store.read(run_reads.get_state("r1"))
    assert state is not None
    assert (before.stopped_at, state.stopped_at) == (None, None)
    assert not store.write(runs.record_work_stopped("r1", 2, START + 20, late_result))
    assert store.write(runs.record_work_stopped("r1", 1, START + 20, late_result))
    assert not store.write(runs.record_work_stopped("r1", 1, START + 21, not late_result))
    after = run_of(store)
    assert (after.stopped_at, after.late_result) == (START + 20, int(late_result))
    assert (after.status, after.content, after.finished_at) == (
        before.status,
        before.content,
        before.finished_at,
    )
    assert session_of(store) == session
    state = store.read(run_reads.get_state("r1"))
    assert state is not None
    assert state.stopped_at == START + 20


def test_names_of_the_work_after_the_end(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    store.write(runs.set_holding("r1", 1, '["x"]'))
    assert run_of(store).holding is None
    store.write(runs.finish(an_end(stopped_at=None, holding='["x","y"]')))
    assert store.read(run_reads.list_live_owners()) == []
    assert store.read(run_reads.list_owners_at_work()) == ["w1"]
    store.write(runs.set_holding("r1", 2, '["other attempt"]'))
    store.write(runs.set_holding("r1", 1, '["y"]'))
    assert run_of(store).holding == '["y"]'
    state = store.read(run_reads.get_state("r1"))
    assert state is not None
    assert state.holding == '["y"]'
    assert store.write(runs.record_work_stopped("r1", 1, START + 20, True))
    store.write(runs.set_holding("r1", 1, '["late"]'))
    assert (run_of(store).holding, run_of(store).stopped_at) == (None, START + 20)
    assert store.read(run_reads.list_owners_at_work()) == []


@pytest.mark.parametrize("exited", [False, True])
def test_a_dead_worker_has_no_work(store: Store, exited: bool) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    store.write(runs.finish(an_end(stopped_at=None, holding='["x"]')))
    store.write(runs.record_worker_gone("other", START + 20, exited=True))
    assert run_of(store).holding == '["x"]'
    store.write(runs.record_worker_gone("w1", START + 20, exited=exited))
    assert (run_of(store).holding, run_of(store).stopped_at) == (
        None,
        START + 20 if exited else None,
    )


def test_work_that_stopped_in_time_is_not_recorded_again(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.finish(an_end()))
    assert not store.write(runs.record_work_stopped("r1", 1, START + 20, True))
    assert not store.write(runs.record_work_stopped("absent", 1, START, True))
    row = run_of(store)
    assert (row.stopped_at, row.late_result) == (START + 9, 0)


def test_a_dropped_result_stays_recorded(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.finish(an_end(status="ERROR", stopped_at=None, late_result=True)))
    assert store.write(runs.record_work_stopped("r1", 1, START + 20, False))
    assert run_of(store).late_result == 1
