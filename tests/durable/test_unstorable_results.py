"""Calls of durable agents whose results cannot be stored: their ends are stored all the same."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.principal import local_principal
from agentctl.interface.operations import Operations
from agentctl.interface.requests import RunRequest
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.records.approvals import Verb
from agentctl.runtime.json_values import NO_JSON_FORM
from agentctl.service.service import Service
from agentctl.store.database import Sql
from tests.durable.test_kills import is_called, start, wait_until_done
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.site import Site, answer, call, create_site

AGENTS = ("without_id", "with_id", "gated", "tools", "gated_tools", "typed")

CONFIG = "\n".join(
    f'[[agents]]\nid = "{name}"\ndurable = true\nobject = "unstorable_agents:{name}"'
    for name in AGENTS
)

STATE_IS_LOST = "The run cannot wait: the state of the graph has a value that cannot be stored"
"""The end of a run whose graph keeps the object: that of its superstep, after the call."""


@pytest.fixture
def unstorable_site(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> Site:
    shutil.copy(Path(__file__).with_name("unstorable_agents.py"), tmp_path)
    site = create_site(tmp_path, model_endpoint.base_url, extra=CONFIG)
    # A service in this process imports the modules of this folder, not those of another test.
    for source in tmp_path.glob("*.py"):
        monkeypatch.delitem(sys.modules, source.stem, raising=False)
    return site


class Runs:
    """The runs of one server in this process."""

    def __init__(self, site: Site, operations: Operations) -> None:
        self._site = site
        self._operations = operations

    async def run(self, agent: str, *calls: dict[str, Any]) -> dict[str, Any]:
        """Run an agent until it ends or waits."""
        plan = [answer(*calls), answer(text="done")]
        request = RunRequest(json.dumps(plan))
        return dict((await self._operations.runs.create("agent", agent, request)).value)

    async def decide(self, run: dict[str, Any], verb: Verb, **fields: Any) -> dict[str, Any]:
        """Decide about the only approval of a run; return its record after its end."""
        (asked,) = await self._site.pending(run["run_id"])
        shown = asked.arguments_hash if verb == "approve" else None
        ruling = Ruling(
            approval_id=asked.approval_id, decision=verb, arguments_hash=shown, **fields
        )
        request = ContinueRequest((ruling,))
        agent = run["agent_id"]
        ended = await self._operations.runs.continue_run("agent", agent, run["run_id"], request)
        return dict(ended.value)


@asynccontextmanager
async def open_runs(site: Site) -> AsyncIterator[Runs]:
    async with Service.open(site.deployment.settings, create=True) as service:
        yield Runs(site, service.operations_for(local_principal("ann")))


def describe(run: dict[str, Any]) -> tuple[str, str | None, list[tuple[str, bool]]]:
    """Return the status of a run, the detail of its error, and the results of its calls."""
    detail = run["error"] and run["error"]["detail"]
    results = [(tool["result"], tool["tool_call_error"]) for tool in run["tools"]]
    return run["status"], detail, results


async def test_call_has_ended_although_its_result_cannot_be_stored(unstorable_site: Site) -> None:
    site = unstorable_site
    async with open_runs(site) as runs:
        objects = [
            await runs.run("without_id", call(tool, form=form))
            for tool, form in (("pay", "receipt"), ("pay_at_once", "broken"))
        ]
        message = await runs.run("with_id", call("pay_with_message", form="receipt"))
        kept = await runs.run("tools", call("pay_with_message", form="receipt"))
        textless = await runs.run("tools", call("pay", form="broken"))
    # The process that has the object goes on with it.
    assert [run["content"] for run in objects] == ["a Receipt", "a Broken"]
    assert [run["status"] for run in objects] == ["COMPLETED"] * 2
    assert describe(message) == ("COMPLETED", None, [("paid", False)])
    assert message["content"] == "a Receipt"
    # The superstep of a graph that keeps the object cannot be stored.
    assert describe(kept) == ("ERROR", STATE_IS_LOST, [("paid", False)])
    # LangChain makes the text of the result itself, and fails.
    failure = "The tool pay failed (RuntimeError)"
    assert describe(textless) == ("ERROR", failure, [(failure, True)])
    for run in (*objects, message, kept, textless):
        assert len(site.ledger(run)) == 1


async def test_approved_call_is_done_although_its_result_cannot_be_stored(
    unstorable_site: Site,
) -> None:
    site = unstorable_site
    pay = call("pay_with_message", form="receipt")
    async with open_runs(site) as runs:
        used = await runs.decide(await runs.run("gated", pay), "approve")
        kept = await runs.decide(await runs.run("gated_tools", pay), "approve")
    assert describe(used) == ("COMPLETED", None, [("paid", False)])
    assert used["content"] == "a Receipt"
    assert describe(kept) == ("ERROR", STATE_IS_LOST, [("paid", False)])
    for run in (used, kept):
        assert len(site.ledger(run)) == 1
        (row,) = await site.approvals(run["run_id"])
        assert (row.execution, row.result) == ("done", '"paid"')


@pytest.mark.parametrize(
    ("form", "result", "status"),
    [
        # The library itself cannot send it to the model.
        ("circle", NO_JSON_FORM, "ERROR"),
        ("large", str(2**70), "COMPLETED"),
        ("items", '["paid",7]', "COMPLETED"),
    ],
)
async def test_call_of_pydantic_ai_has_ended_whatever_its_result_is(
    unstorable_site: Site, form: str, result: str, status: str
) -> None:
    async with open_runs(unstorable_site) as runs:
        run = await runs.run("typed", call("pay", form=form))
    assert len(unstorable_site.ledger(run)) == 1
    assert run["status"] == status
    assert [tool["result"] for tool in run["tools"]] == [result]


async def test_call_is_not_made_again_after_a_pause(unstorable_site: Site) -> None:
    calls = (call("pay_with_message", form="receipt"), call("confirm"))
    async with open_runs(unstorable_site) as runs:
        run = await runs.run("tools", *calls)
    status, detail, _ = describe(run)
    assert status == "ERROR"
    assert detail == "The run cannot wait: a tool was called, and its result could not be stored"
    assert len(unstorable_site.ledger(run)) == 1


async def test_call_is_not_made_again_after_a_death(unstorable_site: Site) -> None:
    site = unstorable_site
    hold = site.deployment.folder / "hold"
    hold.touch()
    with site.serve_in_thread() as server:
        plan = [answer(call("pay", form="receipt"))]
        run = await start(site, server, plan, "agent", "without_id")
        await wait_until(partial(is_called, site, run, "pay"))
        await wait_until_done(site, run, 1)
        server.kill()
    steps = Sql("SELECT body FROM run_steps WHERE run_id = :run_id AND kind = 'tool'")
    async with site.open_database() as database:
        (body,) = await database.read(steps.rows(str, run_id=run["run_id"]))
    assert json.loads(body)["text"] == "receipt 7"

    hold.unlink()
    with site.serve_in_thread() as server:
        ended = await site.wait_for_end(server, run["run_id"])
    status, detail, results = describe(ended)
    assert status == "ERROR"
    assert detail == (
        "The run cannot go on in another process: a tool was called, and its result could not be"
        " stored"
    )
    assert [result for result, _ in results if result in (None, "cancelled")] == []
    assert len(site.ledger(run)) == 1
