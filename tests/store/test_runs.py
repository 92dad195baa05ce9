"""The repository of runs, on both engines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentctl.records.run_messages import RunMessageRow
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import queue, run_messages, run_reads, runs, sessions
from agentctl.store.repositories.runs import FinishedRun
from agentctl.store.visibility import EVERYONE, Visibility
from tests.kit.rows import START, a_run, a_session, a_session_with_run, a_whole_run, an_end
from tests.store.conftest import Store

FINAL = ["COMPLETED", "ERROR", "CANCELLED"]


def test_a_new_run_is_pending_and_numbered(store: Store) -> None:
    store.write(sessions.create(a_session()))
    new = a_run(background=True, input="Grüße", owner="w1", user_id=None)
    assert store.write(runs.create(new)) == 1
    assert store.write(runs.create(a_run("r2"))) == 2
    row = store.read(run_reads.get("r1", EVERYONE))
    assert row is not None
    assert (row.status, row.attempt, row.seq, row.background, row.input) == (
        "PENDING", 1, 1, 1, "Grüße",
    )  # fmt: skip
    assert (row.owner, row.user_id, row.messages, row.finished_at) == ("w1", None, None, None)


def test_a_run_keeps_the_objects_of_its_request(store: Store) -> None:
    store.write(sessions.create(a_session()))
    store.write(runs.create(a_run(metadata='{"a":1}', session_state='{"b":[2]}')))
    store.write(runs.create(a_run("r2")))
    store.write(runs.create(a_run("m1", parent_run_id="r1", metadata="{}", session_state="{}")))
    rows = [store.read(run_reads.get(run_id, EVERYONE)) for run_id in ("r1", "r2", "m1")]
    assert [(row.metadata, row.session_state) for row in rows if row is not None] == [
        ('{"a":1}', '{"b":[2]}'), (None, None), (None, None),
    ]  # fmt: skip


def test_native_messages_are_read_for_their_kind_only(store: Store) -> None:
    store.write(sessions.create(a_session()))
    for run_id, kind in (("r1", "langgraph"), ("r2", "pydantic-ai"), ("r3", None)):
        native = None if kind is None else f'["{run_id}"]'
        end = an_end(run_id, messages=f'[{{"role":"{run_id}"}}]')
        store.write(
            a_whole_run(a_run(run_id), replace(end, native_kind=kind, native_history=native))
        )
    recent = store.read(run_reads.list_recent("s1", 5, 10_000, native_kinds=("pydantic-ai",)))
    assert [(run.run_id, run.messages, run.native) for run in recent] == [
        ("r1", '[{"role":"r1"}]', None),
        ("r2", '[{"role":"r2"}]', '["r2"]'),
        ("r3", '[{"role":"r3"}]', None),
    ]
    newest = store.read(run_reads.list_recent("s1", 2, 10_000, native_kinds=("pydantic-ai",)))
    assert newest == recent[1:]

    both = store.read(
        run_reads.list_recent("s1", 5, 10_000, native_kinds=("pydantic-ai", "langgraph"))
    )
    assert [run.native for run in both] == ['["r1"]', '["r2"]', None]


def test_a_run_without_a_session_is_not_created(store: Store) -> None:
    assert store.write(runs.create(a_run())) is None
    assert store.read(run_reads.get_state("r1")) is None


def test_only_its_owner_sees_a_run(store: Store) -> None:
    store.write(a_session_with_run())
    for visibility in (Visibility(False, "bob"), Visibility(False, None)):
        assert store.read(run_reads.get("r1", visibility)) is None
        assert store.read(run_reads.get_state("r1", visibility)) is None
    assert store.read(run_reads.get("r1", Visibility(False, "ann"))) is not None
    assert store.read(run_reads.get("absent", EVERYONE)) is None


def test_a_run_is_claimed_once(store: Store) -> None:
    store.write(a_session_with_run())
    assert not store.write(runs.claim("r1", 2, "w1", START))
    assert store.write(runs.claim("r1", 1, "w1", START + 4))
    assert not store.write(runs.claim("r1", 1, "w2", START + 5))
    row = store.read(run_reads.get("r1", EVERYONE))
    assert row is not None
    assert (row.status, row.owner, row.started_at) == ("RUNNING", "w1", START + 4)


def test_an_end_stores_the_result_of_the_run(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    end = an_end(
        status="ERROR",
        error_code="TOOL_FAILED",
        error_detail="x",
        late_result=True,
        output='{"n":1}',
        reasoning_content="so",
    )
    assert store.write(runs.finish(end))
    row = store.read(run_reads.get("r1", EVERYONE))
    assert row is not None
    for name in (
        "status",
        "content",
        "history",
        "messages",
        "tools",
        "metrics",
        "error_code",
        "error_detail",
        "finished_at",
        "stopped_at",
        "output",
        "reasoning_content",
    ):
        assert getattr(row, name) == getattr(end, name)
    assert row.late_result == 1


@pytest.mark.parametrize("first", FINAL)
def test_a_final_status_never_changes(store: Store, first: str) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    if first == "CANCELLED":
        store.write(runs.request_cancel("r1", START, "ann", None))
    assert store.write(runs.finish(an_end(status=first)))
    before = store.read(run_reads.get("r1", EVERYONE))
    session = store.read(sessions.get("s1", EVERYONE))
    for status in FINAL:
        assert not store.write(runs.finish(an_end(status=status, content="late")))
    assert not store.write(runs.claim("r1", 1, "w1", START))
    assert not store.write(runs.request_cancel("r1", START, "bob", "late"))
    assert store.read(run_reads.get("r1", EVERYONE)) == before
    assert store.read(sessions.get("s1", EVERYONE)) == session


def test_the_end_of_an_older_attempt_is_rejected(store: Store) -> None:
    store.write(a_session_with_run())
    assert not store.write(runs.finish(an_end(attempt=2)))
    row = store.read(run_reads.get_state("r1"))
    assert row is not None
    assert row.status == "PENDING"


@pytest.mark.parametrize("owner", ["w1", None])
def test_a_cancel_of_a_run_that_waits_needs_the_end_in_its_transaction(
    store: Store, owner: str | None
) -> None:
    store.write(a_session_with_run(owner=owner))
    assert not store.write(runs.request_cancel("r1", START + 7, "ann", None))
    assert store.write(runs.request_cancel("r1", START + 7, "ann", "no need", claimed=True))
    row = store.read(run_reads.get_state("r1"))
    assert row is not None
    assert (row.status, row.finished_at) == ("PENDING", None)
    assert (row.cancel_requested_at, row.cancel_requested_by) == (START + 7, "ann")
    assert row.cancel_reason == "no need"
    assert not store.write(runs.claim("r1", 1, "w1", START + 8))


def test_the_end_of_an_accepted_run_gives_the_turn_to_the_next_one(store: Store) -> None:
    store.write(a_session_with_run(owner="w1"))
    store.write(runs.create(a_run("r2")._replace(queue_turn=queue.AFTER_RUNS)))
    assert not store.write(queue.add("s1", START + 6))
    end = an_end(status="ERROR", finished_at=START + 7)
    finished = store.write(runs.finish(end))
    assert finished == FinishedRun("s1", is_root=True, has_messages=False, advanced=True)
    row = store.read(run_reads.get_state("r2"))
    assert row is not None
    assert (row.status, row.queue_turn) == ("PENDING", START + 7)


def test_a_cancel_of_a_running_run_is_recorded_once_and_ends_nothing(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(runs.claim("r1", 1, "w1", START))
    assert store.write(runs.request_cancel("r1", START + 7, "ann", None))
    assert not store.write(runs.request_cancel("r1", START + 8, "bob", "again"))
    state = store.read(run_reads.get_state("r1"))
    assert state is not None
    assert (state.status, state.finished_at) == ("RUNNING", None)
    assert (state.cancel_requested_at, state.cancel_requested_by) == (START + 7, "ann")


def test_the_worker_of_a_pending_run_can_store_its_end(store: Store) -> None:
    store.write(a_session_with_run())
    assert store.write(runs.request_cancel("r1", START, "ann", None, claimed=True))
    assert not store.write(runs.claim("r1", 1, "w1", START))
    assert store.write(runs.finish(an_end(status="CANCELLED")))


def test_a_cancel_of_an_unknown_run_stores_nothing(store: Store) -> None:
    assert not store.write(runs.request_cancel("r1", START, "ann", None))
    store.write(a_session_with_run())
    state = store.read(run_reads.get_state("r1"))
    assert state is not None
    assert state.cancel_requested_at is None


def test_a_worker_finds_its_cancel_requests(store: Store) -> None:
    store.write(sessions.create(a_session()))
    for run_id, owner in (("r1", "w1"), ("r2", "w1"), ("r3", "w2"), ("r4", "w1")):
        store.write(runs.create(a_run(run_id)))
        store.write(runs.claim(run_id, 1, owner, START))
    for number, run_id in enumerate(("r4", "r3", "r1")):
        store.write(runs.request_cancel(run_id, START + number, "ann", "why"))
    store.write(runs.finish(an_end("r1")))
    requests = store.read(run_reads.list_worker_requests("w1"))
    assert [(state.run_id, state.cancel_reason) for state in requests] == [("r4", "why")]


def test_a_worker_finds_the_messages_that_wait_for_its_runs(store: Store) -> None:
    store.write(sessions.create(a_session()))
    for run_id, owner in (("r1", "w1"), ("r2", "w1"), ("r3", "w2"), ("r4", "w1")):
        store.write(runs.create(a_run(run_id)))
        store.write(runs.claim(run_id, 1, owner, START))
        if run_id != "r1":
            store.write(run_messages.send(_a_message(run_id)))
    store.write(runs.finish(an_end("r4")))
    requests = store.read(run_reads.list_worker_requests("w1"))
    assert [(state.run_id, state.cancel_requested_at) for state in requests] == [("r2", None)]

    assert store.write(run_messages.deliver("r2", 1, None, (), START))
    assert store.read(run_reads.list_worker_requests("w1")) == []


def _a_message(run_id: str) -> RunMessageRow:
    return RunMessageRow(
        message_id=f"message-{run_id}",
        run_id=run_id,
        seq=0,
        status="waiting",
        late="next_run",
        created_at=START,
        created_by=None,
        request_id=None,
        settled_at=None,
        attempt=None,
        model_call_id=None,
        reason=None,
        content="hello",
        next_run=None,
    )


def test_histories_are_those_of_top_level_runs_in_order(store: Store) -> None:
    @unit
    def work() -> Steps[None]:
        yield from sessions.create(a_session())
        for number in range(1, 8):
            run_id = f"r{number}"
            yield from a_whole_run(a_run(run_id), an_end(run_id))
            member = a_run(f"m{number}", parent_run_id=run_id)
            yield from a_whole_run(member, an_end(f"m{number}"))
        yield from runs.create(a_run("r8"))

    store.write(work())
    histories = store.read(run_reads.list_histories("s1"))
    ends = [an_end(f"r{number}").history or "" for number in range(1, 8)]
    assert [b"[%b]" % history.text for history in histories] == [end.encode() for end in ends]
    assert store.read(run_reads.list_histories("s1", histories[4].seq)) == histories[5:]
    recent = store.read(run_reads.list_recent("s1", 3, 10_000))
    assert [run.messages for run in recent] == [an_end(f"r{n}").messages for n in (5, 6, 7)]
    assert store.read(run_reads.list_recent("s1", 0, 10_000)) == []
    sizes = [len(run.messages.encode()) for run in recent]
    for maximum, count in (
        (sum(sizes), 3),
        (sum(sizes) - 1, 2),
        (sizes[2] + sizes[1] - 1, 1),
        (1, 1),
        (0, 1),
    ):
        assert store.read(run_reads.list_recent("s1", 3, maximum)) == recent[3 - count :]
    assert store.read(run_reads.list_open_in_session("s1")) == ["r8"]


def test_runs_of_a_session_are_listed_oldest_first(store: Store) -> None:
    @unit
    def work() -> Steps[None]:
        yield from sessions.create(a_session())
        for number in range(1, 6):
            yield from runs.create(a_run(f"r{number}", created_at=START - number))

    store.write(work())
    everything = store.read(run_reads.list_in_session("s1", limit=100))
    assert [row.run_id for row in everything] == ["r1", "r2", "r3", "r4", "r5"]
    part = store.read(run_reads.list_in_session("s1", limit=2, after_seq=everything[1].seq))
    assert [row.run_id for row in part] == ["r3", "r4"]
    assert store.read(run_reads.list_in_session("absent", limit=100)) == []


def test_children_are_found_for_any_number_of_parents(store: Store) -> None:
    parents = [f"r{number}" for number in range(45)]

    @unit
    def work() -> Steps[None]:
        yield from sessions.create(a_session())
        for run_id in parents:
            yield from runs.create(a_run(run_id))
        for run_id in ("r0", "r44"):
            for number in (2, 1):
                child = f"{run_id}-{number}"
                yield from runs.create(a_run(child, parent_run_id=run_id))

    store.write(work())
    found = store.read(run_reads.list_children(parents))
    assert list(found) == parents
    assert (found["r0"], found["r44"], found["r20"]) == (["r0-2", "r0-1"], ["r44-2", "r44-1"], [])
    assert store.read(run_reads.list_children([])) == {}


def test_times_of_a_run_never_go_back(store: Store) -> None:
    """The clock goes back by an hour after each step."""
    hour = 3_600_000_000
    store.write(a_session_with_run())
    store.write(runs.create(a_run("r2", owner="w1")))
    assert store.write(runs.claim("r1", 1, "w1", START - hour))
    store.write(runs.request_cancel("r1", START - 2 * hour, "ann", None))
    assert store.write(
        runs.finish(an_end(status="CANCELLED", finished_at=START - 3 * hour, stopped_at=None))
    )
    assert store.write(runs.record_work_stopped("r1", 1, START - 4 * hour, late_result=False))
    store.write(runs.request_cancel("r2", START - hour, "ann", None, claimed=True))
    store.write(
        runs.finish(an_end("r2", "CANCELLED", finished_at=START - hour, stopped_at=START - hour))
    )
    store.write(runs.create(a_run("r3", created_at=START - hour)))
    session = store.read(sessions.get("s1", EVERYONE))
    assert session is not None
    assert session.updated_at == START
    for run_id, status in (("r1", "CANCELLED"), ("r2", "CANCELLED")):
        row = store.read(run_reads.get(run_id, EVERYONE))
        assert row is not None
        assert row.status == status
        assert {row.created_at, row.cancel_requested_at, row.finished_at, row.stopped_at} == {START}
