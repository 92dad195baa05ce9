"""The cost of a durable run: statements that other runs do not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.auth.principal import local_principal
from agentctl.requests import RunRequest
from agentctl.service.service import Service
from agentctl.store.database import Steps, Work
from tests.gated.site import Site, answer, call

TABLES = ("run_steps", "run_checkpoints")

NOTES = [answer(call("note", f"note-{n}", text=f"step {n}")) for n in range(5)]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of this process that name a table of durable runs."""
    seen, begin, last = list[str](), Work.__iter__, list[object]()

    def record(work: Work[Any]) -> Steps[Any]:
        steps, rows = begin(work), None
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
        plain = (await operations.create_run("agent", "plain", plan)).value
        assert statements == []
        durable = (await operations.create_run("agent", "lasting", plan)).value
    assert plain["status"] == durable["status"] == "COMPLETED"
    written = [text.split()[0] for text in statements]
    # The checkpoint; for each answer itself and the begin of its call, and the result of the call;
    # the end drops both.
    assert written.count("INSERT") == 1 + 2 * len(NOTES)
    assert written.count("UPDATE") == len(NOTES)
    assert written.count("DELETE") == 2
    assert len(written) == 1 + 3 * len(NOTES) + 2
