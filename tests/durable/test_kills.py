"""A durable agent whose server is killed: another server goes on from its last finished step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from agentctl.interface.requests import RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.store.database import Sql
from tests.durable.agents import DURABLE
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.site import Server, Site, answer, call, create_site

NOTES = [answer(call("note", f"note-{n}", text=f"step {n}")) for n in range(3)]


async def start(
    site: Site,
    server: Server,
    plan: list[dict[str, Any]],
    kind: ComponentKind = "agent",
    component_id: str = "lasting",
) -> dict[str, Any]:
    """Start a run in the background, and return its record."""
    async with site.connect(server) as operations:
        request = RunRequest(json.dumps(plan), background=True)
        return dict((await operations.runs.create(kind, component_id, request)).value)


def delegate(plan: list[dict[str, Any]], call_id: str, member: str = "lasting") -> dict[str, Any]:
    """Build the call with which the leader of a team gives a plan to a member."""
    return call("delegate_task_to_member", call_id, member_id=member, task=json.dumps(plan))


BOTH = answer(call("note", text="a"), call("linger", text="b"), call("refund", amount=1, to="c"))
PLAN = [*NOTES[:1], BOTH, answer(call("note", "last", text="z")), answer(text="done")]

VERBS: list[tuple[Any, dict[str, Any], str]] = [
    ("complete", {"result": "seen"}, "seen"),
    ("fail", {"note": "it was not sent"}, "it was not sent"),
    ("retry", {}, "lingered b"),
]
"""Decisions about a call that had begun, with its result in the record."""


def visit(*ids: str) -> dict[str, Any]:
    """Build an answer with idempotent calls."""
    return answer(*(call("visit", call_id, place="inn") for call_id in ids))


@dataclass(frozen=True)
class Lost:
    """A second server, with the runs that a killed one had."""

    site: Site
    server: Server
    runs: list[dict[str, Any]]
    """One run of `PLAN` for each of `VERBS`; the call of `linger` had begun."""

    team: dict[str, Any]
    """A team: one member waits for an approval, and the other one made an idempotent call."""

    turning: dict[str, Any]
    """An agent with a limit for repeated calls, in its first two."""


async def start_all(site: Site, server: Server) -> list[dict[str, Any]]:
    gated = [answer(call("refund", amount=2, to="d"))]
    members = [answer(delegate(gated, "d1"), delegate([visit("visit")], "d2")), answer(text="both")]
    team = await start(site, server, members, "team", "pair")
    await wait_until_asked(site, team, "refund")
    await wait_until(partial(is_called, site, team, "visit"))

    repeated = [visit("v1", "v2"), visit("v3"), visit("v4"), answer(text="done")]
    turning = await start(site, server, repeated, component_id="turning")
    await wait_until(lambda: site.tools_called(turning) == ["visit"] * 2)

    runs = [await start(site, server, PLAN) for _ in VERBS]
    for run in runs:
        await wait_until(partial(is_called, site, run, "linger"))
        await wait_until_done(site, run, 2)
    return [team, turning, *runs]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Lost]:
    folder = tmp_path_factory.mktemp("kills")
    site = create_site(folder, model_endpoint.base_url, extra=DURABLE)
    hold = folder / "hold"
    hold.touch()
    with site.serve_in_thread() as server:
        team, turning, *runs = asyncio.run(start_all(site, server))
        server.kill()
    # It has neither ended its runs nor handed them over.
    assert asyncio.run(site.statuses(turning)) == ["RUNNING"]
    hold.unlink()
    with site.serve_in_thread() as server:
        yield Lost(site, server, runs, team, turning)


@pytest.mark.parametrize("number", range(len(VERBS)), ids=[verb for verb, _, _ in VERBS])
async def test_person_is_asked_about_a_call_that_had_begun(lost: Lost, number: int) -> None:
    site = lost.site
    run = lost.runs[number]
    verb, fields, result = VERBS[number]
    waiting = await site.wait_for_end(lost.server, run["run_id"], "PAUSED")
    asked = await site.pending(run["run_id"])
    # The answer asks for the refund after the outcome of the lost call is known.
    assert [(row.kind, row.tool_name) for row in asked] == [("outcome", "linger")], waiting
    assert asked[0].arguments == '{"text":"b"}'

    await site.decide(lost.server, run["run_id"], verb, **fields)
    await wait_until_asked(site, run, "refund")
    await site.decide(lost.server, run["run_id"], "approve")
    record = await site.wait_for_end(lost.server, run["run_id"])
    assert record["status"] == "COMPLETED"
    results = {tool["tool_name"]: tool["result"] for tool in record["tools"]}
    assert results["linger"] == result
    once = ["linger", "note", "note", "note", "refund"]
    again = ["linger"] if verb == "retry" else []
    assert site.tools_called(run) == [*again, *once]


async def test_member_keeps_waiting_while_another_one_is_called_again(lost: Lost) -> None:
    site = lost.site
    team = lost.team
    await wait_until(lambda: site.tools_called(team) == ["visit", "visit"])
    await site.wait_for_end(lost.server, team["run_id"], "PAUSED")
    await site.decide(lost.server, team["run_id"], "approve")
    both = await site.wait_for_end(lost.server, team["run_id"])
    assert (both["status"], both["content"]) == ("COMPLETED", "both")
    assert [tool["result"] for tool in both["tools"]] == ["paid 2 to d", "visited inn"]
    assert site.tools_called(team) == ["refund", "visit", "visit"]


async def test_repeated_calls_are_counted_over_the_death_of_a_server(lost: Lost) -> None:
    site = lost.site
    run = lost.turning
    record = await site.wait_for_end(lost.server, run["run_id"])
    assert (record["status"], record["error"]["code"]) == ("ERROR", "LOOP")
    ended = [(tool["tool_call_id"], tool["tool_call_error"]) for tool in record["tools"]]
    assert ended == [("v1", False), ("v2", False), ("v3", True)]
    assert record["tools"][2]["result"].startswith("The call was not made: visit was called 2")
    # Both calls were under way when the server died, and are idempotent: each was made again.
    assert {entry["call_id"].rpartition(":")[2] for entry in site.ledger(run)} == {"v1", "v2"}
    assert site.tools_called(run) == ["visit"] * 4


def is_called(site: Site, run: dict[str, Any], tool: str) -> bool:
    return tool in site.tools_called(run)


async def wait_until_done(site: Site, run: dict[str, Any], count: int) -> None:
    """Wait until the journal of a run has the results of some calls."""
    done = Sql(
        "SELECT count(*) FROM run_steps WHERE run_id = :run_id AND kind = 'tool' AND state = 'done'"
    )

    async def is_done() -> bool:
        async with site.open_database() as database:
            return bool(await database.read(done.value(run_id=run["run_id"])) == count)

    await wait_until(is_done)


async def wait_until_asked(site: Site, run: dict[str, Any], tool: str) -> None:
    async def is_asked() -> bool:
        return [row.tool_name for row in await site.pending(run["run_id"])] == [tool]

    await wait_until(is_asked)
