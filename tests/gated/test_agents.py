"""Gated calls of an agent: pause, decision, continuation, through real server processes."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from agentctl.interface.requests import RunRequest
from tests.kit.model import ModelEndpoint
from tests.kit.site import SCOPES, Server, Site, answer, call

PAY = call("refund", amount=10, to="bob")


async def test_approved_call_is_made_once_on_another_server(own_site: Site) -> None:
    with own_site.serve_in_thread() as server:
        run = await own_site.run(server, "clerk", [answer(PAY)])
        assert run["status"] == "PAUSED"
        assert own_site.ledger(run) == []
    (asked,) = await own_site.pending(run["run_id"])
    assert (asked.kind, asked.policy, asked.tool_name) == ("approval", "user", "refund")
    assert json.loads(asked.arguments) == {"amount": 10, "to": "bob"}
    assert json.loads(asked.schema or "")["required"] == ["amount", "to"]
    with own_site.serve_in_thread() as server:
        await own_site.decide(server, run["run_id"], "approve")
        record = await own_site.wait_for_end(server, run["run_id"])
    assert (record["status"], record["content"]) == ("COMPLETED", "paid 10 to bob")
    (entry,) = own_site.ledger(run)
    assert entry["arguments"] == {"amount": 10, "to": "bob"}
    assert entry["call_id"] == f"{run['run_id']}:refund-call"
    roles = [message["role"] for message in record["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    (tool,) = record["tools"]
    assert (tool["result"], tool["tool_call_error"]) == ("paid 10 to bob", False)


async def test_edited_call_is_made_with_the_new_arguments(site: Site, server: Server) -> None:
    run = await site.run(server, "clerk", [answer(PAY)])
    await site.decide(server, run["run_id"], "approve", arguments={"amount": 5, "to": "bob"})
    record = await site.wait_for_end(server, run["run_id"])
    assert [entry["arguments"] for entry in site.ledger(run)] == [{"amount": 5, "to": "bob"}]
    assert record["content"] == (
        'The arguments were changed before the call: {"amount":5,"to":"bob"}\npaid 5 to bob'
    )
    assert record["tools"][0]["tool_args"] == {"amount": 5, "to": "bob"}


async def test_other_calls_of_the_answer_run_once_before_the_pause(own_site: Site) -> None:
    mixed = answer(
        call("note", text="a"), PAY, call("mail_send", to="eve"), call("note", "n2", text="b")
    )
    with own_site.serve_in_thread() as server:
        run = await own_site.run(server, "clerk", [mixed])
        assert own_site.tools_called(run) == ["note", "note"]
    policies = {row.tool_name: row.policy for row in await own_site.pending(run["run_id"])}
    assert policies == {"refund": "user", "mail_send": "other"}
    with own_site.serve_in_thread() as server:
        await own_site.decide(server, run["run_id"], "approve", "refund")
        await own_site.decide(server, run["run_id"], "reject", "mail_send")
        record = await own_site.wait_for_end(server, run["run_id"])
    assert own_site.tools_called(run) == ["note", "note", "refund"]
    assert record["content"] == "noted a | paid 10 to bob | The call was rejected | noted b"
    calls = {entry["call_id"] for entry in own_site.ledger(run)}
    assert len(calls) == 3


async def test_run_pauses_again_in_a_later_turn(site: Site, server: Server) -> None:
    # The server of the model repeats the id of its first call.
    plan = [answer(PAY, text="First."), answer(call("refund", "refund-call", amount=7, to="eve"))]
    run = await site.run(server, "clerk", plan)
    await site.decide(server, run["run_id"], "approve")
    await site.wait_for_end(server, run["run_id"], "PAUSED", "COMPLETED")
    pending = await site.pending(run["run_id"])
    assert json.loads(pending[0].arguments) == {"amount": 7, "to": "eve"}
    assert [entry["arguments"]["amount"] for entry in site.ledger(run)] == [10]
    await site.decide(server, run["run_id"], "approve")
    record = await site.wait_for_end(server, run["run_id"])
    assert (record["status"], record["content"]) == ("COMPLETED", "First.\n\npaid 7 to eve")
    assert [entry["arguments"]["amount"] for entry in site.ledger(run)] == [10, 7]
    assert len({entry["call_id"] for entry in site.ledger(run)}) == 2


async def test_arguments_that_do_not_validate_ask_no_one(site: Site, server: Server) -> None:
    plan = [
        answer(call("refund", amount="much", to="bob"), call("refund", "r2", to="bob")),
        answer(call("open_file", path=3)),
    ]
    run = await site.run(server, "clerk", plan)
    assert run["status"] == "COMPLETED"
    assert await site.approvals(run["run_id"]) == []
    assert [tool["tool_call_error"] for tool in run["tools"]] == [True] * 3
    results = {tool["result"] for tool in run["tools"]}
    assert "The arguments of refund are not valid: amount is missing" in results
    assert run["content"].startswith("The arguments of open_file are not valid: path: 3 is not")


async def test_failures_and_unknown_tools_are_counted_over_pauses(
    site: Site, server: Server
) -> None:
    shaky = [answer(call("shaky", f"s{number}", text="x")) for number in range(3)]
    run = await site.run(server, "clerk", shaky)
    for _ in range(3):
        await site.wait_for_end(server, run["run_id"], "PAUSED")
        await site.decide(server, run["run_id"], "approve")
        await site.wait_for_end(server, run["run_id"], "PAUSED", "ERROR")
    record = await site.wait_for_end(server, run["run_id"])
    assert record["error"]["code"] == "TOOL_FAILED"
    assert site.tools_called(run) == ["shaky"] * 3

    unknown = [answer(call("nothing", f"u{number}")) for number in range(3)]
    plan = [*unknown, answer(PAY), answer(call("nothing", "u4"))]
    run = await site.run(server, "clerk", plan)
    await site.decide(server, run["run_id"], "reject")
    record = await site.wait_for_end(server, run["run_id"])
    assert record["error"] == {
    "code": "MODEL_ANSWER_INVALID", "detail": "The model called unknown tools",
    }  # fmt: skip


async def test_denials_do_not_count_as_failures(site: Site, server: Server) -> None:
    plan = [answer(call("refund", f"r{number}", amount=1, to="bob")) for number in range(4)]
    run = await site.run(server, "clerk", plan)
    for _ in plan:
        await site.wait_for_end(server, run["run_id"], "PAUSED")
        await site.decide(server, run["run_id"], "reject")
        await site.wait_for_end(server, run["run_id"], "PAUSED", "COMPLETED", "ERROR")
    record = await site.wait_for_end(server, run["run_id"])
    assert record["status"] == "COMPLETED"
    assert site.ledger(run) == []


@pytest.mark.parametrize(
    ("verb", "fields", "text", "failed"),
    [
        ("complete", {"result": "the text"}, "the text", False),
        ("complete", {"result": {"lines": 2}}, '{"lines":2}', False),
        ("fail", {"note": "no such file"}, "no such file", True),
    ],
)
async def test_caller_executes_external_tools(
    site: Site, server: Server, verb: Any, fields: dict[str, Any], text: str, failed: bool
) -> None:
    run = await site.run(server, "clerk", [answer(call("open_file", path="a.txt"))])
    (asked,) = await site.pending(run["run_id"])
    assert (asked.kind, asked.tool_name) == ("external", "open_file")
    await site.decide(server, run["run_id"], verb, **fields)
    record = await site.wait_for_end(server, run["run_id"])
    assert (record["status"], record["content"]) == ("COMPLETED", text)
    assert record["tools"][0]["tool_call_error"] is failed


async def test_next_leg_sends_the_same_conversation_to_the_model(
    site: Site, server: Server, model_endpoint: ModelEndpoint
) -> None:
    first = await site.run(server, "clerk", [answer(text="hello")])
    async with site.connect(server) as operations:
        plan = json.dumps([answer(PAY)])
        request = RunRequest(plan, session_id=first["session_id"])
        run = (await operations.runs.create("agent", "clerk", request)).value
    await site.decide(server, run["run_id"], "approve")
    await site.wait_for_end(server, run["run_id"])
    *_, before, after = model_endpoint.requests("plan")
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert after["tools"] == before["tools"]
    added = after["messages"][len(before["messages"]) :]
    assert [message["role"] for message in added] == ["assistant", "tool"]
    assert added[1]["content"] == "paid 10 to bob"
    assert [message["role"] for message in before["messages"]] == ["user", "assistant", "user"]


async def test_call_of_a_tool_that_is_gone_cannot_be_approved(own_site: Site) -> None:
    with own_site.serve_in_thread() as server:
        run = await own_site.run(server, "clerk", [answer(PAY)])
    config = own_site.deployment.path
    text = config.read_text()
    config.write_text(
        text.replace('["ledger_tools:refund", "ledger_tools:book"', '["ledger_tools:book"')
    )
    with own_site.serve_in_thread() as server:
        with pytest.raises(AssertionError, match="The tool refund does not exist any more"):
            await own_site.decide(server, run["run_id"], "approve")
        await own_site.decide(server, run["run_id"], "reject")
        record = await own_site.wait_for_end(server, run["run_id"])
    assert (record["status"], record["content"]) == ("COMPLETED", "The call was rejected")


async def test_user_of_the_run_approves_its_own_call_but_no_second_person_call(
    site: Site, server: Server
) -> None:
    run = await site.run(server, "clerk", [answer(PAY, call("mail_send", to="eve"))])
    bodies = {
        row.tool_name: {
            "decisions": [
                {
                    "approval_id": row.approval_id,
                    "decision": "approve",
                    "arguments_hash": row.arguments_hash,
                }
            ]
        }
        for row in await site.pending(run["run_id"])
    }
    path = f"/agents/clerk/runs/{run['run_id']}/continue"
    headers = site.deployment.bearer("ann", *SCOPES)
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        refused = await client.post(path, json={**bodies["mail_send"], "stream": False})
        assert refused.status_code == 403, refused.text
        accepted = await client.post(path, json={**bodies["refund"], "stream": False})
        assert accepted.status_code == 200, accepted.text
        assert accepted.json()["status"] == "PAUSED"
    assert site.ledger(run) == []
    await site.decide(server, run["run_id"], "approve")
    await site.wait_for_end(server, run["run_id"])
    assert site.tools_called(run) == ["mail_send", "refund"]
