"""The object `input` of a run: the value for the code, the stored record, and the refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import parse_events

MODULE = Path(__file__).with_name("input_code.py")
AGENTS = re.findall(r"^(?:async )?def (take_\w+)\(", MODULE.read_text(), re.MULTILINE)
TABLES = """
[openai]
enabled = true
[[agents]]
id = "made"
object = "input_code:make_order_agent"
[[teams]]
id = "group"
model = "delegate"
members = ["take_order"]
[[workflows]]
id = "orders"
steps = [
    { name = "first", agent = "take_order" }, { name = "second", agent = "take_message" }
]
[[workflows]]
id = "chain"
steps = [{ name = "first", agent = "take_any" }, { name = "second", agent = "take_order" }]
[[workflows]]
id = "by-model"
steps = [{ name = "first", agent = "echo" }]
"""
ORDER = {"number": "A-1", "pieces": 3}
SIZE = 65_536


@pytest.fixture(scope="module")
def host(deploy: Deploy) -> Iterator[ThreadedServer]:
    agents = [f'[[agents]]\nid = "{name}"\nobject = "input_code:{name}"' for name in AGENTS]
    files = {"input_code.py": MODULE.read_text()}
    with serve_in_thread(deploy("\n".join([*agents, TABLES]), files=files)) as started:
        yield started


def post(host: ThreadedServer, path: str, body: object, **options: Any) -> Any:
    sent = {"json": body} if isinstance(body, dict) else {"content": body}
    return host.client.post(
        f"/{path}/runs",
        **sent,
        headers={"Content-Type": "application/json", **host.bearer("ann", ADMIN), **options},
        timeout=PATIENCE,
    )


def run(host: ThreadedServer, name: str, status: str = "COMPLETED", **body: Any) -> dict[str, Any]:
    path = name if "/" in name else f"agents/{name}"
    answer = post(host, path, {"stream": False, **body})
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    assert record["status"] == status, record["error"]
    return record


def get(host: ThreadedServer, path: str) -> Any:
    answer = host.client.get(path, headers=host.bearer("ann", ADMIN), timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("agent", "given", "expected"),
    [
        ("take_order", {"number": "A-1"}, "Order Order(number='A-1', pieces=1) "),
        ("take_place", {"city": "Bern"}, "dict {'city': 'Bern'} "),
        ("take_route", {"stops": [{}]}, "dict {'stops': [{}]} "),
        ("take_ticket", {"title": "Rain"}, "Ticket title='Rain' tags=[] "),
        ("take_either", {"number": "A-1"}, "Order Order(number='A-1', pieces=1) "),
        ("take_message", {"any": ["thing"]}, 'str {"any":["thing"]} '),
        ("made", {"number": "A-1"}, "Order Order(number='A-1', pieces=1) "),
    ],
)
def test_code_gets_the_object(
    host: ThreadedServer, agent: str, given: dict[str, Any], expected: str
) -> None:
    record = run(host, agent, input=given)
    assert record["content"] == expected + json.dumps(given)
    text = json.dumps(given, separators=(",", ":"))
    assert (record["input"], record["input_object"]) == (text, given)
    assert record["messages"][0]["content"] == text
    assert get(host, f"/runs/{record['run_id']}") == record
    assert get(host, f"/runs/{record['run_id']}?view=items")["input_object"] == given
    assert "input_object" not in get(host, f"/runs/{record['run_id']}?view=summary")
    assert get(host, f"/sessions/{record['session_id']}")["session_name"] == text


def test_object_and_message_are_stored_apart(host: ThreadedServer) -> None:
    record = run(host, "take_message", message="hello", input=ORDER)
    assert record["content"] == f"str hello {json.dumps(ORDER)}"
    assert (record["input"], record["input_object"]) == ("hello", ORDER)
    session = get(host, f"/sessions/{record['session_id']}")
    assert session["session_name"] == "hello"
    record = run(host, "take_message", message="hello")
    assert (record["content"], record["input_object"]) == ("str hello null", None)


def test_code_that_changes_its_object_changes_no_other(host: ThreadedServer) -> None:
    record = run(host, "take_numbers", input={"a": 1, "b": 2})
    assert record["content"] == "dict {'a': 1, 'b': 2, 'sum': 3} " + '{"a": 1, "b": 2}'
    assert record["input_object"] == {"a": 1, "b": 2}


def test_union_with_text_takes_a_message(host: ThreadedServer) -> None:
    assert run(host, "take_either", message="hello")["content"] == "str hello null"
    assert run(host, "take_either", message='{"number": "x"}')["content"].startswith("str {")


def test_later_runs_have_the_text_of_the_object_in_their_history(host: ThreadedServer) -> None:
    first = run(host, "take_history", input=ORDER, session_id="with-input")
    second = run(host, "take_history", message="again", session_id="with-input")
    text = json.dumps(ORDER, separators=(",", ":"))
    assert json.loads(second["content"]) == [text, first["content"]]


def test_json_text_as_message_is_an_object(host: ThreadedServer) -> None:
    record = run(host, "take_order", message='{"number": "A-1"}')
    assert record["content"] == "Order Order(number='A-1', pieces=1) " + '{"number": "A-1"}'
    assert (record["input"], record["input_object"]) == ('{"number": "A-1"}', {"number": "A-1"})


def test_form_stream_and_background_take_an_object(host: ThreadedServer) -> None:
    headers = host.bearer("ann", ADMIN)
    form = {"input": json.dumps(ORDER), "stream": "false"}
    answer = host.client.post("/agents/take_order/runs", data=form, headers=headers)
    assert (answer.status_code, answer.json()["input_object"]) == (200, ORDER)
    lines = post(host, "agents/take_order", {"input": ORDER}).iter_lines()
    *_, (_, last, _) = parse_events(lines)
    assert "pieces=3" in last["content"]
    body = {"input": ORDER, "stream": False, "background": True}
    answer = post(host, "agents/take_ticket", {**body, "input": {"title": "Rain"}})
    assert answer.status_code == 202
    path = f"/runs/{answer.json()['run_id']}"
    wait_for(lambda: get(host, path)["status"] == "COMPLETED")
    assert get(host, path)["content"].startswith("Ticket title='Rain'")


def test_first_step_gets_the_object_of_the_workflow(host: ThreadedServer) -> None:
    record = run(host, "workflows/orders", input=ORDER)
    given = f"Order Order(number='A-1', pieces=3) {json.dumps(ORDER)}"
    assert record["content"] == f"str {given} null"
    first, second = (get(host, f"/runs/{step}") for step in record["member_runs"])
    assert (record["input_object"], first["input_object"]) == (ORDER, ORDER)
    assert (second["input"], second["input_object"]) == (given, None)


def test_step_and_member_read_an_object_from_their_task(host: ThreadedServer) -> None:
    record = run(host, "workflows/chain", input=ORDER)
    assert record["content"].startswith("Order Order(number='A-1', pieces=3) null")
    record = run(host, "teams/group", message='{"number":"B-2"}')
    assert "Order(number='B-2'" in record["tools"][0]["result"]
    record = run(host, "teams/group", message="B-2")
    member = get(host, f"/runs/{record['member_runs'][0]}")
    assert member["error"] == {
        "code": "AGENT_FAILED",
        "detail": "The agent was not called: input must be the JSON text of an object",
    }
    record = run(host, "workflows/chain", "ERROR", input={"number": 7})
    assert record["error"]["detail"] == (
        "The step second failed: The agent was not called: input.number does not match its schema:"
        ' the value is not of type "string"'
    )


def test_leader_gets_the_schema_of_a_member(
    host: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    run(host, "teams/group", message='{"number":"B-2"}')
    system = model_endpoint.requests("delegate")[-1]["messages"][0]["content"]
    assert "The task of take_order is the JSON text of an object with this JSON Schema: {" in system
    assert '"required": ["number"]' in system


BAD = [
    ("agents/take_order", {}, 422, "message is required"),
    ("agents/take_order", {"message": ""}, 422, "message must not be empty"),
    ("agents/take_order", {"message": " \n"}, 422, "message must not be empty"),
    ("agents/take_order", {"input": [1]}, 422, "input must be a JSON object"),
    ("agents/take_order", {"input": "{}"}, 422, "input must be a JSON object"),
    ("agents/take_message", {"input": {"a": "x" * SIZE}}, 413, "input must be at most 65536 bytes"),
    ("agents/take_any", {"message": json.dumps({"a": "x" * SIZE})}, 413, "message must be at most"),
    ("agents/take_message", {"input": {"a": "\0"}}, 422, "input must not contain NUL"),
    ("agents/take_message", {"input": {"a": 2**64}}, 422, "input holds an integer of more than 64"),
    ("agents/take_message", b'{"input": {"a": 1, "a": 2}}', 400, "The body is not valid JSON"),
    ("agents/take_order", {"input": {"pieces": 1}}, 422, '"number" is a required property'),
    (
        "agents/take_order",
        {"input": {"number": "a", "pieces": "many"}},
        422,
        'input.pieces does not match its schema: the value is not of type "integer"',
    ),
    ("agents/made", {"input": {"number": 1}}, 422, "input.number does not match its schema"),
    ("agents/take_numbers", {"input": {"a": "b"}}, 422, "input.a does not match its schema"),
    ("agents/take_route", {"input": {}}, 422, '"stops" is a required property'),
    ("agents/take_route", {"input": {"stops": [{"place": {}}]}}, 422, "input.stops"),
    ("agents/take_ticket", {"input": {"title": "rain"}}, 422, "input.title is not valid"),
    ("agents/take_either", {"input": {"pieces": 1}}, 422, '"number" is a required property'),
    (
        "agents/take_order",
        {"message": "hello"},
        422,
        "input is required: the agent take_order takes an object, or its JSON text as message",
    ),
    ("agents/take_order", {"message": '{"a": 1, "a": 2}'}, 422, "input is required"),
    ("agents/take_order", {"message": '{"number": 1}'}, 422, "message.number does not match"),
    ("workflows/orders", {"input": {"number": 1}}, 422, "input.number does not match its schema"),
    ("agents/echo", {"input": ORDER}, 422, "input is for agents in code: the agent echo takes a"),
    ("teams/group", {"message": "x", "input": {}}, 422, "input is for agents in code: the team"),
    ("workflows/by-model", {"input": {}}, 422, "input is for agents in code: the workflow"),
    ("agents/absent", {"input": {"a": [1]}}, 404, "Agent not found"),
]


@pytest.mark.parametrize(("path", "body", "status", "text"), BAD)
def test_bad_input_is_refused_and_stores_nothing(
    host: ThreadedServer, path: str, body: Any, status: int, text: str
) -> None:
    before = get(host, "/runs?limit=1")["meta"]["total_count"]
    answer = post(host, path, body)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["detail"]
    assert "secret" not in answer.text
    assert get(host, "/runs?limit=1")["meta"]["total_count"] == before


def test_input_that_nests_too_deep_is_refused(host: ThreadedServer) -> None:
    deep: dict[str, Any] = {}
    for _ in range(64):
        deep = {"a": deep}
    answer = post(host, "agents/take_message", {"input": deep})
    assert answer.status_code == 422
    assert answer.json()["detail"] == "input nests deeper than 64 levels"


def test_type_that_fails_is_a_failure_of_the_agent(host: ThreadedServer) -> None:
    record = run(host, "take_ticket", "ERROR", input={"title": "broken"})
    assert record["error"] == {"code": "AGENT_FAILED", "detail": "The code of the agent failed"}


def test_form_field_that_is_no_object_is_refused(host: ThreadedServer) -> None:
    for text in ("[1]", "hello", '{"a": 1, "a": 2}'):
        answer = host.client.post(
            "/agents/take_message/runs", data={"input": text}, headers=host.bearer("ann", ADMIN)
        )
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("input must be a JSON object"), answer.text


def test_repeated_request_needs_the_same_object(host: ThreadedServer) -> None:
    body = {"input": ORDER, "stream": False}
    first, second = (
        post(host, "agents/take_order", body, **{"Idempotency-Key": "with-input"}).json()
        for _ in range(2)
    )
    assert first["run_id"] == second["run_id"]
    for changed in ({**body, "input": {"number": "other"}}, {**body, "message": "hello"}):
        answer = post(host, "agents/take_order", changed, **{"Idempotency-Key": "with-input"})
        assert answer.status_code == 422
        assert "Idempotency-Key" in answer.json()["detail"]


def test_records_of_components_have_the_schema(host: ThreadedServer) -> None:
    schema = get(host, "/agents/take_order")["input_schema"]
    assert schema["required"] == ["number"]
    assert {name: each["type"] for name, each in schema["properties"].items()} == {
        "number": "string",
        "pieces": "integer",
    }
    assert get(host, "/workflows/orders")["input_schema"] == schema
    assert get(host, "/agents/take_message")["input_schema"] is None
    assert get(host, "/agents/echo")["input_schema"] is None
    assert all("input_schema" not in agent for agent in get(host, "/agents"))
    run(host, "made", input=ORDER)
    assert get(host, "/agents/made")["input_schema"] == schema


def test_clients_of_openai_send_the_object_as_text(host: ThreadedServer) -> None:
    body = {"model": "take_order", "messages": [{"role": "user", "content": '{"number": "C-3"}'}]}
    headers = host.bearer("ann", ADMIN)
    answer = host.client.post("/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert "Order(number='C-3'" in answer.json()["choices"][0]["message"]["content"]
