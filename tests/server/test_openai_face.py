"""The face for OpenAI's API, used with OpenAI's client (docs/openai.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

MESSAGES: Any = [{"role": "user", "content": "hello"}]
RUN = ("agents:run", "teams:run")

ORIGIN = "https://app.example.org"

EXTRA = """
[openai]
enabled = true
"""


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_in_thread(deploy(EXTRA, server=f'cors_origins = ["{ORIGIN}"]')) as host:
        yield host


def open_client(served: ThreadedServer, *scopes: str, user: str = "ada") -> openai.OpenAI:
    key = served.deployment.token(user, *(scopes or RUN))
    return openai.OpenAI(api_key=key, base_url=f"{served.url}/v1", max_retries=0)


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    with open_client(served) as client:
        yield client


def get_runs(served: ThreadedServer, session_id: str) -> list[dict[str, Any]]:
    """Return the runs of a session, as an administrator; none if there is no session."""
    found = served.client.get(f"/sessions/{session_id}/runs", headers=served.bearer("root", ADMIN))
    runs: list[dict[str, Any]] = [] if found.status_code == 404 else found.json()
    return runs


def test_models_are_the_components_that_the_caller_may_run(served: ThreadedServer) -> None:
    with open_client(served) as client:
        ids = [model.id for model in client.models.list()]
        assert ids[0] == "echo"
        assert {"crew", "desk"} <= set(ids)
        assert "line" not in ids
    with open_client(served, "agents:echo:run", "teams:read") as client:
        assert [model.id for model in client.models.list()] == ["echo"]
        assert client.models.retrieve("echo").owned_by == "world"
        with pytest.raises(openai.PermissionDeniedError, match="agents:half:run"):
            client.models.retrieve("half")


def test_completion_has_text_usage_and_a_stored_run(
    served: ThreadedServer, client: openai.OpenAI
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=MESSAGES, user="u-1", metadata={"a": "b"}
    )
    found = raw.parse()
    assert found.choices[0].message.content == "hello"
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens > 0
    run = get_runs(served, raw.headers["x-session-id"])[0]
    assert run["run_id"] == raw.headers["x-run-id"] == found.id.removeprefix("chatcmpl-")
    assert (run["user_id"], run["input"]) == ("ada", "hello")
    assert run["metadata"] == {"a": "b", "user": "u-1"}


def test_history_of_the_request_reaches_the_agent(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="history",
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": [{"type": "text", "text": "three"}]},
        ],
    )
    sent = json.loads(found.choices[0].message.content or "")
    assert [tuple(each) if isinstance(each, list) else each for each in sent][-1]
    assert [each[1] for each in sent if each[0] != "system"] == ["be brief", "one", "two", "three"]
    assert [each[1] for each in sent if each[0] == "system"] == ["Be history."]


EMPTY_ANSWERS: list[dict[str, Any]] = [
    {"content": None},
    {"content": ""},
    {"content": None, "tool_calls": None},
    {"content": None, "refusal": "I can not"},
    {"content": [{"type": "refusal", "refusal": "I can not"}]},
    {},
]


@pytest.mark.parametrize("answer", EMPTY_ANSWERS, ids=map(str, EMPTY_ANSWERS))
def test_history_may_have_answers_without_content(
    client: openai.OpenAI, answer: dict[str, Any]
) -> None:
    """Clients send back what a model has answered, also nothing and a refusal."""
    earlier = [
        {"role": "user", "content": "one"},
        {"role": "assistant", **answer},
        {"role": "user", "content": "two"},
    ]
    found = client.chat.completions.create(model="history", messages=earlier)  # type: ignore[arg-type]
    sent = json.loads(found.choices[0].message.content or "")
    texts = [each[1] for each in sent if each[0] == "user"]
    assert texts == ["one", "two"]
    assert ("I can not" in str(sent)) == ("I can not" in str(answer))

    responded = client.responses.create(model="history", input=earlier)  # type: ignore[arg-type]
    assert responded.status == "completed"


def test_session_replaces_the_history_of_the_request(
    served: ThreadedServer, client: openai.OpenAI
) -> None:
    headers = {"X-Session-ID": "openai-1"}
    client.chat.completions.create(model="history", messages=MESSAGES, extra_headers=headers)
    found = client.chat.completions.create(
        model="history",
        messages=[
            {"role": "user", "content": "never sent"},
            {"role": "assistant", "content": "made up"},
            {"role": "user", "content": "again"},
        ],
        extra_headers=headers,
    )
    sent = json.loads(found.choices[0].message.content or "")
    texts = [each[1] for each in sent if each[0] == "user"]
    assert texts == ["hello", "again"]
    assert [run["input"] for run in get_runs(served, "openai-1")] == ["hello", "again"]
    assert "never sent" not in found.choices[0].message.content


def test_response_continues_a_conversation(served: ThreadedServer, client: openai.OpenAI) -> None:
    first = client.responses.create(
        model="history", input="one", conversation="talk-1", instructions="be kind"
    )
    assert first.status == "completed"
    assert first.conversation is not None
    assert first.conversation.id == "talk-1"
    assert first.usage is not None
    assert first.usage.total_tokens > 0
    second = client.responses.create(
        model="history",
        input=[{"role": "user", "content": [{"type": "input_text", "text": "two"}]}],
        conversation={"id": "talk-1"},
    )
    texts = [each[1] for each in json.loads(second.output_text) if each[0] == "user"]
    assert texts == ["one", "two"]
    assert json.loads(first.output_text)[-2][1] == "be kind"


def test_previous_response_continues_its_session(
    served: ThreadedServer, client: openai.OpenAI
) -> None:
    first = client.responses.create(model="history", input="one", instructions="be kind")
    second = client.responses.create(
        model="history",
        previous_response_id=first.id,
        input=[
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "so"},
            {"role": "user", "content": "three"},
        ],
    )
    assert second.previous_response_id == first.id
    texts = [each[1] for each in json.loads(second.output_text) if each[0] != "system"]
    assert (texts[0], texts[2:]) == ("one", ["two", "so", "three"])
    assert (first.conversation, second.conversation) == (first.conversation, first.conversation)
    with client.responses.stream(
        model="history", input="four", previous_response_id=second.id
    ) as stream:
        third = stream.get_final_response()
    assert third.previous_response_id == second.id
    for given, code in (
        ({"previous_response_id": first.id}, "unsupported_parameter"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_not_found"),
        ({"previous_response_id": "unknown"}, "previous_response_not_found"),
        ({"previous_response_id": "conv_unknown"}, "previous_response_not_found"),
        ({"previous_response_id": third.id, "conversation": "c"}, "unsupported_parameter"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="history", input="x", **given)
        assert (refused.value.param, refused.value.code) == ("previous_response_id", code)
    with open_client(served, user="eve") as other, pytest.raises(openai.BadRequestError) as hidden:
        other.responses.create(model="history", input="x", previous_response_id=third.id)
    assert hidden.value.code == "previous_response_not_found"
    assert third.conversation is not None
    assert len(get_runs(served, third.conversation.id)) == 3


def test_stored_response_is_read_and_deleted(served: ThreadedServer) -> None:
    scopes = (*RUN, "agents:read", "sessions:delete")
    with open_client(served, *scopes) as client:
        made = client.responses.create(model="echo", input="hi", metadata={"a": "b"}, user="u-1")
        found = client.responses.retrieve(made.id)
        assert found.model_dump() == made.model_dump()
        (item,) = client.responses.input_items.list(made.id)
        assert item.content[0].text == "hi"  # type: ignore[union-attr]
        with pytest.raises(openai.BadRequestError, match="stream"):
            client.responses.retrieve(made.id, stream=True)
        with pytest.raises(openai.APIStatusError):
            client.responses.create(model="http-500", input="x", conversation="failed-response")
        (run,) = get_runs(served, "failed-response")
        failed = client.responses.retrieve(f"resp_{run['run_id']}")
        assert (failed.status, failed.error and failed.error.code) == (
            "failed", "MODEL_UNAVAILABLE",
        )  # fmt: skip
        second = client.responses.create(model="echo", input="x", previous_response_id=made.id)
        with pytest.raises(openai.ConflictError, match="other responses"):
            client.responses.delete(second.id)
        alone = client.responses.create(model="echo", input="x")
        with open_client(served, *scopes, user="eve") as other:
            for act in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
                with pytest.raises(openai.NotFoundError) as hidden:
                    act(alone.id)
                assert hidden.value.code == "response_not_found"
        with open_client(served) as runner:
            for act in (runner.responses.retrieve, runner.responses.delete):
                with pytest.raises(openai.PermissionDeniedError, match="scope"):
                    act(alone.id)
        client.responses.delete(alone.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(alone.id)


def test_response_is_cancelled(served: ThreadedServer, client: openai.OpenAI) -> None:
    stream = client.responses.create(model="trickle", input="x", stream=True)
    events = iter(stream)
    first = next(events)
    assert first.type == "response.created"
    client.responses.cancel(first.response.id)
    *_, last = events
    assert last.type == "response.failed"
    cancelled = client.responses.cancel(first.response.id)
    assert (cancelled.status, cancelled.error and cancelled.error.code) == (
        "cancelled", "run_cancelled",
    )  # fmt: skip


def test_schema_of_the_request_makes_a_structured_answer(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    found = client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": '{"n": 5}'}],
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    assert json.loads(found.choices[0].message.content or "") == {"n": 5}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stop": ["x"] * 5}, "stop"),
    ({"logprobs": True}, "logprobs"),
    ({"store": "no"}, "store"),
    ({"extra_body": {"surprise": 1}}, "surprise"),
    ({"response_format": {"type": "grammar"}}, "response_format.type"),
    (
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
        "messages[0].tool_call_id",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}],
                }
            ]
        },
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
]


@pytest.mark.parametrize(("given", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_parameter_without_effect_is_refused(
    client: openai.OpenAI, given: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "echo", "messages": MESSAGES, **given})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_ignored_parameters_are_named_in_the_response(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=MESSAGES, max_tokens=5, frequency_penalty=0, n=1
    )
    assert raw.headers["x-ignored-parameters"] == "max_tokens"
    stored = client.responses.with_raw_response.create(
        model="echo", input="hello", temperature=0, top_p=0.9, max_output_tokens=5
    )
    names = sorted(stored.headers["x-ignored-parameters"].split(", "))
    assert names == ["max_output_tokens", "temperature", "top_p"]


def test_defaults_of_openai_are_accepted_as_they_are(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=MESSAGES, temperature=1, top_p=1.0, presence_penalty=0, n=1
    )
    assert "x-ignored-parameters" not in raw.headers


FIRST_MESSAGES: dict[str, dict[str, Any]] = {
    "aider": {
        "messages": [
            {"role": "system", "content": "Act as an expert software developer."},
            {"role": "user", "content": "Change get_factorial() to use math.factorial"},
            {"role": "assistant", "content": "mathweb/flask/app.py"},
            {"role": "user", "content": "hello"},
        ],
        "temperature": 0,
        "stream": True,
    },
    "continue": {"messages": MESSAGES, "max_tokens": 4096, "stream": True},
    "cline": {
        "messages": MESSAGES,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "titles of open webui": {"messages": MESSAGES, "stream": False, "max_completion_tokens": 1000},
    "langchain": {"messages": MESSAGES, "temperature": 0.0, "top_p": 0.5, "max_tokens": 256},
}
"""Bodies of the first message of unchanged programs, without the model."""


@pytest.mark.parametrize("program", FIRST_MESSAGES)
def test_first_message_of_a_program_is_answered(served: ThreadedServer, program: str) -> None:
    answered = served.client.post(
        "/v1/chat/completions",
        json={"model": "echo", **FIRST_MESSAGES[program]},
        headers=served.bearer("ada", *RUN),
    )
    assert answered.status_code == 200, answered.text
    assert "hello" in answered.text
    assert answered.headers["x-ignored-parameters"]


def test_refusal_of_a_setting_names_the_key_that_ignores_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"openai\.ignored_parameters"):
        client.chat.completions.create(model="echo", messages=MESSAGES, logprobs=True)
    for given, remedy in (
        ({"modalities": ["audio"]}, "leave it out"),
        ({"extra_body": {"surprise": 1}}, r"leave it out, .* openai\.ignored_parameters$"),
        ({"extra_body": {"of vendor": 1}}, "leave it out$"),
        ({"functions": [{"name": "f"}]}, "use tools"),
    ):
        with pytest.raises(openai.BadRequestError, match=remedy):
            client.chat.completions.create(
                **{"model": "echo", "messages": MESSAGES, **given}  # type: ignore[arg-type]
            )


def test_operator_can_ignore_parameters_of_any_name(deploy: Deploy) -> None:
    names = ("top_k", "chat_template_kwargs", "reasoning", "functions", "messages")
    extra = f"{EXTRA}ignored_parameters = {json.dumps(names)}"
    given = {"top_k": 40, "chat_template_kwargs": {"a": 1}, "reasoning": {"effort": "high"}}
    with serve_in_thread(deploy(extra)) as served, open_client(served) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="echo", messages=MESSAGES, extra_body={**given, "functions": [{"name": "f"}]}
        )
        assert raw.parse().choices[0].message.content == "hello"
        assert raw.headers["x-ignored-parameters"] == ", ".join(names[:4])


def test_names_and_last_messages_of_other_roles_are_accepted(client: openai.OpenAI) -> None:
    def ask(*messages: Any) -> Any:
        raw = client.chat.completions.with_raw_response.create(model="history", messages=messages)
        sent = json.loads(raw.parse().choices[0].message.content or "")
        return raw.headers, [text for role, text in sent if role != "system"]

    headers, texts = ask({"role": "user", "name": "ada", "content": "one"})
    assert (headers["x-ignored-parameters"], texts) == ("messages.name", ["one"])
    _, texts = ask({"role": "user", "content": "one"}, {"role": "system", "content": "two"})
    assert texts == ["one", "two"]
    _, texts = ask({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"})
    assert texts == ["one", "two", "Continue your last answer where it ends."]


def test_object_without_a_schema_is_an_answer(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": '{"any": [5]}'}],
        response_format={"type": "json_object"},
    )
    assert json.loads(found.choices[0].message.content or "") == {"any": [5]}


def test_chat_of_open_webui_is_one_session(served: ThreadedServer, client: openai.OpenAI) -> None:
    chat = {"X-OpenWebUI-Chat-Id": "chat-1"}
    requests: list[list[Any]] = [
        [{"role": "user", "content": "one"}],
        [{"role": "user", "content": "### Task: a title"}],
        [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "1"},
            {"role": "user", "content": "two"},
        ],
    ]
    sent = []
    for messages in requests:
        found = client.chat.completions.create(
            model="history", messages=messages, extra_headers=chat
        )
        sent = json.loads(found.choices[0].message.content or "")
    assert [run["input"] for run in get_runs(served, "chat-1")] == [
        "one",
        "### Task: a title",
        "two",
    ]
    assert [text for role, text in sent if role != "system"] == ["one", "1", "two"]
    with open_client(served, user="mallory") as other, pytest.raises(openai.NotFoundError):
        other.chat.completions.create(model="history", messages=MESSAGES, extra_headers=chat)
    raw = client.chat.completions.with_raw_response.create(
        model="echo", messages=MESSAGES, extra_headers={"X-OpenWebUI-Chat-Id": "local:x"}
    )
    assert raw.headers["x-session-id"] != "local:x"


def test_errors_have_the_form_of_openai(served: ThreadedServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as unknown:
        client.with_options(api_key="no").models.list()
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nothing", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with (
        open_client(served, "agents:read") as reader,
        pytest.raises(openai.PermissionDeniedError) as denied,
    ):
        reader.chat.completions.create(model="echo", messages=MESSAGES)
    assert "agents:echo:run" in denied.value.message
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="echo", input="x")
    with pytest.raises(openai.InternalServerError) as failed:
        client.with_options(max_retries=2).chat.completions.create(
            model="http-500", messages=MESSAGES, extra_headers={"X-Session-ID": "failed-once"}
        )
    assert len(get_runs(served, "failed-once")) == 1
    assert failed.value.status_code == 502
    assert failed.value.code == "MODEL_UNAVAILABLE"
    twice = {"Authorization": f"Bearer {client.api_key}, Bearer {client.api_key}"}
    answers = [served.client.get("/v1/models", headers=given) for given in (twice, {})]
    assert [answer.json()["error"]["type"] for answer in answers] == [
        "invalid_request_error",
        "authentication_error",
    ]
    assert served.client.get("/nothing").json()["error_code"] == "UNAUTHENTICATED"


def test_client_that_leaves_cancels_the_run(served: ThreadedServer, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="trickle", messages=MESSAGES, stream=True)
    next(iter(stream))
    session_id = stream.response.headers["x-session-id"]
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(
            model="hang",
            messages=MESSAGES,
            timeout=0.3,
            extra_headers={"X-Session-ID": "left-plain"},
        )
    # A busy server may start the run after the client has left.
    for left in (session_id, "left-plain"):
        wait_for(
            lambda left=left: [run["status"] for run in get_runs(served, left)] == ["CANCELLED"]
        )


def test_audit_log_names_the_runs_and_their_refusals(
    served: ThreadedServer, client: openai.OpenAI
) -> None:
    with (
        open_client(served, "agents:read", user="eve") as denied,
        pytest.raises(openai.PermissionDeniedError),
    ):
        denied.responses.create(model="echo", input="x")
    raw = client.responses.with_raw_response.create(model="echo", input="x")
    found = served.client.get(
        "/audit", params={"limit": 50}, headers=served.bearer("root", ADMIN)
    ).json()["data"]
    seen = {(entry["principal"], entry["operation"], entry["outcome"]) for entry in found}
    assert ("eve", "create_agent_run", "denied") in seen
    assert any(raw.headers["x-run-id"] in (entry["resource"] or "") for entry in found)


def test_pages_of_allowed_origins_can_use_the_face(
    served: ThreadedServer, client: openai.OpenAI
) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    fields = {"Access-Control-Request-Headers": "authorization, x-session-id, x-stainless-os"}
    allowed = served.client.options("/v1/chat/completions", headers=asked | fields)
    assert allowed.status_code == 204
    for key in (client.api_key, "no"):
        headers = {"Origin": ORIGIN, "Authorization": f"Bearer {key}"}
        found = served.client.get("/v1/models", headers=headers)
        assert found.headers["access-control-allow-origin"] == ORIGIN


def explain(served: ThreadedServer, method: str, path: str, **request: str) -> Any:
    asked = {"method": method, "path": path, **request}
    found = served.client.post("/auth/explain", json=asked, headers=served.bearer("root", ADMIN))
    return found.json()


def test_explanation_names_the_operation_that_decides(served: ThreadedServer) -> None:
    token = served.bearer("ada", *RUN)["Authorization"].removeprefix("Bearer ")
    for method, path, text in (
        ("GET", "/v1/models", "POST /agents/{agent_id}/runs"),
        ("POST", "/v1/responses", "`model` names"),
        ("DELETE", "/v1/responses/resp_1", "DELETE /sessions/{session_id}"),
    ):
        found = explain(served, method, path, token=token)
        steps = {step["name"]: step for step in found["steps"]}
        assert (found["status"], steps["route"]["outcome"]) == (200, "passed")
        assert text in steps["policy"]["found"]
    assert explain(served, "POST", "/v1/responses", token="no")["status"] == 401
    off = explain(served, "POST", "/mcp", token=token)
    (route,) = (step for step in off["steps"] if step["name"] == "route")
    assert (off["status"], route["cause"]) == (404, "mcp_endpoint.enabled is false")


def test_face_is_off_by_default(server: ThreadedServer) -> None:
    headers = server.bearer("root", ADMIN)
    assert server.client.get("/v1/models", headers=headers).status_code == 404
