"""The cost of a durable run: statements that other runs do not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.auth.principal import local_principal
from agentctl.interface.requests import RunRequest
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.service.service import Service
from agentctl.store.database import Sql, Steps, Work
from tests.kit.site import Site, answer, call

TABLES = ("run_steps", "run_checkpoints")

NOTES = [answer(call("note", f"note-{n}", text=f"step {n}")) for n in range(5)]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of this process that name a table of durable runs."""
    seen = list[str]()
    begin = Work.__iter__
    last = list[object]()

    def record(work: Work[Any]) -> Steps[Any]:
        steps = begin(work)
        rows = None
        while True:
            try:
                statement = steps.send(rows) if rows is not None else next(steps)
            except StopIteration as end:
                return end.value
            # A unit yields the statements of the units in it.
            if any(table in statement.sql for table in TABLES) and not (
                last and last[0] is statement
            ):
                seen.append(str(statement.sql))
                last[:] = [statement]
            rows = yield statement

    monkeypatch.setattr(Work, "__iter__", record)
    return seen


async def test_only_durable_runs_write_steps(site: Site, statements: list[str]) -> None:
    plan = RunRequest(json.dumps([*NOTES, answer(text="done")]))
    async with Service.open(site.deployment.settings, create=True) as service:
        operations = service.operations_for(local_principal("ann"))
        plain = (await operations.runs.create("agent", "plain", plan)).value
        assert statements == []
        durable = (await operations.runs.create("agent", "lasting", plan)).value
    assert plain["status"] == durable["status"] == "COMPLETED"
    written = [text.split()[0] for text in statements]
    # The checkpoint; for each answer itself and the begin of its call, and the result of the call;
    # the end drops both.
    assert written.count("INSERT") == 1 + 2 * len(NOTES)
    assert written.count("UPDATE") == len(NOTES)
    assert written.count("DELETE") == 2
    assert len(written) == 1 + 3 * len(NOTES) + 2


async def test_end_of_an_approved_call_is_one_transaction(site: Site) -> None:
    """A server that is killed between two would lose what the call has changed in the session."""
    plan = [answer(call("refund", "c", amount=1, to="bob")), answer(text="done")]
    async with Service.open(site.deployment.settings, create=True) as service:
        operations = service.operations_for(local_principal("ann"))
        run = (await operations.runs.create("agent", "lasting", RunRequest(json.dumps(plan)))).value
        database = service.hosting.databases.system
        states = list[tuple[list[str], list[str]]]()
        execution = Sql("SELECT execution FROM approvals WHERE run_id = :run_id")
        steps = Sql("SELECT state FROM run_steps WHERE run_id = :run_id AND call_id = 'c'")
        write = database.write

        async def observe(work: Work[Any]) -> Any:
            result = await write(work)
            call_state = await database.read(execution.rows(str, run_id=run["run_id"]))
            states.append((call_state, await database.read(steps.rows(str, run_id=run["run_id"]))))
            return result

        database.write = observe  # type: ignore[method-assign]
        (asked,) = run["approvals"]
        decision = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
        request = ContinueRequest((decision,))
        ended = (
            await operations.runs.continue_run("agent", "lasting", run["run_id"], request)
        ).value
    assert ended["status"] == "COMPLETED"
    begun = states.index((["executing"], []))
    both = states.index((["done"], ["done"]))
    assert (["done"], []) not in states[begun:both]
