"""The repository of sessions, on both engines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.records.sessions import TOKEN_COUNTERS, SessionRow
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, run_reads, runs, sessions
from agentctl.store.repositories.sessions import UnusableSession
from agentctl.store.visibility import EVERYONE, Visibility
from tests.kit.rows import START, a_run, a_session, a_session_with_run, a_whole_run, an_end
from tests.store.conftest import Store

ANN = Visibility(everyone=False, user_id="ann")
BOB = Visibility(everyone=False, user_id="bob")
NOBODY = Visibility(everyone=False)


def test_a_stored_session_is_read_unchanged(store: Store) -> None:
    row = a_session(
        component_id="echo",
        component_name="Echo",
        component_data='{"name":"Écho"}',
        session_name="Grüße 👋",
        session_state="{}",
        metadata='{"a":[1]}',
    )
    assert store.write(sessions.create(row))
    assert store.read(sessions.get("s1", ANN)) == row
    assert json.loads(row.metrics) == dict.fromkeys(TOKEN_COUNTERS, 0)
    assert len(TOKEN_COUNTERS) == 9


def test_an_existing_id_is_rejected_and_the_session_kept(store: Store) -> None:
    store.write(sessions.create(a_session()))
    assert not store.write(sessions.create(a_session(user_id="bob")))
    found = store.read(sessions.get("s1", EVERYONE))
    assert found is not None
    assert found.user_id == "ann"


@pytest.mark.parametrize("owner", ["ann", None])
def test_a_session_is_visible_to_its_owner_and_to_everyone_scope(
    store: Store, owner: str | None
) -> None:
    store.write(sessions.create(a_session(user_id=owner)))
    for visibility in (ANN, BOB, NOBODY, EVERYONE):
        seen = store.read(sessions.get("s1", visibility)) is not None
        assert seen == visibility.sees(owner)
        assert seen == (visibility is EVERYONE or visibility.user_id == owner)


def test_an_update_replaces_only_given_values(store: Store) -> None:
    store.write(sessions.create(a_session(metadata='{"a":1}', session_state='{"b":2}')))
    changed = store.write(sessions.update("s1", ANN, {"session_name": "New"}, START + 5))
    assert changed is not None
    assert (changed.session_name, changed.metadata, changed.updated_at) == (
        "New", '{"a":1}', START + 5,
    )  # fmt: skip
    cleared = store.write(
        sessions.update("s1", ANN, {"metadata": None, "session_state": "{}"}, START + 6)
    )
    assert cleared is not None
    assert (cleared.session_name, cleared.metadata, cleared.session_state) == ("New", None, "{}")
    assert store.write(sessions.update("s1", ANN, {}, START + 7)) == cleared


def test_merged_state_keeps_the_keys_that_it_does_not_name(store: Store) -> None:
    store.write(sessions.create(a_session(session_state='{"kept":[1],"old":2,"gone":3}')))
    merged = store.write(sessions.merge_state("s1", {"old": {"n": 4}, "new": None}, ["gone", "x"]))
    assert merged is not None
    assert json.loads(merged) == {"kept": [1], "old": {"n": 4}, "new": None}
    assert store.read(sessions.get_state("s1")) == merged
    assert store.write(sessions.merge_state("s1", {}, ["kept", "old", "new"])) is None
    assert store.read(sessions.get_state("s1")) is None
    assert store.write(sessions.merge_state("absent", {"a": 1})) is None


def test_an_invisible_session_cannot_be_changed(store: Store) -> None:
    store.write(sessions.create(a_session()))
    assert store.write(sessions.update("s1", BOB, {"session_name": "x"}, START)) is None
    found = store.read(sessions.get("s1", ANN))
    assert found == a_session()


def test_a_run_creates_a_missing_session(store: Store) -> None:
    new = a_session(component_id="echo", component_data="{}")
    assert store.write(sessions.get_or_create_for_run(new, ANN)) == new
    assert store.read(sessions.get("s1", ANN)) == new


def test_an_empty_session_gets_the_component_of_its_first_run(store: Store) -> None:
    store.write(sessions.create(a_session(session_name="Kept")))
    first = a_session(component_id="echo", component_name="Echo", component_data='{"n":1}')
    opened = store.write(sessions.get_or_create_for_run(first, ANN))
    assert isinstance(opened, SessionRow)
    assert (opened.session_name, opened.component_id) == ("Kept", "echo")
    assert opened.component_data == '{"n":1}'
    second = a_session(component_id="other", component_data='{"n":2}')
    assert store.write(sessions.get_or_create_for_run(second, ANN)) == opened


@pytest.mark.parametrize("given", [{"user_id": "bob"}, {"user_id": None}, {"session_type": "team"}])
def test_a_run_does_not_change_an_unusable_session(store: Store, given: dict[str, Any]) -> None:
    stored = a_session(**given)
    store.write(sessions.create(stored))
    opened = store.write(sessions.get_or_create_for_run(a_session(component_data="{}"), ANN))
    assert opened == UnusableSession(stored)
    assert store.read(sessions.get("s1", EVERYONE)) == stored


def test_everyone_scope_runs_in_any_session_and_keeps_its_owner(store: Store) -> None:
    store.write(sessions.create(a_session(user_id="bob")))
    opened = store.write(sessions.get_or_create_for_run(a_session(user_id="ann"), EVERYONE))
    assert isinstance(opened, SessionRow)
    assert opened.user_id == "bob"


def test_the_counters_are_sums_of_the_runs(store: Store) -> None:
    @unit
    def work() -> Steps[None]:
        yield from sessions.create(a_session())
        for number in (1, 2):
            run_id = f"r{number}"
            end = an_end(run_id, history='["ä"]', finished_at=START + number)
            yield from a_whole_run(a_run(run_id), end)
        member = a_run("m1", parent_run_id="r2")
        yield from a_whole_run(member, an_end("m1", finished_at=START + 3))
        partial = an_end("r3", "ERROR", metrics='{"total_tokens":5,"unknown":1}', history=None)
        yield from a_whole_run(a_run("r3"), partial)

    store.write(work())
    row = store.read(sessions.get("s1", ANN))
    assert row is not None
    metrics = json.loads(row.metrics)
    assert list(metrics) == list(TOKEN_COUNTERS)
    assert (metrics["input_tokens"], metrics["total_tokens"]) == (6, 14)
    assert (row.total_tokens, row.run_count) == (14, 4)
    assert row.history_bytes == 2 * len('["ä"]'.encode())
    assert row.last_status == "ERROR"


def test_the_last_status_is_that_of_the_newest_top_level_run(store: Store) -> None:
    def status() -> str | None:
        row = store.read(sessions.get("s1", ANN))
        assert row is not None
        return row.last_status

    store.write(a_session_with_run("r1"))
    assert status() == "PENDING"
    store.write(runs.claim("r1", 1, "w", START))
    assert status() == "RUNNING"
    store.write(runs.create(a_run("m1", parent_run_id="r1")))
    store.write(runs.claim("m1", 1, "w", START))
    store.write(runs.finish(an_end("m1", "ERROR")))
    assert status() == "RUNNING"
    store.write(runs.create(a_run("r2", owner="w1")))
    store.write(runs.finish(an_end("r1")))
    assert status() == "PENDING"
    store.write(runs.request_cancel("r2", START, "ann", None, claimed=True))
    store.write(runs.finish(an_end("r2", "CANCELLED")))
    assert status() == "CANCELLED"


def test_an_older_run_does_not_replace_the_last_status(store: Store) -> None:
    def status() -> str | None:
        row = store.read(sessions.get("s1", ANN))
        assert row is not None
        return row.last_status

    store.write(a_session_with_run("r1"))
    store.write(runs.create(a_run("r2")))
    store.write(runs.create(a_run("r3")))
    store.write(runs.claim("r1", 1, "w", START))
    assert status() == "PENDING"
    store.write(runs.finish(an_end("r2", "ERROR")))
    assert status() == "PENDING"
    store.write(runs.finish(an_end("r1")))
    assert status() == "PENDING"


def test_the_first_run_names_the_session(store: Store) -> None:
    store.write(sessions.create(a_session()))
    store.write(runs.create(a_run("r1", session_name="first")))
    store.write(runs.create(a_run("r2", session_name="second")))
    row = store.read(sessions.get("s1", ANN))
    assert row is not None
    assert row.session_name == "first"


def test_deleting_a_session_deletes_its_runs_and_events(store: Store) -> None:
    store.write(a_session_with_run("r1", "s1"))
    store.write(a_session_with_run("r2", "s2"))
    for run_id in ("r1", "r2"):
        store.write(events.append_batch(run_id, 1, 0, 3, "[]"))
    assert store.write(sessions.delete("s1"))
    assert not store.write(sessions.delete("s1"))
    assert store.read(sessions.get("s1", EVERYONE)) is None
    assert store.read(run_reads.get_state("r1")) is None
    assert store.read(events.list_after("r1", -1)) == []
    assert store.read(run_reads.get_state("r2")) is not None
    assert len(store.read(events.list_after("r2", -1))) == 1


def test_late_writes_to_a_deleted_session_are_dropped(store: Store) -> None:
    store.write(a_session_with_run())
    store.write(sessions.delete("s1"))
    assert not store.write(runs.claim("r1", 1, "w", START))
    assert not store.write(runs.finish(an_end()))
    assert not store.write(events.append_batch("r1", 1, 0, 1, "[]"))
    assert store.write(runs.create(a_run("r9"))) is None
    assert store.read(sessions.get("s1", EVERYONE)) is None
