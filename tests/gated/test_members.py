"""Gated calls below teams and workflows: the members that wait, and those that have ended."""

from __future__ import annotations

import json

from agentctl.interface.requests import CancelRequest, RunRequest
from tests.kit.model import ModelEndpoint
from tests.kit.site import Server, Site, answer, call

PAY = call("refund", amount=10, to="bob")
MESSAGE = json.dumps({"amount": 5, "to": "eve"})


def delegate(member: str, task: object, call_id: str) -> dict[str, object]:
    text = task if isinstance(task, str) else json.dumps(task)
    return call("delegate_task_to_member", call_id, member_id=member, task=text)


async def test_paused_member_and_gated_call_of_the_leader_in_one_answer(own_site: Site) -> None:
    work = answer(
        delegate("clerk", [answer(call("note", text="done before")), answer(text="ready")], "d1"),
        delegate("clerk", [answer(call("note", text="first"), PAY)], "d2"),
        call("refund", "own", amount=99, to="leader"),
        call("note", text="leader"),
    )
    with own_site.serve_in_thread() as server:
        run = await own_site.run(server, "office", [work], "team")
        assert run["status"] == "PAUSED"
        assert own_site.tools_called(run) == ["note"] * 3
    asked = await own_site.pending(run["run_id"])
    assert {(row.component_id, row.tool_call_id) for row in asked} == {
        ("clerk", "refund-call"), ("office", "own"),
    }  # fmt: skip
    with own_site.serve_in_thread() as server:
        await own_site.decide(server, run["run_id"], "approve")
        record = await own_site.wait_for_end(server, run["run_id"])
        statuses = await own_site.statuses(run)
    assert record["content"] == (
        "ready | noted first | paid 10 to bob | paid 99 to leader | noted leader"
    )
    assert own_site.tools_called(run) == ["note"] * 3 + ["refund"] * 2
    assert statuses == ["COMPLETED"] * 3
    assert len({entry["call_id"] for entry in own_site.ledger(run)}) == 5


async def test_routed_member_that_waits_still_answers_for_the_team(
    site: Site, server: Server
) -> None:
    run = await site.run(server, "counter", MESSAGE, "team")
    assert (run["status"], run["content"]) == ("PAUSED", "")
    await site.decide(server, run["run_id"], "approve")
    record = await site.wait_for_end(server, run["run_id"])
    assert (record["status"], record["content"]) == ("COMPLETED", "paid 5 to eve")
    assert site.tools_called(run) == ["refund"]


async def test_broadcast_keeps_the_reports_of_members_that_have_ended(
    site: Site, server: Server, model_endpoint: ModelEndpoint
) -> None:
    before = len(model_endpoint.requests("echo"))
    run = await site.run(server, "meeting", MESSAGE, "team")
    assert run["status"] == "PAUSED"
    assert len(await site.pending(run["run_id"])) == 2
    await site.decide(server, run["run_id"], "approve", component="payer")
    await site.decide(server, run["run_id"], "reject", component="payer-two")
    record = await site.wait_for_end(server, run["run_id"])
    reports = record["content"].partition("What the members report:\n\n")[2].split("\n\n")
    assert [report.partition(" ")[0] for report in reports] == ["payer", "clerk-echo", "payer-two"]
    texts = [report.partition("\n")[2] for report in reports]
    assert texts == ["paid 5 to eve", MESSAGE, "The call was rejected"]
    assert site.tools_called(run) == ["refund"]
    assert len(model_endpoint.requests("echo")) == before + 2


async def test_pause_passes_through_nested_teams(own_site: Site) -> None:
    with own_site.serve_in_thread() as server:
        run = await own_site.run(server, "bank", MESSAGE, "team")
        assert run["status"] == "PAUSED"
    with own_site.serve_in_thread() as server:
        await own_site.decide(server, run["run_id"], "approve")
        record = await own_site.wait_for_end(server, run["run_id"])
        statuses = await own_site.statuses(run)
    assert (record["status"], record["content"]) == ("COMPLETED", "paid 5 to eve")
    assert own_site.tools_called(run) == ["refund"]
    assert statuses == ["COMPLETED"] * 4


async def test_workflow_goes_on_with_the_step_that_waits(
    site: Site, server: Server, model_endpoint: ModelEndpoint
) -> None:
    before = len(model_endpoint.requests("echo"))
    run = await site.run(server, "claims", MESSAGE, "workflow")
    assert run["status"] == "PAUSED"
    await site.decide(server, run["run_id"], "approve", arguments={"amount": 4, "to": "eve"})
    record = await site.wait_for_end(server, run["run_id"])
    assert record["status"] == "COMPLETED"
    assert record["content"].endswith("paid 4 to eve")
    assert [entry["arguments"]["amount"] for entry in site.ledger(run)] == [4]
    assert len(model_endpoint.requests("echo")) == before + 2


async def test_cancel_of_a_waiting_team_makes_no_call(site: Site, server: Server) -> None:
    run = await site.run(server, "bank", MESSAGE, "team")
    async with site.connect(server) as operations:
        request = CancelRequest(session_id=run["session_id"], wait=30)
        await operations.runs.cancel("team", "bank", run["run_id"], request)
    assert await site.statuses(run) == ["CANCELLED"] * 4
    assert [row.status for row in await site.approvals(run["run_id"])] == ["cancelled"]
    assert site.ledger(run) == []


async def test_members_ignore_the_output_schema_of_the_request(
    site: Site, server: Server, model_endpoint: ModelEndpoint
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    plan = [answer(delegate("echo", "hello", "d")), {"content": '{"a": 1}'}]
    async with site.connect(server) as operations:
        request = RunRequest(json.dumps(plan), output_schema=schema)
        record = (await operations.runs.create("team", "office", request)).value
    assert (record["status"], record["output"]) == ("COMPLETED", {"a": 1})
    assert [tool["result"] for tool in record["tools"]] == ["hello"]
    assert "response_format" not in model_endpoint.requests("echo")[-1]
