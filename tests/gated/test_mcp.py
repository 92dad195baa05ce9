"""Gated calls and questions of MCP servers, through a real MCP server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.model import ModelEndpoint
from tests.kit.site import Server, Site, answer, call, create_site

SERVER = Path(__file__).with_name("asking_server.py")

_CONFIG = """
[[mcp_servers]]
id = "desk"
command = "{python}"
args = ["{server}", "{ledger}"]

[[agents]]
id = "host"
model = "plan"
tools = ["mcp:desk"]

[[agents]]
id = "guarded"
model = "plan"
tools = ["mcp:desk"]
approve = {{ desk_book = "other", "desk_l??k" = "user", desk_send = "user" }}

[[agents]]
id = "mistaken"
model = "plan"
tools = ["mcp:desk"]
approve = {{ desk_delete = "other" }}
"""


def create(folder: Path, model_url: str) -> Site:
    ledger = folder / "bookings.jsonl"
    extra = _CONFIG.format(python=sys.executable, server=SERVER, ledger=ledger)
    return create_site(folder, model_url, extra=extra)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Site:
    return create(tmp_path_factory.mktemp("desk"), model_endpoint.base_url)


@pytest.fixture(scope="module")
def lost_runs(desk: Site) -> dict[str, dict[str, Any]]:
    """Runs that wait, by their agents. Their server has ended, and the tool `send` has changed."""

    async def start(server: Server) -> dict[str, dict[str, Any]]:
        host = await desk.run(server, "host", [BOOK])
        guarded = await desk.run(server, "guarded", [answer(call("desk_send", to="ann"))])
        return {"host": host, "guarded": guarded}

    with desk.serve_in_thread() as server:
        runs = asyncio.run(start(server))
    (desk.deployment.folder / "bookings.changed").touch()
    return runs


@pytest.fixture(scope="module")
def desk_server(desk: Site, lost_runs: dict[str, dict[str, Any]]) -> Iterator[Server]:
    with desk.serve_in_thread() as server:
        yield server


def bookings(site: Site) -> list[dict[str, Any]]:
    file = site.deployment.folder / "bookings.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


BOOK = answer(call("desk_book", place="inn"))


async def test_questions_of_a_server_wait_for_answers_in_any_process(
    desk: Site, desk_server: Server, lost_runs: dict[str, dict[str, Any]]
) -> None:
    run = lost_runs["host"]
    assert run["status"] == "PAUSED"
    asked = {row.question: row for row in await desk.pending(run["run_id"])}
    assert {row.kind for row in asked.values()} == {"input"}
    assert sorted(map(str, asked)) == ["For how many?", "When\\x1b[31m?"]
    assert all(row.tool_name == "desk_book" for row in asked.values())

    when = asked["When\\x1b[31m?"]
    who = asked["For how many?"]
    await desk.decide_rows(desk_server, [when], "answer", answer={"day": "Monday"})
    await desk.decide_rows(desk_server, [who], "answer", answer={"count": 2})
    await desk.wait_for_end(desk_server, run["run_id"], "PAUSED", "COMPLETED", "ERROR")
    (sure,) = await desk.pending(run["run_id"])
    assert sure.question == "Sure?"
    assert [entry for entry in bookings(desk) if entry["place"] == "inn"] == []

    await desk.decide(desk_server, run["run_id"], "answer", answer={"sure": True})
    record = await desk.wait_for_end(desk_server, run["run_id"])
    booked = {
        "place": "inn", "when": {"day": "Monday"}, "who": {"count": 2}, "sure": {"sure": True},
    }  # fmt: skip
    assert [entry for entry in bookings(desk) if entry["place"] == "inn"] == [booked]
    assert json.loads(record["content"]) == booked
    assert [tool["tool_call_error"] for tool in record["tools"]] == [False]


async def test_answers_reach_the_call_that_has_asked(desk: Site, desk_server: Server) -> None:
    """Two calls ask the same questions, and the answers to the second one come first."""
    both = [call("desk_book", name, place=f"place {name}") for name in ("c1", "c2")]
    run = await desk.run(desk_server, "host", [answer(*both)])
    while run["status"] == "PAUSED":
        rows = {row.tool_call_id: row for row in await desk.pending(run["run_id"])}
        for question_id, row in sorted(rows.items(), reverse=True):
            call_id = question_id.partition(":")[0]
            values: dict[str, object] = {"count": int(call_id[1:])}
            if row.question == "Sure?":
                values = {"sure": call_id == "c1"}
            elif row.question != "For how many?":
                values = {"day": f"day of {call_id}"}
            await desk.decide_rows(desk_server, [row], "answer", answer=values)
        run = await desk.wait_for_end(desk_server, run["run_id"], "PAUSED", "COMPLETED", "ERROR")

    assert run["status"] == "COMPLETED", run["error"]
    booked = {entry["place"]: entry for entry in bookings(desk) if entry["place"][:5] == "place"}
    assert booked == {
        f"place {name}": {
            "place": f"place {name}",
            "when": {"day": f"day of {name}"},
            "who": {"count": number},
            "sure": {"sure": name == "c1"},
        }
        for name, number in (("c1", 1), ("c2", 2))
    }


async def test_gated_call_may_ask_after_its_approval(desk: Site, desk_server: Server) -> None:
    run = await desk.run(desk_server, "guarded", [BOOK])
    (rule,) = await desk.pending(run["run_id"])
    assert (rule.kind, rule.policy) == ("approval", "other")
    await desk.decide(desk_server, run["run_id"], "approve", arguments={"place": "hut"})
    for values in ({"day": "Monday"}, {"sure": True}):
        await desk.wait_for_end(desk_server, run["run_id"], "PAUSED", "COMPLETED", "ERROR")
        if "day" in values:
            rows = await desk.pending(run["run_id"])
            (who,) = (row for row in rows if row.question == "For how many?")
            await desk.decide_rows(desk_server, [who], "reject")
        await desk.decide(desk_server, run["run_id"], "answer", answer=values)
    record = await desk.wait_for_end(desk_server, run["run_id"])
    (booked,) = (entry for entry in bookings(desk) if entry["place"] == "hut")
    assert booked["who"] == "decline"
    assert "The arguments were changed" in record["content"]
    rows = await desk.approvals(run["run_id"])
    (rule,) = (row for row in rows if row.kind == "approval")
    assert (rule.status, rule.execution) == ("approved", "done")


async def test_approved_call_of_a_changed_tool_is_not_made(
    desk: Site, desk_server: Server, lost_runs: dict[str, dict[str, Any]]
) -> None:
    run = lost_runs["guarded"]
    assert run["status"] == "PAUSED"
    await desk.decide(desk_server, run["run_id"], "approve")
    record = await desk.wait_for_end(desk_server, run["run_id"])
    (row,) = await desk.approvals(run["run_id"])
    assert record["status"] == "COMPLETED"
    assert record["tools"][0]["tool_call_error"] is True
    assert [entry for entry in bookings(desk) if entry["place"] == "ann"] == []
    assert "desk_send has changed since this call was approved" in record["content"]
    assert row.execution == "failed"


async def test_patterns_gate_tools_of_mcp_servers(desk: Site, desk_server: Server) -> None:
    run = await desk.run(desk_server, "guarded", [answer(call("desk_look", place="inn"))])
    (rule,) = await desk.pending(run["run_id"])
    assert (rule.policy, rule.tool_name) == ("user", "desk_look")
    await desk.decide(desk_server, run["run_id"], "reject")
    record = await desk.wait_for_end(desk_server, run["run_id"])
    assert record["content"] == "The call was rejected"


async def test_pattern_without_a_tool_gates_the_whole_server(
    desk: Site, desk_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    run = await desk.run(desk_server, "mistaken", [answer(call("desk_look", place="inn"))])
    (rule,) = await desk.pending(run["run_id"])
    assert (rule.policy, rule.tool_name) == ("other", "desk_look")
    assert '"desk_delete" in approve matches no tool' in caplog.text


async def test_invalid_arguments_of_a_gated_mcp_tool_ask_no_one(
    desk: Site, desk_server: Server
) -> None:
    run = await desk.run(desk_server, "guarded", [answer(call("desk_look", place=3))])
    assert run["status"] == "COMPLETED"
    assert run["content"].startswith("The arguments of desk_look are not valid: place: 3 is not")


async def test_question_for_a_model_fails_the_call(desk: Site, desk_server: Server) -> None:
    run = await desk.run(desk_server, "host", [answer(call("desk_think"))])
    assert run["status"] == "COMPLETED"
    assert run["tools"][0]["tool_call_error"] is True
