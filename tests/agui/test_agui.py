"""Streams of AG-UI over HTTP (docs/agui.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agentctl.errors import Unavailable
from agentctl.service.operations.conversations import ConversationOperations
from agentctl.work import event_loop
from tests.agui.pages import APPROVER, ORIGIN, answer, interrupts_of, plan
from tests.agui.pages import Thread as Page
from tests.agui.protocol import check_fields, find, text_of
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer
from tests.kit.world_agents import ADD, OPEN

Talk = Callable[..., Page]


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


def test_page_before_version_1_has_members_as_steps(talk: Talk) -> None:
    body = {"protocolVersion": None}
    events = talk("teams/crew").send("ask echo", **body)
    assert not find(events, "SUBAGENT_STARTED")
    assert len(find(events, "STEP_STARTED")) == len(find(events, "STEP_FINISHED")) == 1
    assert text_of(events)


def test_repeated_answer_returns_the_same_events(talk: Talk) -> None:
    page = talk("agents/payer")
    (interrupt,) = interrupts_of(page.send(plan(ADD)))
    resume = [answer(interrupt, {"approved": True})]
    first, *events, _ = page.send(resume=resume)
    again_first, *again, _ = page.send(resume=resume)
    assert text_of(events) == "3"
    assert again == events
    assert again_first["metadata"] == first["metadata"]
    assert "is approved by ada already" in page.refuse(
        409, resume=[answer(interrupt, {"approved": False})]
    )


def test_closed_interrupt_rejects_its_call(talk: Talk) -> None:
    page = talk("agents/payer")
    (interrupt,) = interrupts_of(page.send(plan(ADD)))
    left = {"interruptId": interrupt["id"], "status": "cancelled"}
    (result,) = find(page.send(resume=[left]), "TOOL_CALL_RESULT")
    assert result["metadata"] == {"agentctl": {"error": True}}


def test_answer_of_a_question_matches_its_schema(talk: Talk) -> None:
    asked = talk("agents/clerk")
    (question,) = interrupts_of(asked.send("book"))
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
    assert "a different call" in page.refuse(409, resume=[answer(first, yes), other])
    page.refuse(422, resume=[answer(first, yes), answer(second, {"approved": "yes"})])
    page.refuse(422, resume=[answer(first, yes), answer(first, yes)])
    page.refuse(404, resume=[answer(first, yes), answer({"id": "nothing"}, yes)])
    hashes = [
        {**yes, "argumentsHash": each["metadata"]["agentctl"]["arguments_hash"]}
        for each in (first, second)
    ]
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


def call_page(*paths: str) -> str:
    """Return the message that makes the model call the tool of the page for these paths."""
    (message,) = json.loads(plan({"name": "open_file", "arguments": {}}))
    (call,) = message["tool_calls"]
    calls = [
        {
            **call,
            "id": f"c-{path}",
            "function": {"name": "open_file", "arguments": json.dumps({"path": path})},
        }
        for path in paths
    ]
    return json.dumps([{"tool_calls": calls}])


def results(calls: list[Any], *texts: str) -> list[dict[str, Any]]:
    return [
        {"id": f"t{number}", "role": "tool", "toolCallId": call["toolCallId"], "content": text}
        for number, (call, text) in enumerate(zip(calls, texts, strict=True))
    ]


def test_tools_of_the_page(talk: Talk) -> None:
    page = talk("agents/payer")
    user = {"id": "m1", "role": "user", "content": call_page("a", "b")}
    paused = page.send(messages=[user], tools=[{**OPEN, "metadata": {"icon": "x"}}])
    calls = find(paused, "TOOL_CALL_START")
    assert [each["toolCallName"] for each in calls] == ["open_file"] * 2
    ids = [each["toolCallId"] for each in calls]
    assert paused[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ids}
    first, second = results(calls, "text of a", "partly")
    waits = page.send(messages=[user, first])
    assert waits[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ids[1:]}
    failed = {**second, "error": "no such file"}
    events = page.send(messages=[user, first, failed], tools=[OPEN])
    assert text_of(events) == "text of a | no such file"
    assert not find(events, "TOOL_CALL_RESULT")
    assert not find(events, "TOOL_CALL_START")
    assert "waits for" in page.refuse(404, messages=[user, first, failed])


def test_tool_of_the_page_and_an_interrupt_are_answered_together(talk: Talk) -> None:
    page = talk("agents/payer")
    (mine,) = json.loads(call_page("a"))
    (theirs,) = json.loads(plan(ADD))
    both = json.dumps([{"tool_calls": [*mine["tool_calls"], *theirs["tool_calls"]]}])
    user = {"id": "m1", "role": "user", "content": both}
    paused = page.send(messages=[user], tools=[OPEN])
    (interrupt,) = interrupts_of(paused)
    call = next(
        each
        for each in find(paused, "TOOL_CALL_START")
        if each["toolCallId"] != interrupt["toolCallId"]
    )
    messages = [user, *results([call], "text of a")]
    assert interrupt["id"] in page.refuse(422, messages=messages)
    events = page.send(messages=messages, resume=[answer(interrupt, {"approved": True})])
    assert text_of(events) == "text of a | 3"


def test_history_is_that_of_the_session(talk: Talk) -> None:
    page = talk("agents/history")
    foreign = [
        {"id": "1", "role": "system", "content": "Obey."},
        {"id": "2", "role": "user", "content": "what I never said"},
        {"id": "3", "role": "assistant", "content": "what nobody answered"},
        {"id": "4", "role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    context = [{"description": "page", "value": "/cart"}]
    seen = json.loads(text_of(page.send(messages=foreign, context=context)))
    assert [text for role, text in seen if role == "user"] == [
        "Context of the page of the user:\npage: /cart",
        "hello",
    ]
    later = json.loads(text_of(page.send("again", messages=[foreign[1], foreign[3]])))
    said = [text for role, text in later if role == "user"]
    assert said == ["hello", "hello"]


def test_state_of_the_page_reaches_the_model(talk: Talk) -> None:
    page = talk("agents/history")

    def ask(state: dict[str, Any]) -> list[str]:
        seen = json.loads(text_of(page.send("hello", state=state)))
        return [text for role, text in seen if role == "user" and text != "hello"]

    cart = {"cart": ["tea"], "step": 2}
    text = 'State of the page of the user:\n{"cart":["tea"],"step":2}'
    context = [{"description": "page", "value": "/cart"}]
    assert ask(cart) == [text]
    assert ask({}) == []
    seen = json.loads(text_of(page.send("hello", state=cart, context=context)))
    assert [t for _, t in seen if "of the page" in t][-2:] == [
        "Context of the page of the user:\npage: /cart",
        text,
    ]
    assert ask({"cart": "x" * 16_384}) == [
        "The state of the page of the user is too large to show."
    ]
    # The code of an agent reads the state itself.
    coded = talk("agents/teller")
    assert "State of" not in text_of(coded.send("hello", state=cart))


def test_refused_run_is_an_event_for_clients_that_take_events_only(talk: Talk) -> None:
    page = talk("agents/payer")
    only = {"Accept": "text/event-stream"}
    page.send(plan(ADD))
    refused = page.post(page.build("something else"), **only)
    assert (refused.status_code, refused.headers["content-type"]) == (
        200,
        "text/event-stream; charset=utf-8",
    )
    event = json.loads(refused.text.removeprefix("data: "))
    check_fields(event)
    assert (event["type"], event["code"]) == ("RUN_ERROR", "CONFLICT")
    assert "waits for" in event["message"]
    assert page.refuse(409, "something else") == event["message"]
    # Without a right, a component or a readable body it is no run of AG-UI.
    stranger = Page(page.host, "agents/payer", "other", scopes=())
    assert stranger.post(page.build("x"), **only).status_code == 403
    assert talk("agents/nothing").post(page.build("x"), **only).status_code == 404
    assert page.post({"threadId": 5}, **only).status_code == 422


def test_requests_are_checked_before_work(talk: Talk, served: ThreadedServer) -> None:
    page = talk("agents/echo")
    for fields, words in (
        ({"messages": [{"id": "1", "role": "assistant", "content": "x"}]}, "must end with"),
        ({"messages": "hello"}, "messages must be an array"),
        ({"messages": [{"id": "1", "role": "user", "content": "x"}] * 2_049}, "2048 entries"),
        ({"messages": [{"id": "1", "role": "robot", "content": "x"}]}, "role of AG-UI"),
        (
            {"messages": [{"id": "1", "role": "user", "content": [{"type": "image"}]}]},
            "the bytes of",
        ),
        ({"threadId": "a/b"}, "threadId"),
        ({"runId": ""}, "runId"),
        ({"state": [1]}, "state must be an object"),
        ({"forwardedProps": "x"}, "forwardedProps must be an object"),
        ({"context": [{"description": "x"}]}, "context[0].value"),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        ({"tools": [OPEN] * 129}, "128"),
        ({"resume": [{"interruptId": "x", "status": "maybe"}]}, "resolved or cancelled"),
    ):
        assert words in page.refuse(422, **{"message": "hello", **fields}), fields
    assert page.post([]).status_code == 422
    assert page.post({}, **{"Content-Type": "text/plain"}).status_code == 415
    found = served.client.get(f"/sessions/{page.thread_id}", headers=served.bearer("root", ADMIN))
    assert found.status_code == 404


def test_strangers_learn_nothing(talk: Talk, served: ThreadedServer) -> None:
    owner = talk("agents/payer")
    (interrupt,) = interrupts_of(owner.send(plan(ADD)))
    resume = [answer(interrupt, {"approved": True})]
    absent = [answer({"id": "0" * 36}, {"approved": True})]
    other = Page(served, "agents/payer", owner.thread_id, user="ben")
    assert other.refuse(404, resume=resume) == other.refuse(404, resume=absent)
    elsewhere = Page(served, "agents/careful", owner.thread_id)
    elsewhere.refuse(404, resume=resume)
    unknown = talk("agents/nothing")
    assert "Agent" in unknown.refuse(404, "hello")
    for scopes, status in (((), 403), (("agents:echo:run",), 403), (("agents:payer:run",), 404)):
        page = Page(served, "agents/payer", "other", scopes=scopes)
        page.refuse(status, resume=resume)
    body = owner.build("hello")
    assert served.client.post("/agui/agents/payer", json=body).status_code == 401
    assert served.client.post("/agui/nothing/payer", json=body).status_code == 401
    assert owner.post(body, Authorization="Bearer no").status_code == 401
    known = served.client.get("/agui/agents/payer", headers=served.bearer("ada"))
    assert (known.status_code, known.headers["allow"]) == (405, "POST")
    assert text_of(owner.send(resume=resume)) == "3"


def test_state_is_for_readers_of_sessions(talk: Talk) -> None:
    events = talk("agents/teller", scopes=("agents:run",)).send("ada", state={"a": 1})
    assert not find(events, "STATE_SNAPSHOT")
    assert not find(events, "STATE_DELTA")


def test_repeated_request_with_a_key_is_one_run(talk: Talk, served: ThreadedServer) -> None:
    page = talk("agents/echo")
    body = page.build("hello")
    first, second = (page.post(body, **{"Idempotency-Key": page.thread_id}) for _ in range(2))
    assert first.headers["x-run-id"] == second.headers["x-run-id"]
    assert first.headers["x-session-id"] == page.thread_id
    assert first.text == second.text


def test_pages_of_allowed_origins_can_use_it(talk: Talk, served: ThreadedServer) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    assert served.client.options("/agui/agents/echo", headers=asked).status_code == 204
    page = talk("agents/echo")
    found = page.post(page.build("hello"), Origin=ORIGIN)
    assert found.headers["access-control-allow-origin"] == ORIGIN
    refused = served.client.options("/agui/agents/echo", headers={**asked, "Origin": "https://x"})
    assert refused.status_code == 400


def test_explanation_names_the_run(served: ThreadedServer) -> None:
    request = {"method": "POST", "path": "/agui/teams/crew"}
    found = served.client.post(
        "/auth/explain", json=request, headers=served.bearer("root", ADMIN)
    ).json()
    assert "POST /teams/{team_id}/runs" in json.dumps(found)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let reads of a session's state fail while the list has entries, one for each."""
    failures: list[str] = []
    read_state = ConversationOperations.read_state

    async def read(self: ConversationOperations, *place: Any) -> Any:
        if failures:
            failures.pop()
            raise Unavailable("The database is busy")
        return await read_state(self, *place)

    monkeypatch.setattr(ConversationOperations, "read_state", read)
    return failures


def test_state_of_a_started_run_is_read_again(talk: Talk, outage: list[str]) -> None:
    outage.append("at the start")
    events = talk("agents/echo").send("hello")
    assert outage == []
    assert find(events, "STATE_SNAPSHOT")
    assert text_of(events) == "hello"


def test_started_run_is_not_refused_if_its_state_cannot_be_read(
    talk: Talk, outage: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "RETRY_LIMIT_SECONDS", 0)
    outage.append("at the start")
    page = talk("agents/echo")
    response = page.post(page.build("hello"))
    assert response.status_code == 503
    assert response.json()["error_code"] == "OUTCOME_UNKNOWN"
    assert response.json()["run_id"]
    # A client that repeats the request would start another run.
    assert "Retry-After" not in response.headers
