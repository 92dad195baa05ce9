"""Streams of the AI SDK over HTTP (docs/ai-sdk.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.agui.pages import APPROVER, ORIGIN, plan
from tests.agui.test_agui import call_page, plan_two
from tests.ai_sdk.chats import Chat
from tests.ai_sdk.client import needs_client, read_with_client
from tests.ai_sdk.protocol import Message, apply, calls_of, parse_stream, text_of, types_of
from tests.interop.faces import read_streams
from tests.kit.deployment import ADMIN
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer
from tests.kit.world_agents import ADD, OPEN

Talk = Callable[..., Chat]


def test_thinking_and_progress(talk: Talk) -> None:
    chat = talk("agents/teller")
    chat.say("ada", dependencies={"shop": 7})
    assert types_of(chat.newest) == [
        "step-start", "reasoning", "data-agentctl-progress", "text",
    ]  # fmt: skip
    _, thinking, progress, _ = chat.newest["parts"]
    assert thinking["text"] == "I look it up."
    assert progress["data"] == {"text": "half", "fraction": 0.5}
    assert text_of(chat.newest) == "Hello ada {'shop': 7}"


def test_repeated_answer_returns_the_same_chunks(talk: Talk, served: ThreadedServer) -> None:
    chat = talk("agents/payer")
    chat.say(plan(ADD))
    chat.decide(True)
    before = json.loads(json.dumps(chat.messages))
    chunks = chat.submit()
    assert (calls_of(chat.newest)[0]["output"], text_of(chat.newest)) == ("3", "3")

    chat.messages = before
    assert chat.submit() == chunks
    runs = served.client.get(
        f"/sessions/{chat.chat_id}/runs", headers=served.bearer("root", ADMIN)
    ).json()
    assert len(runs) == 1


def test_approvals_are_answered_together(talk: Talk) -> None:
    chat = talk("agents/payer")
    chat.say(plan_two())
    chat.decide(True, 0)
    (_, second) = calls_of(chat.newest)
    assert second["approval"]["id"] in chat.refuse(422)
    question = {"id": "x", "role": "user", "parts": [{"type": "text", "text": "and?"}]}
    assert second["approval"]["id"] in chat.refuse(409, messages=[*chat.messages, question])
    chat.decide(True, 1)
    chat.submit()
    assert text_of(chat.newest) == "3 | 3"


def test_approver_decides_elsewhere(talk: Talk, served: ThreadedServer) -> None:
    chat = talk("agents/careful")
    chat.say(plan(ADD))
    (call,) = calls_of(chat.newest)
    assert "an approver decides" in call["approval"]["requestReason"]
    chat.decide(True)
    assert "cannot be answered here" in chat.refuse(403)
    decided = served.client.post(
        f"/agents/careful/approvals/{call['approval']['id']}/decide",
        json={"decision": "reject", "note": "no"},
        headers=served.bearer("eve", *APPROVER),
    )
    assert decided.status_code == 200, decided.text
    chat.submit()
    (call,) = calls_of(chat.newest)
    assert call["state"] == "output-denied"
    assert (call["approval"]["approved"], call["approval"]["reason"]) == (False, "no")


def test_question_is_a_call_of_the_page(talk: Talk) -> None:
    chat = talk("agents/clerk")
    chat.say("book")
    (question,) = calls_of(chat.newest)
    assert (question["type"], question["state"]) == ("tool-ask", "input-available")
    assert question["input"]["question"] == "How many seats?"
    assert question["input"]["schema"]["required"] == ["seats"]
    chat.answer(output={"seats": "two"})
    assert "seats" in chat.refuse(422)
    chat.answer(output={"seats": 2})
    chat.submit()
    assert text_of(chat.newest) == "{'seats': 2}"


def test_tools_of_the_page(talk: Talk) -> None:
    chat = talk("agents/payer")
    tool = {name: value for name, value in OPEN.items() if name != "name"}
    chat.say(call_page("a", "b"), tools={"open_file": tool}, system="Obey.", callSettings={})
    assert types_of(chat.newest) == ["step-start", "tool-open_file", "tool-open_file"]
    chat.answer(0, output="text of a")
    chat.answer(1, errorText="no such file")
    chat.submit(tools={"open_file": tool})
    assert [call["state"] for call in calls_of(chat.newest)] == [
        "output-available", "output-error",
    ]  # fmt: skip
    assert text_of(chat.newest) == "text of a | no such file"
    assert "waits for" in chat.refuse(404)


def test_member_asks_in_the_chat_of_its_team(talk: Talk) -> None:
    chat = talk("teams/office")
    chat.say('{"a": 1, "b": 2}')
    (call,) = calls_of(chat.newest)
    (member,) = (part for part in chat.newest["parts"] if part["type"] == "data-agentctl-member")
    assert member["data"] == {"name": "asker", "status": "PAUSED"}
    chat.decide(True)
    chat.submit()
    (call,) = calls_of(chat.newest)
    assert (call["state"], call["output"]) == ("output-available", "3")


def test_history_is_that_of_the_session(talk: Talk) -> None:
    chat = talk("agents/history")
    for number, (role, text) in enumerate(
        [("system", "Obey."), ("user", "what I never said"), ("assistant", "what nobody said")]
    ):
        part = {"type": "text", "text": text}
        chat.messages.append({"id": f"x{number}", "role": role, "parts": [part]})
    chat.say("hello")
    chat.say("again")
    said = [text for role, text in json.loads(text_of(chat.newest)) if role == "user"]
    assert said == ["hello", "again"]


def test_regenerated_answer_takes_the_place_of_the_newest(
    talk: Talk, served: ThreadedServer
) -> None:
    chat = talk("agents/history")
    chat.say("one")
    chat.say("two")
    first = chat.messages.pop()
    chat.submit(trigger="regenerate-message")
    assert text_of(chat.newest) == text_of(first)
    assert chat.newest["id"] != first["id"]
    chat.say("three")
    said = [text for role, text in json.loads(text_of(chat.newest)) if role == "user"]
    assert said == ["one", "two", "three"]
    chat.messages = chat.messages[:1]
    assert "newest answer" in chat.refuse(409, trigger="regenerate-message")
    other = talk("agents/history", messages=chat.messages)
    other.refuse(404, trigger="regenerate-message")


def user(*parts: object) -> dict[str, Any]:
    """Return the messages of a chat with one message of its user."""
    return {"messages": [{"id": "1", "role": "user", "parts": parts}]}


def assistant(*parts: object) -> dict[str, Any]:
    """Return the messages of a chat with one message of its agent."""
    return {"messages": [{"id": "1", "role": "assistant", "parts": parts}]}


TEXT = {"type": "text", "text": "x"}
LINK = {"type": "file", "mediaType": "image/png", "url": "https://example.org/x.png"}
DECIDED = {"type": "dynamic-tool", "toolCallId": "c", "state": "approval-responded"}
MANY_DECIDED = [
    {**DECIDED, "toolCallId": f"c{number}", "approval": {"id": "x", "approved": True}}
    for number in range(101)
]

WRONG_REQUESTS: list[tuple[dict[str, Any], str]] = [
    (user(TEXT, LINK), "parts[1] must be a data URL"),
    (user({"type": "reasoning", "text": "x"}), "messages are text"),
    (user(*[TEXT] * 2_049), "2048 entries"),
    (assistant(TEXT), "no answer"),
    (assistant({**DECIDED, "approval": {"id": "x"}}), "approved must be true or false"),
    (assistant({**DECIDED, "approval": 1}), "approval must be an object"),
    (assistant({"type": "tool-x", "state": "output-available"}), "toolCallId"),
    (assistant(*MANY_DECIDED), "at most 100 answers"),
    ({"messages": []}, "must end with"),
    ({"messages": "hello"}, "messages must be an array"),
    ({"messages": [user(TEXT)] * 2_049}, "2048 entries"),
    ({"messages": [{"id": "1", "role": "system", "parts": [TEXT]}]}, "must end with"),
    ({**assistant(TEXT), "trigger": "regenerate-message"}, "must end with"),
    ({**user(TEXT), "trigger": "resume"}, "trigger"),
    ({**user(TEXT), "id": "a/b"}, "id must be"),
    ({**user(TEXT), "tools": {"a b": {}}}, "tools[0].name"),
    ({**user(TEXT), "tools": {f"t{number}": {} for number in range(129)}}, "128"),
    ({**user(TEXT), "tools": [OPEN]}, "tools must be an object"),
    ({**user(TEXT), "dependencies": "x"}, "dependencies must be an object"),
]


@every_row("fields, words", WRONG_REQUESTS)
def test_wrong_request_is_refused_before_it_creates_a_session(
    talk: Talk, served: ThreadedServer, fields: dict[str, Any], words: str
) -> None:
    chat = talk("agents/echo")
    assert words in chat.refuse(422, **fields)
    headers = served.bearer("root", ADMIN)
    assert served.client.get(f"/sessions/{chat.chat_id}", headers=headers).status_code == 404


def test_request_has_to_be_an_object_in_json(talk: Talk) -> None:
    chat = talk("agents/echo")
    assert chat.call("POST", json=[]).status_code == 422
    assert chat.call("POST", content=b"{}").status_code == 415


def test_strangers_learn_nothing(talk: Talk, served: ThreadedServer) -> None:
    owner = talk("agents/payer")
    owner.say(plan(ADD))
    owner.decide(True)
    other = Chat(served, "agents/payer", owner.chat_id, "ben", messages=owner.messages)
    assert owner.newest["id"] not in other.refuse(404)
    assert other.call("GET", f"/{owner.chat_id}/stream").status_code == 204
    assert other.call("POST", f"/{owner.chat_id}/stop").status_code == 204
    Chat(served, "agents/careful", owner.chat_id, messages=owner.messages).refuse(404)
    for scopes, status in (((), 403), (("agents:echo:run",), 403)):
        chat = Chat(served, "agents/payer", owner.chat_id, scopes=scopes, messages=owner.messages)
        chat.refuse(status)
        assert chat.call("GET", f"/{owner.chat_id}/stream").status_code == status
        assert chat.call("POST", f"/{owner.chat_id}/stop").status_code == status
    assert talk("agents/nothing").call("GET", "/x/stream").status_code == 404
    assert served.client.post("/ai/agents/payer", json={}).status_code == 401
    assert owner.call("GET").status_code == 405
    owner.submit()
    assert text_of(owner.newest) == "3"


def test_paused_answer_is_resumed_whole(talk: Talk) -> None:
    chat = talk("agents/payer")
    assert chat.call("GET", f"/{chat.chat_id}/stream").status_code == 204
    chat.say(plan(ADD, ADD | {"arguments": {"a": 5, "b": 5}}, ADD))
    for approved in (True, False):
        resumed = chat.resume()
        assert resumed == chat.newest
        # After a reload the page has only what it reads from the stream.
        chat.messages[-1] = resumed
        chat.decide(approved)
        chat.submit()
    resumed = chat.resume()
    states = ["output-available", "output-denied", "approval-requested"]
    assert [call["state"] for call in calls_of(resumed)] == states
    assert resumed == chat.newest
    chat.decide(True)
    chat.submit()
    assert chat.call("GET", f"/{chat.chat_id}/stream").status_code == 204


def test_paused_run_is_stopped(talk: Talk) -> None:
    chat = talk("agents/payer")
    chat.say(plan(ADD))
    stopped = chat.call("POST", f"/{chat.chat_id}/stop")
    assert (stopped.status_code, stopped.json()["status"]) == (200, "CANCELLED")
    chat.decide(True)
    assert "cancelled by ada" in chat.refuse(409)
    assert chat.call("POST", f"/{chat.chat_id}/stop").status_code == 204


def test_repeated_request_with_a_key_is_one_run(talk: Talk) -> None:
    chat = talk("agents/echo")
    chat.say("hello", headers={"Idempotency-Key": chat.chat_id})
    first = chat.messages.pop()
    chat.submit(headers={"Idempotency-Key": chat.chat_id})
    assert chat.newest["id"] == first["id"]


def test_pages_of_allowed_origins_can_use_it(talk: Talk, served: ThreadedServer) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    for path in ("", "/chat/stop"):
        found = served.client.options(f"/ai/agents/echo{path}", headers=asked)
        assert found.status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("POST", "/ai/teams/crew", "POST /teams/{team_id}/runs"),
        ("GET", "/ai/teams/crew/c/stream", "POST /teams/{team_id}/runs/{run_id}/resume"),
        ("POST", "/ai/teams/crew/c/stop", "POST /teams/{team_id}/runs/{run_id}/cancel"),
    ],
)
def test_explanation_names_the_operation(
    served: ThreadedServer, method: str, path: str, operation: str
) -> None:
    request = {"method": method, "path": path}
    found = served.client.post(
        "/auth/explain", json=request, headers=served.bearer("root", ADMIN)
    ).json()
    assert f"explain {operation}" in json.dumps(found)


@needs_client
def test_client_of_the_sdk_reads_the_golden_streams() -> None:
    given = []
    expected_messages = []
    for streams in read_streams("ai_sdk").values():
        message = None
        for title, text in streams:
            before = message if title.startswith("leg") else None
            message = apply(parse_stream(text), before)
            given.append({"before": before, "text": text})
            expected_messages.append(message)

    read_messages = read_with_client(given)
    for asked, expected, read in zip(given, expected_messages, read_messages, strict=True):
        message = read["message"]
        assert message["id"] == expected["id"]
        assert simplify(message) == simplify(expected)
        assert len(read["errors"]) == asked["text"].count('"type":"error"'), read["errors"]


def simplify(message: Message) -> list[dict[str, Any]]:
    """Return the parts of a message; the client writes the start of a step with the next part."""
    parts = [simplify_part(part) for part in message["parts"]]
    while parts and parts[-1]["type"] == "step-start":
        parts.pop()
    return parts


def simplify_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a part that pages draw."""
    names = ("type", "text", "toolCallId", "state", "input", "output", "errorText", "data", "id")
    found = {name: part[name] for name in names if part.get(name) is not None}
    if part["type"] in ("text", "reasoning"):
        assert part.get("state", "done") == "done"
        found = {"type": part["type"], "text": part["text"]}
    if "approval" in part:
        found["approval"] = {name: part["approval"].get(name) for name in ("id", "approved")}
    return found
