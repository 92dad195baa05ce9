"""Streams of AG-UI over HTTP (docs/agui.md)."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.agui.pages import APPROVER, answer, interrupts_of, plan
from tests.agui.pages import Thread as Page
from tests.agui.protocol import find, text_of, types
from tests.deployment import ADMIN
from tests.server.threaded_server import ThreadedServer

Talk = Callable[..., Page]

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}


def test_text_of_a_run(talk: Talk) -> None:
    events = talk("agents/echo").send("hello")
    assert types(events) == [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "TEXT_MESSAGE_START",
        *["TEXT_MESSAGE_CONTENT"] * len(find(events, "TEXT_MESSAGE_CONTENT")),
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert text_of(events) == "hello"
    assert events[-1]["outcome"] == {"type": "success"}
    (usage,) = events[-1]["usage"]
    assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"] > 0


def test_thinking_progress_and_state(talk: Talk) -> None:
    page = talk("agents/teller")
    events = page.send("ada", state={"draft": 1, "kept/~": 2}, forwardedProps={"shop": 7})
    assert "".join(each["delta"] for each in find(events, "REASONING_MESSAGE_CONTENT")) == (
        "I look it up."
    )
    (progress,) = find(events, "CUSTOM")
    assert (progress["name"], progress["value"]) == (
        "agentctl.progress",
        {"text": "half", "fraction": 0.5},
    )
    assert text_of(events) == "Hello ada {'shop': 7}"
    (snapshot,) = find(events, "STATE_SNAPSHOT")
    assert snapshot["snapshot"] == {"draft": 1, "kept/~": 2}
    (change,) = find(events, "STATE_DELTA")
    assert change["delta"] == [
        {"op": "remove", "path": "/draft"},
        {"op": "add", "path": "/seen", "value": ["ada"]},
    ]
    (later,) = find(page.send("ben"), "STATE_SNAPSHOT")
    assert later["snapshot"] == {"kept/~": 2, "seen": ["ada"]}
    (patch,) = find(page.send("eve", state={"kept/~": 3}), "STATE_DELTA")
    assert patch["delta"] == [{"op": "replace", "path": "/seen", "value": ["ada", "ben", "eve"]}]


def test_tool_call_with_its_result(talk: Talk) -> None:
    events = talk("agents/tool-add").send('{"a": 1, "b": 2}')
    (start,) = find(events, "TOOL_CALL_START")
    (arguments,) = find(events, "TOOL_CALL_ARGS")
    (result,) = find(events, "TOOL_CALL_RESULT")
    assert start["toolCallName"] == "add"
    assert json.loads(arguments["delta"]) == {"a": 1, "b": 2}
    assert (result["toolCallId"], result["content"]) == (start["toolCallId"], "3")
    assert text_of(events) == "3"


def test_member_is_a_subagent(talk: Talk) -> None:
    events = talk("teams/crew").send("ask echo")
    (member,) = find(events, "SUBAGENT_STARTED")
    assert member["name"] == "echo"
    assert text_of(events, member["subagentRunId"])
    assert text_of(events)
    assert not find(events, "TOOL_CALL_START")


def test_steps_of_a_workflow(talk: Talk) -> None:
    events = talk("workflows/line").send("ask echo")
    assert [each["stepName"] for each in find(events, "STEP_STARTED")] == ["first", "second"]
    assert [each["stepName"] for each in find(events, "STEP_FINISHED")] == ["first", "second"]
    assert {each["name"] for each in find(events, "SUBAGENT_STARTED")} == {"echo", "crew"}
    assert text_of(events)


def test_page_before_version_1_has_members_as_steps(talk: Talk) -> None:
    body = {"protocolVersion": None}
    events = talk("teams/crew").send("ask echo", **body)
    assert not find(events, "SUBAGENT_STARTED")
    assert len(find(events, "STEP_STARTED")) == len(find(events, "STEP_FINISHED")) == 1
    assert text_of(events)


def test_failed_and_stopped_runs(talk: Talk, served: ThreadedServer) -> None:
    assert talk("agents/http-500").send("hello")[-1]["type"] == "RUN_ERROR"
    failed = talk("workflows/broken").send("hello")
    assert find(failed, "SUBAGENT_ERROR")
    assert failed[-1]["type"] == "RUN_ERROR"
    assert failed[-1]["code"]


def test_approved_call_is_made_once_and_only_its_result_is_new(talk: Talk) -> None:
    page = talk("agents/payer")
    paused = page.send(plan(ADD))
    (start,) = find(paused, "TOOL_CALL_START")
    (interrupt,) = interrupts_of(paused)
    assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", start["toolCallId"])
    shown = interrupt["metadata"]["agentctl"]
    assert (shown["tool_name"], shown["arguments"]) == ("add", {"a": 1, "b": 2})
    schema = interrupt["responseSchema"]["properties"]
    assert {"approved", "editedArgs"} <= schema.keys()
    resume = [answer(interrupt, {"approved": True})]
    events = page.send(resume=resume)
    assert not find(events, "TOOL_CALL_START")
    (result,) = find(events, "TOOL_CALL_RESULT")
    assert (result["toolCallId"], result["content"]) == (start["toolCallId"], "3")
    assert text_of(events) == "3"
    assert events[-1]["outcome"] == {"type": "success"}
    again = page.send(resume=resume)
    assert (text_of(again), find(again, "TOOL_CALL_START")) == ("3", [])
    assert "is approved by ada already" in page.refuse(
        409, resume=[answer(interrupt, {"approved": False})]
    )


def test_answers_of_interrupts(talk: Talk) -> None:
    for payload, said in (
        ({"approved": True, "editedArgs": {"a": 5, "b": 5}}, "10"),
        ({"approved": False, "note": "too much"}, "too much"),
    ):
        page = talk("agents/payer")
        (interrupt,) = interrupts_of(page.send(plan(ADD)))
        assert said in text_of(page.send(resume=[answer(interrupt, payload)]))
    page = talk("agents/payer")
    (interrupt,) = interrupts_of(page.send(plan(ADD)))
    left = {"interruptId": interrupt["id"], "status": "cancelled"}
    (result,) = find(page.send(resume=[left]), "TOOL_CALL_RESULT")
    assert result["metadata"] == {"agentctl": {"error": True}}
    asked = talk("agents/clerk")
    (question,) = interrupts_of(asked.send("book"))
    assert (question["reason"], question["message"]) == ("input_required", "How many seats?")
    assert question["responseSchema"]["required"] == ["seats"]
    assert "seats" in asked.refuse(422, resume=[answer(question, {"seats": "two"})])
    assert text_of(asked.send(resume=[answer(question, {"seats": 2})])) == "{'seats': 2}"


def test_answers_count_all_or_none(talk: Talk) -> None:
    page = talk("agents/payer")
    first, second = interrupts_of(page.send(plan_two()))
    waits = page.refuse(409, "something else")
    assert first["id"] in waits
    assert second["id"] in waits
    yes = {"approved": True}
    assert second["id"] in page.refuse(422, resume=[answer(first, yes)])
    other = answer(second, {**yes, "argumentsHash": "sha256:" + "0" * 64})
    assert "another call" in page.refuse(409, resume=[answer(first, yes), other])
    page.refuse(422, resume=[answer(first, yes), answer(second, {"approved": "yes"})])
    page.refuse(422, resume=[answer(first, yes), answer(first, yes)])
    page.refuse(404, resume=[answer(first, yes), answer({"id": "nothing"}, yes)])
    hashes = [{**yes, "argumentsHash": each["metadata"]["agentctl"]["arguments_hash"]}
              for each in (first, second)]  # fmt: skip
    events = page.send(resume=[answer(first, hashes[0]), answer(second, hashes[1])])
    assert text_of(events) == "3 | 3"


def plan_two() -> str:
    (message,) = json.loads(plan(ADD))
    (call,) = message["tool_calls"]
    return json.dumps([{"tool_calls": [call, {**call, "id": "other"}]}])


def test_approver_decides_elsewhere(talk: Talk, served: ThreadedServer) -> None:
    page = talk("agents/careful")
    (interrupt,) = interrupts_of(page.send(plan(ADD)))
    assert "an approver decides" in interrupt["message"]
    resume = [answer(interrupt, {"approved": True})]
    assert "cannot be answered here" in page.refuse(403, resume=resume)
    shown = interrupt["metadata"]["agentctl"]
    decision = {"decision": "approve", "arguments_hash": shown["arguments_hash"]}
    decided = served.client.post(
        f"/agents/careful/approvals/{interrupt['id']}/decide",
        json=decision,
        headers=served.bearer("eve", *APPROVER),
    )
    assert decided.status_code == 200, decided.text
    events = page.send(resume=resume)
    assert (text_of(events), find(events, "TOOL_CALL_START")) == ("3", [])


def test_member_interrupts_its_team(talk: Talk) -> None:
    page = talk("teams/office")
    paused = page.send('{"a": 1, "b": 2}')
    (member,) = find(paused, "SUBAGENT_STARTED")
    (closed,) = find(paused, "SUBAGENT_FINISHED")
    (interrupt,) = interrupts_of(paused)
    assert interrupt["subagentRunId"] == member["subagentRunId"]
    assert closed["outcome"] == {"type": "suspended", "interruptIds": [interrupt["id"]]}
    events = page.send(resume=[answer(interrupt, {"approved": True})])
    (result,) = find(events, "TOOL_CALL_RESULT")
    assert result["content"] == "3"
    assert events[-1]["outcome"] == {"type": "success"}
