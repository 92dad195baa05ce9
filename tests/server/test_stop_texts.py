"""`stop` of chat completions: the text is cut before it, and the run ends there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

EXTRA = """
[openai]
enabled = true

[[models]]
id = "exact"
provider = "openai"
model = "exact"
base_url = "{url}"

[[agents]]
id = "exact"
name = "Exact"
model = "exact"

[[agents]]
id = "function"
object = "stop_agents:repeat"

[[agents]]
id = "generator"
object = "stop_agents:spell"

[[agents]]
id = "library"
object = "stop_agents:build_library_agent"
"""

CODE = """
from agentctl.agents import RunContext, Thinking


async def repeat(message: str) -> str:
    return message


async def spell(message: str):
    yield Thinking("a STOP in thoughts")
    for letter in message:
        yield letter


def build_library_agent():
    from pydantic_ai import Agent
    from pydantic_ai.models.function import FunctionModel

    async def stream(messages, info):
        asked = [part.content for message in messages for part in message.parts]
        yield " | ".join(map(str, asked))

    return Agent(FunctionModel(stream_function=stream))
"""

AGENTS = ("echo", "desk", "function", "generator")


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    deployment = deploy(EXTRA.format(url=deploy.url))
    (deployment.folder / "stop_agents.py").write_text(CODE)
    with serve_in_thread(deployment) as host:
        yield host


@pytest.fixture(scope="module")
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    key = served.deployment.token("ada", "agents:run", "teams:run")
    with openai.OpenAI(api_key=key, base_url=f"{served.url}/v1", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str, text: str, **more: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], **more
    )


def read_stream(chunks: Any) -> tuple[str, str | None]:
    """Return the text and the last finish reason of a stream."""
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


def read_run(served: ThreadedServer, headers: Any, kind: str = "agents") -> Any:
    """Return the record of the run of a response, as an administrator."""
    runs = f"/sessions/{headers['x-session-id']}/runs"
    found = served.client.get(runs, headers=served.bearer("root", ADMIN)).json()
    (run,) = [run for run in found if run["run_id"] == headers["x-run-id"]]
    return run


@pytest.mark.parametrize(
    ("model", "stop", "expected"),
    [
        # The models answer in words, the generator in letters.
        *((model, ["e two t"], "echo on") for model in AGENTS),
        ("echo", "two", "echo one "),
        ("echo", ["four", "x" * 256], "echo one two three"),
        ("echo", None, "echo one two three"),
        ("echo", [], "echo one two three"),
    ],
)
def test_run_and_response_end_before_the_stop_text(
    client: openai.OpenAI, served: ThreadedServer, model: str, stop: Any, expected: str
) -> None:
    text = "echo one two three"
    whole = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": text}], stop=stop
    )
    answer = whole.parse().choices[0]
    assert (answer.message.content, answer.finish_reason) == (expected, "stop")
    assert "x-ignored-parameters" not in whole.headers

    run = read_run(served, whole.headers)
    assert (run["status"], run["content"], run["error"]) == ("COMPLETED", expected, None)
    stored = [message for message in run["messages"] if message["role"] == "assistant"]
    assert [each["content"] for each in stored[-1:]] == [expected][: len(stored)]

    assert read_stream(ask(client, model, text, stop=stop, stream=True)) == (expected, "stop")


def test_call_of_the_model_ends_at_the_stop_text(
    client: openai.OpenAI, served: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    # The model would go on without end.
    raw = client.chat.completions.with_raw_response.create(
        model="trickle",
        messages=[{"role": "user", "content": "x"}],
        stop=["w5 w6"],
        timeout=PATIENCE,
    )
    assert raw.parse().choices[0].message.content == "w0 w1 w2 w3 w4 "
    wait_for(lambda: model_endpoint.open_calls() == 0)
    run = read_run(served, raw.headers)
    assert (run["status"], run["messages"][-1]["finish_reason"]) == ("COMPLETED", "stop")
    assert run["stopped_at"] is not None


def test_tools_of_the_caller_are_called_as_without_stop_texts(client: openai.OpenAI) -> None:
    call = {"name": "look", "arguments": '{"at": "STOP"}'}
    message = {"tool_calls": [{"id": "1", "type": "function", "function": call}]}
    tool: Any = {"type": "function", "function": {"name": "look"}}
    first = ask(client, "exact", json.dumps(message), tools=[tool], stop="STOP").choices[0]
    assert first.finish_reason == "tool_calls"
    made = first.message.tool_calls[0]
    assert json.loads(made.function.arguments) == {"at": "STOP"}
    # The next leg has the stop texts of its run.
    given: list[Any] = [
        {"role": "user", "content": json.dumps(message)},
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": made.id, "content": "seen STOP done"},
    ]
    last = client.chat.completions.create(model="exact", messages=given).choices[0]
    assert (last.message.content, last.finish_reason) == ("seen ", "stop")


def test_later_runs_of_a_session_get_the_cut_answer(client: openai.OpenAI) -> None:
    session = {"X-Session-ID": "cut-by-stop"}
    ask(client, "library", "one", stop="one", extra_headers=session)
    ask(client, "library", "two STOP three", stop="STOP", extra_headers=session)
    later = ask(client, "library", "four", extra_headers=session).choices[0].message.content
    assert later == "one | two STOP three | one | two  | four"


def test_structured_answer_is_whole(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="echo",
        messages=[{"role": "user", "content": '{"n": "STOP"}'}],
        response_format={"type": "json_object"},
        stop="STOP",
    )
    assert raw.parse().choices[0].message.content == '{"n": "STOP"}'
    assert raw.headers["x-ignored-parameters"] == "stop"


@pytest.mark.parametrize("stop", [["a"] * 5, ["x" * 257], "", [""], [1], {"a": 1}, 5])
def test_stop_texts_beyond_their_bounds_are_refused(client: openai.OpenAI, stop: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "echo", "hello", stop=stop)
    assert caught.value.param == "stop"
