"""Tools of the caller and approvals at the OpenAI interface, used with OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from agentctl.server import create_app
from tests.kit.conditions import wait_for
from tests.kit.model import ModelEndpoint
from tests.kit.site import SCOPES, Site, answer, call, create_site
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

ENABLED = """
[openai]
enabled = true
"""
TAB: Any = {
    "type": "function",
    "function": {
        "name": "open-tab",
        "description": "Open a tab",
        "parameters": {
            "type": "object",
            "properties": {"url": {"type": "string"}},
            "additionalProperties": False,
        },
        "strict": True,
    },
}
FLAT: Any = {"type": "function", **TAB["function"]}
TWO = [call("open-tab", "t", url="a"), call("open-tab", "u", url="b")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Site:
    return create_site(
        tmp_path_factory.mktemp("openai-tools"), model_endpoint.base_url, extra=ENABLED
    )


@pytest.fixture(scope="module")
def served(site: Site) -> Iterator[ThreadedServer]:
    app = create_app(site.deployment.settings)
    with serve_in_thread(site.deployment, app) as host:
        yield host


def open_client(site: Site, url: str, user: str = "ada") -> openai.OpenAI:
    key = site.deployment.token(user, *SCOPES)
    return openai.OpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0)


@pytest.fixture(scope="module")
def client(site: Site, served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with open_client(site, served.url) as client:
        yield client


def ask(plan: list[Any]) -> list[Any]:
    """Return the messages for a model that follows a plan."""
    return [{"role": "user", "content": json.dumps(plan)}]


def give(messages: list[Any], message: Any, *results: str) -> list[Any]:
    """Return the messages of the next request: the calls and their results, in reverse order."""
    given = [
        {"role": "tool", "tool_call_id": made.id, "content": result}
        for made, result in zip(message.tool_calls, results, strict=False)
    ]
    return [*messages, message.model_dump(exclude_none=True), *reversed(given)]


@pytest.mark.parametrize("model", ["clerk", "office"])
def test_calls_are_handed_out_and_their_results_continue_the_run(
    client: openai.OpenAI, model: str
) -> None:
    plan = [answer(*TWO, text="let me see"), answer(call("open-tab", "v", url="c"))]
    messages = ask(plan)
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, tools=[TAB], tool_choice="required"
    )
    first = raw.parse()
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    assert message.content == "let me see"
    made = [(each.function.name, each.function.arguments) for each in message.tool_calls or ()]
    assert made == [("open-tab", '{"url":"a"}'), ("open-tab", '{"url":"b"}')]
    messages = give(messages, message, "one", "two")
    second = client.chat.completions.create(model=model, messages=messages, tools=[TAB])
    message = second.choices[0].message
    assert (message.content, second.choices[0].finish_reason) == (None, "tool_calls")
    messages = give(messages, message, "three")
    again = client.chat.completions.with_raw_response.create(model=model, messages=messages)
    last = again.parse()
    assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("three", "stop")
    assert again.headers["x-run-id"] == raw.headers["x-run-id"]
    assert len({first.id, second.id, last.id}) == 3
    assert first.usage is not None
    assert last.usage is not None
    assert 0 < last.usage.completion_tokens < 20
    # A later question has the calls and the results before it, and is a new run.
    messages += [
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": json.dumps([answer(text="new")])},
    ]
    found = client.chat.completions.create(model=model, messages=messages)
    assert found.choices[0].message.content == "new"


def test_conversation_can_be_named_as_the_previous_response(client: openai.OpenAI) -> None:
    asked = client.responses.create(
        model="clerk", input=json.dumps([answer(call("open-tab", "t", url="a"))]), tools=[FLAT]
    )
    assert asked.conversation is not None
    made: Any = asked.output[0]
    given: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "opened"}
    followed = client.responses.create(
        model="clerk", input=[given], previous_response_id=asked.conversation.id
    )
    assert followed.output_text == "opened"
    later = client.responses.create(
        model="clerk",
        input=json.dumps([answer(text="more")]),
        previous_response_id=asked.conversation.id,
    )
    assert (later.output_text, later.conversation) == ("more", asked.conversation)


def test_earlier_calls_reach_the_model_as_calls(
    client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    made = {"id": "other", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    client.chat.completions.create(
        model="clerk",
        messages=[
            {"role": "user", "content": "one"},
            {"role": "assistant", "tool_calls": [made]},  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": "other", "content": "two"},
            *ask([answer(text="x")]),
        ],
    )
    sent = model_endpoint.requests("plan")[-1]["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "tool", "user"]
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"]


def test_one_call_at_a_time_without_parallel_calls(client: openai.OpenAI) -> None:
    messages = ask([answer(*TWO)])
    options: Any = {"model": "clerk", "tools": [TAB], "parallel_tool_calls": False}
    for result in ("one", "two"):
        found = client.chat.completions.create(messages=messages, **options)
        (made,) = found.choices[0].message.tool_calls or ()
        assert json.loads(made.function.arguments)["url"] == ("a" if result == "one" else "b")
        messages = give(messages, found.choices[0].message, result)
    found = client.chat.completions.create(messages=messages, **options)
    assert found.choices[0].message.content == "one | two"


def test_tool_choice_reaches_the_model(
    client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    choices: list[Any] = [{"type": "function", "function": {"name": "open-tab"}}, "auto", "none"]
    for choice in choices:
        client.chat.completions.create(
            model="clerk", messages=ask([answer(text="x")]), tools=[TAB], tool_choice=choice
        )
    named, auto, none = model_endpoint.requests("plan")[-3:]
    assert named["tool_choice"] == choices[0]
    assert auto["tool_choice"] == "auto"
    names = [tool["function"]["name"] for tool in none["tools"]]
    assert "open-tab" not in names
    assert "open-tab" in [tool["function"]["name"] for tool in named["tools"]]
    for tools, param in (
        ([{"type": "function", "function": {"name": "refund"}}], "tools"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools"),
        ([TAB] * 2, "tools"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model="clerk",
                messages=ask([]),
                tools=tools,  # type: ignore[arg-type]
            )
        assert refused.value.param == param
        assert "client_tools" not in refused.value.message


def test_results_of_other_calls_are_refused(
    site: Site, served: ThreadedServer, client: openai.OpenAI
) -> None:
    messages = ask([answer(TWO[0])])
    found = client.chat.completions.create(model="clerk", messages=messages, tools=[TAB])
    given = give(messages, found.choices[0].message, "one")

    def refuse(client: openai.OpenAI, messages: list[Any], model: str = "clerk") -> Any:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model=model, messages=messages)
        body: Any = caught.value.body
        return caught.value.status_code, caught.value.code, body["message"], body["param"]

    unknown = "call_" + "0" * 12 + "7" + "0" * 3 + "8" + "0" * 15
    expected = refuse(client, [*messages, {**given[-1], "tool_call_id": unknown}])
    assert expected[:2] == (400, "tool_call_not_found")
    with open_client(site, served.url, "mallory") as stranger:
        refused = refuse(stranger, [*messages, given[-1]])
        assert refused == expected
        assert refuse(stranger, [*messages, {**given[-1], "tool_call_id": "x"}]) == expected
    assert refuse(client, [*messages, given[-1]], model="payer")[1] == "tool_call_not_found"
    last = client.chat.completions.create(model="clerk", messages=given)
    assert last.choices[0].message.content == "one"
    assert refuse(client, given)[:2] == (409, "tool_call_closed")


def test_function_calls_of_a_response_continue_it(client: openai.OpenAI) -> None:
    def create(**options: Any) -> Any:
        with client.responses.stream(model="clerk", tools=[FLAT], **options) as stream:
            return stream.get_final_response()

    first = create(input=json.dumps([answer(*TWO, text="see")]))
    assert first.status == "completed"
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    calls = first.output[1:]
    assert [(item.name, item.arguments) for item in calls] == [
        ("open-tab", '{"url":"a"}'),
        ("open-tab", '{"url":"b"}'),
    ]
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": result}
        for item, result in zip(calls, ("one", "two"), strict=True)
    ]
    stored = client.responses.retrieve(first.id)
    assert [item.type for item in stored.output] == ["message", "function_call", "function_call"]
    with pytest.raises(openai.BadRequestError) as missing:
        create(input="and now?", previous_response_id=first.id)
    assert missing.value.code == "tool_results_missing"
    last = create(input=results, previous_response_id=first.id)
    assert (last.status, last.output_text) == ("completed", "one | two")
    assert last.id != first.id
    assert create(input="[]", previous_response_id=last.id).output_text


REPEATED = {
    "approval": ("clerk", call("refund", amount=1, to="bob")),
    "result of a member": (
        "office",
        call(
            "delegate_task_to_member",
            member_id="clerk",
            task=json.dumps([answer(call("open_file", path="a"))]),
        ),
    ),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_repeated_answer_with_a_key_gets_the_same_response(
    client: openai.OpenAI, kind: str
) -> None:
    model, asked_call = REPEATED[kind]
    first = client.responses.create(model=model, input=json.dumps([answer(asked_call)]))
    asked: Any = first.output[0]
    given: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    if asked.type == "function_call":
        given = {"type": "function_call_output", "call_id": asked.call_id, "output": "one"}

    key = {"Idempotency-Key": f"repeat-{first.id}"}
    responses = [
        client.responses.create(
            model=model, input=[given], previous_response_id=first.id, extra_headers=key
        )
        for _ in range(2)
    ]
    assert [response.status for response in responses] == ["completed"] * 2
    assert responses[0].output == responses[1].output
    assert responses[0].id == responses[1].id


def test_whole_conversation_as_items_continues_the_run(client: openai.OpenAI) -> None:
    items: list[Any] = ask([answer(TWO[0])])
    first = client.responses.create(model="clerk", input=items, tools=[FLAT])
    items += [item.model_dump(exclude_none=True) for item in first.output]
    call_id = items[-1]["call_id"]
    items.append({"type": "function_call_output", "call_id": call_id, "output": "one"})
    second = client.responses.create(model="clerk", input=items, tools=[FLAT])
    assert second.output_text == "one"
    items += [item.model_dump(exclude_none=True) for item in second.output]
    items += ask([answer(text="new")])
    assert client.responses.create(model="clerk", input=items).output_text == "new"


def test_references_name_the_items_of_earlier_responses(
    site: Site, served: ThreadedServer, client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    items: list[Any] = ask([answer(TWO[0])])
    first = client.responses.create(model="clerk", input=items, tools=[FLAT])
    made: Any = first.output[0]
    items += [
        {"type": "item_reference", "id": made.id},
        {"type": "function_call_output", "call_id": made.call_id, "output": "one"},
    ]
    second = client.responses.create(model="clerk", input=items, tools=[FLAT])
    items += [{"type": "item_reference", "id": second.output[0].id}, *ask([answer(text="new")])]
    assert client.responses.create(model="clerk", input=items).output_text == "new"
    sent = model_endpoint.requests("plan")[-1]["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert [turn["content"] for turn in sent[2:4]] == ["one", "one"]
    with open_client(site, served.url, "mallory") as stranger:
        for index in (1, 3):
            with pytest.raises(openai.BadRequestError) as refused:
                stranger.responses.create(model="clerk", input=[items[index], *ask([])])
            assert refused.value.param == "input[0].id"


def test_background_response_is_read_and_cancelled(
    client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    created = client.responses.create(
        model="clerk", input=json.dumps([answer(TWO[0])]), tools=[FLAT], background=True
    )
    assert created.status == "in_progress"
    found = wait_for_response(client, created.id)
    assert [item.type for item in found.output] == ["function_call"]
    call_id = found.output[0].call_id
    result: Any = {"type": "function_call_output", "call_id": call_id, "output": "one"}
    continued = client.responses.create(
        model="clerk", input=[result], previous_response_id=created.id, background=True
    )
    assert continued.status == "in_progress"
    assert wait_for_response(client, continued.id).output_text == "one"
    before = model_endpoint.open_calls()
    hanging = client.responses.create(
        model="clerk", input=json.dumps([{"hang": True}]), background=True
    )
    model_endpoint.wait_for_open(before + 1)
    assert client.responses.cancel(hanging.id).status == "cancelled"
    model_endpoint.wait_for_open(before)


def wait_for_response(client: openai.OpenAI, response_id: str, status: str = "completed") -> Any:
    get = partial(client.responses.retrieve, response_id)
    return wait_for(lambda: (found := get()).status == status and found)


def test_cancel_ends_the_next_leg_at_the_model(
    site: Site, served: ThreadedServer, client: openai.OpenAI, model_endpoint: ModelEndpoint
) -> None:
    """Also at another server."""
    plan = [answer(TWO[0]), {"hang": True}]
    before = model_endpoint.open_calls()
    messages = ask(plan)
    found = client.chat.completions.create(model="clerk", messages=messages, tools=[TAB])
    given = give(messages, found.choices[0].message, "one")
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="clerk", messages=given, timeout=2)
    model_endpoint.wait_for_open(before)

    first = client.responses.create(model="clerk", input=json.dumps(plan), tools=[FLAT])
    call_id = first.output[0].call_id  # type: ignore[union-attr]
    result: Any = {"type": "function_call_output", "call_id": call_id, "output": "one"}
    stream = client.responses.create(model="clerk", input=[result], stream=True)
    next(iter(stream))
    model_endpoint.wait_for_open(before + 1)
    with serve_in_thread(site.deployment) as second, open_client(site, second.url) as other:
        assert other.responses.cancel(first.id).status == "cancelled"
    assert client.responses.cancel(first.id).status == "cancelled"
    model_endpoint.wait_for_open(before)
    assert list(stream)[-1].type == "response.failed"


def test_run_whose_results_never_come_is_cancelled(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    extra = f"{ENABLED}\n[approvals]\nclient_seconds = 1\n"
    site = create_site(tmp_path, model_endpoint.base_url, extra=extra)
    with serve_in_thread(site.deployment) as server, open_client(site, server.url) as client:
        calls = len(model_endpoint.requests("plan"))
        found = client.responses.create(
            model="clerk", input=json.dumps([answer(TWO[0])]), tools=[FLAT]
        )
        stored = wait_for_response(client, found.id, "cancelled")
        assert stored.error is not None
        assert "did not give the result" in stored.error.message
        assert len(model_endpoint.requests("plan")) == calls + 1
