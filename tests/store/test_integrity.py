"""The scan and the repairs of `agentctl doctor --runs`, on both engines."""

from __future__ import annotations

import apsw

from agentctl.store.repositories import integrity, run_reads, runs, sessions
from agentctl.store.repositories.events import append_batch
from agentctl.store.repositories.integrity import ScannedRun, StoredMessages
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import START, a_run, a_session, a_session_with_run, a_whole_run, an_end
from tests.store.conftest import Store

CALLS = '[{"role": "assistant", "tool_calls": [{"id": "c", "name": "add"}]}]'


def test_a_scan_returns_every_run_once(store: Store) -> None:
    store.write(sessions.create(a_session()))
    for number in range(5):
        store.write(runs.create(a_run(f"r{number}", owner="w1")))
    seen: list[ScannedRun] = []
    while page := store.read(integrity.scan_runs(seen[-1].run_id if seen else "", 2)):
        assert len(page) <= 2
        seen += page
    assert [run.run_id for run in seen] == ["r0", "r1", "r2", "r3", "r4"]
    assert seen[0] == ScannedRun(
        "r0", "s1", "w1", "PENDING", 1, START, has_session=1, live=1, calls=0
    )


def test_only_ended_runs_report_tool_calls(store: Store) -> None:
    store.write(sessions.create(a_session()))
    store.write(a_whole_run(a_run("r1"), an_end("r1", messages=CALLS)))
    store.write(a_whole_run(a_run("r2"), an_end("r2")))
    store.write(a_whole_run(a_run("r3"), an_end("r3", messages=None)))
    found = store.read(integrity.scan_runs("", 10))
    assert [(run.live, run.calls) for run in found] == [(0, 1), (0, 0), (0, 0)]
    assert store.read(integrity.get_messages("r1")) == StoredMessages(CALLS, "[]")
    assert store.read(integrity.get_messages("r3")) == StoredMessages(None, "[]")
    assert store.read(integrity.get_messages("absent")) is None


def test_messages_are_replaced_only_if_unchanged(store: Store) -> None:
    store.write(sessions.create(a_session()))
    store.write(a_whole_run(a_run(), an_end(messages=CALLS)))
    assert not store.write(integrity.replace_messages("r1", "[]", StoredMessages("[1]", None)))
    assert store.write(integrity.replace_messages("r1", CALLS, StoredMessages("[2]", "[3]")))
    assert store.read(integrity.get_messages("r1")) == StoredMessages("[2]", "[3]")


def test_a_live_run_is_not_repaired(store: Store) -> None:
    store.write(a_session_with_run())
    assert store.read(integrity.get_messages("r1")) is None
    assert not store.write(integrity.replace_messages("r1", CALLS, StoredMessages("[]", None)))


def test_a_run_with_a_session_is_not_deleted(store: Store) -> None:
    store.write(a_session_with_run())
    assert store.write(integrity.delete_orphan("r1", None)) is None
    assert store.write(integrity.delete_orphan("absent", None)) is None
    assert store.read(run_reads.get_state("r1")) is not None


def test_a_run_without_a_session_is_deleted_with_its_events(sqlite: SqliteDatabase) -> None:
    store = Store(sqlite)
    store.write(sessions.create(a_session()))
    store.write(runs.create(a_run("r1", owner="w1")))
    store.write(runs.create(a_run("r2")))
    store.write(append_batch("r1", 1, 0, 0, "RunStarted {}\n"))
    store.write(runs.finish(an_end("r2")))
    by_hand = apsw.Connection(str(sqlite.path))
    by_hand.execute("DELETE FROM sessions").fetchall()
    by_hand.close()
    assert [run.has_session for run in store.read(integrity.scan_runs("", 10))] == [0, 0]
    assert store.write(integrity.delete_orphan("r1", None)) is None
    assert store.write(integrity.delete_orphan("r1", "w2")) is None
    assert store.write(integrity.delete_orphan("r1", "w1")) == 1
    assert store.write(integrity.delete_orphan("r2", None)) == 0
    assert store.read(integrity.scan_runs("", 10)) == []
    assert store.read(run_reads.get("r1", EVERYONE)) is None
