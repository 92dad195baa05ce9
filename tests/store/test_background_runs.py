"""Background work in both databases: one live run of each purpose in a session."""

from __future__ import annotations

import asyncio

import pytest

from agentctl.errors import Conflict, NotFound
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunEnd
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.life.background import admit_background_run
from agentctl.runs.log.results import parse_summary
from agentctl.store.repositories import run_reads, runs, sessions
from tests.kit.rows import a_run
from tests.kit.run_specs import a_spec
from tests.store.conftest import Store


def _spec(parent: str, purpose: str) -> RunSpec:
    return a_spec(
        new_id(),
        "s",
        parent_run_id=parent,
        component_id="writer",
        user_id="me",
        background=True,
        survives_disconnect=True,
        purpose=purpose,
        covered=1,
    )


@pytest.fixture
def parent(store: Store) -> str:
    """The id of a run of the session `s`."""
    store.write(sessions.create(sessions.build_session("s", "agent", user_id="me", now=now())))
    run = a_run(new_id(), "s", component_id="writer", user_id="me", owner="w")
    store.write(runs.create(run))
    return run.spec.run_id


def test_a_session_has_one_live_run_of_a_purpose(store: Store, parent: str) -> None:
    first = _spec(parent, "summary")
    store.write(admit_background_run(first, "w"))
    with pytest.raises(Conflict):
        store.write(admit_background_run(_spec(parent, "summary"), "w"))
    store.write(admit_background_run(_spec(parent, "memory"), "w"))
    assert store.read(run_reads.list_background_work("s", "summary")) == [first.run_id]
    assert store.read(run_reads.list_open_in_session("s")) == [parent]
    store.write(runs.claim(first.run_id, 1, "w", now()))
    end = RunEnd(
        first.run_id, 1, "COMPLETED", "x", None, "[]", "[]", None, None, None, now(), now()
    )
    assert store.write(runs.finish(end))
    store.write(admit_background_run(_spec(parent, "summary"), "w"))


def test_a_deleted_session_gets_no_background_work(store: Store, parent: str) -> None:
    store.write(sessions.delete("s"))
    with pytest.raises(NotFound):
        store.write(admit_background_run(_spec(parent, "summary"), "w"))


def test_of_many_callers_at_once_one_starts_the_work(store: Store, parent: str) -> None:
    admitted = list[str]()
    refused = list[str]()

    async def admit_all() -> None:
        async def admit(spec: RunSpec) -> None:
            try:
                await store.database.write(admit_background_run(spec, "w"))
                admitted.append(spec.run_id)
            except Conflict:
                refused.append(spec.run_id)

        specs = [_spec(parent, "summary") for _ in range(16)]
        await asyncio.gather(*map(admit, specs))

    store.run(admit_all())
    assert (len(admitted), len(refused)) == (1, 15)
    assert store.read(run_reads.list_background_work("s", "summary")) == admitted


@pytest.mark.parametrize(
    ("stored", "text", "covered"),
    [
        (None, "", 0),
        ('{"summary":"x","covered_runs":3,"updated_at":"y"}', "x", 3),
        ('{"summary":"of another program","topics":[]}', "of another program", 0),
        ('{"summary":1}', "", 0),
        ("[]", "", 0),
    ],
)
def test_a_stored_summary_may_be_of_another_program(
    stored: str | None, text: str, covered: int
) -> None:
    found = parse_summary(stored)
    assert (found.text, found.covered) == (text, covered)
