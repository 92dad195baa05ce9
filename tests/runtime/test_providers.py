"""Models of other vendors: answers, tools, usage, failures and bounds, on local endpoints.

docs/internals/security-cases.md M23.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from pydantic import BaseModel, Field

from agentctl.config.settings import Agent, Limits, Model, ModelSettings, Provider, Settings
from agentctl.runtime.transcript.events import ThinkingDelta
from tests.kit.fake_context import FakeContext, attempt, settings
from tests.kit.model import ModelEndpoint

VENDORS: tuple[Provider, ...] = ("anthropic", "google", "bedrock")
KEY = "sk-test-0123456789"
ADD = "tests.runtime.sample_tools:add"
ANN = '{"name":"Ann","age":4}'


def configured(
    provider: Provider,
    name: str,
    endpoint: ModelEndpoint,
    *,
    limits: Limits | None = None,
    tools: tuple[str, ...] = (ADD,),
    output: str = "",
    **keys: Any,
) -> Settings:
    region = "eu-central-1" if provider == "bedrock" else ""
    model = Model(
        "vendor",
        provider,
        name,
        base_url=endpoint.root_url,
        api_key_env="" if region else "TEST_VENDOR_KEY",
        region=region,
        **{"retries": 0, **keys},
    )
    agent = Agent("a", "vendor", instructions="Be brief.", tools=tools, output=output)
    return settings(models=(model,), agents=(agent,), limits=limits)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, vendor_endpoint: ModelEndpoint) -> None:
    """Set the keys, and variables that must not redirect a model."""
    vendor_endpoint.forget()
    monkeypatch.setenv("TEST_VENDOR_KEY", KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    for variable in ("ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")


def run(settings: Settings, message: str) -> FakeContext:
    ended, failure = attempt(settings, message, component="a")
    assert failure is None, failure.detail
    return ended


@pytest.mark.parametrize("provider", VENDORS)
def test_text_is_streamed_and_counted(provider: Provider, vendor_endpoint: ModelEndpoint) -> None:
    ended = run(configured(provider, "echo", vendor_endpoint), "three short words")

    assert ended.transcript.content == ended.joined_deltas == "three short words"
    assert len(ended.events) == 3
    metrics = ended.transcript.metrics
    assert (metrics["input_tokens"], metrics["output_tokens"]) == (7, 3)
    answer = ended.transcript.messages[-1]
    assert (answer["model"], answer["finish_reason"]) == ("vendor", "stop")


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_uncompressed_answers_are_requested(
    provider: Provider, vendor_endpoint: ModelEndpoint
) -> None:
    """docs/internals/security-cases.md M04."""
    run(configured(provider, "echo", vendor_endpoint), "hi")

    assert vendor_endpoint.headers("echo")["accept-encoding"] == "identity"


@pytest.mark.parametrize("provider", VENDORS)
def test_thinking_has_its_own_events(provider: Provider, vendor_endpoint: ModelEndpoint) -> None:
    ended = run(configured(provider, "thinks", vendor_endpoint), "two words")

    thoughts = [event.delta for event in ended.events if isinstance(event, ThinkingDelta)]
    assert thoughts == ["Let me ", "think."]
    assert ended.transcript.reasoning_content == "Let me think."
    assert ended.transcript.content == ended.joined_deltas == "two words"
    assert "Let me" not in json.dumps(ended.transcript.messages)


def test_thinking_is_sent_back_with_its_signature(vendor_endpoint: ModelEndpoint) -> None:
    ended = run(configured("anthropic", "thinks:add", vendor_endpoint), 'now {"a": 1}')

    assert ended.transcript.content.endswith("3")
    assert ended.transcript.reasoning_content == "Let me think."
    _, second = vendor_endpoint.requests()
    (block, *_) = second["messages"][1]["content"]
    assert (block["type"], block["thinking"]) == ("thinking", "Let me think.")
    assert block["signature"] == "c2lnbmVk"


@pytest.mark.parametrize("provider", VENDORS)
def test_tool_is_called_and_its_result_is_sent_back(
    provider: Provider, vendor_endpoint: ModelEndpoint
) -> None:
    ended = run(configured(provider, "tool:add", vendor_endpoint), 'add {"a": 1, "b": 4}')

    (call,) = ended.transcript.tools
    assert (call["tool_name"], call["tool_args"], call["result"]) == ("add", {"a": 1, "b": 4}, "5")
    assert ended.transcript.content.endswith("5")


@pytest.mark.parametrize("provider", VENDORS)
@pytest.mark.parametrize("name", ["cut", "cut:add"])
def test_answer_that_is_cut_off_is_a_failure(
    provider: Provider, name: str, vendor_endpoint: ModelEndpoint
) -> None:
    ended, failure = attempt(
        configured(provider, name, vendor_endpoint), 'now {"a": 1}', component="a"
    )

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"
    assert ended.transcript.content
    assert ended.transcript.tools == []


@pytest.mark.parametrize("provider", VENDORS)
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("http-400", "MODEL_REJECTED"),
        ("http-401", "MODEL_KEY_REJECTED"),
        ("http-404", "MODEL_NOT_FOUND"),
        ("http-429", "MODEL_UNAVAILABLE"),
        ("http-500", "MODEL_UNAVAILABLE"),
        ("http-529", "MODEL_UNAVAILABLE"),
        ("overloaded", "MODEL_UNAVAILABLE"),
        ("redirect", None),
        ("key", "MODEL_KEY_REJECTED"),
    ],
)
def test_failures_have_codes_and_hide_secrets(
    provider: Provider,
    name: str,
    code: str | None,
    vendor_endpoint: ModelEndpoint,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        ended, failure = attempt(configured(provider, name, vendor_endpoint), "hi", component="a")

    assert failure is not None
    assert code in (None, failure.code)
    assert "secret" not in failure.detail
    assert KEY not in caplog.text
    assert len(vendor_endpoint.requests()) == 1
    assert ended.transcript.content == ""


@pytest.mark.parametrize("provider", VENDORS)
@pytest.mark.parametrize("name", ["later:0", "overloaded"])
def test_temporary_failure_is_retried(
    provider: Provider, name: str, vendor_endpoint: ModelEndpoint
) -> None:
    ended, failure = attempt(
        configured(provider, name, vendor_endpoint, retries=2), "hi", component="a"
    )
    assert failure is None
    assert ended.transcript.content == "hi"


@pytest.mark.parametrize("provider", VENDORS)
def test_requested_wait_is_beyond_the_budget(
    provider: Provider, vendor_endpoint: ModelEndpoint
) -> None:
    _, failure = attempt(
        configured(provider, "later:40", vendor_endpoint, retries=1), "hi", component="a"
    )
    assert failure is not None
    assert len(vendor_endpoint.requests("later:40")) == 1


@pytest.mark.parametrize("provider", ["anthropic", "google"])
def test_endless_event_ends_at_the_size_limit(
    provider: Provider, vendor_endpoint: ModelEndpoint
) -> None:
    _, failure = attempt(
        configured(provider, "endless", vendor_endpoint, limits=Limits(run_bytes=50_000)),
        "hi",
        component="a",
    )
    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    vendor_endpoint.wait_for_open(0)


@pytest.mark.parametrize("provider", VENDORS)
def test_silent_model_times_out(provider: Provider, vendor_endpoint: ModelEndpoint) -> None:
    quick = ModelSettings(timeout_seconds=0.3)
    _, failure = attempt(
        configured(provider, "hang", vendor_endpoint, settings=quick), "hi", component="a"
    )
    assert failure is not None
    assert failure.code == "MODEL_TIMEOUT"


@pytest.mark.parametrize("provider", VENDORS)
def test_settings_and_key_are_sent(provider: Provider, vendor_endpoint: ModelEndpoint) -> None:
    given = ModelSettings(temperature=0.5, max_tokens=50, top_p=0.9, stop=("END",))
    run(configured(provider, "echo", vendor_endpoint, settings=given), "hi")

    (body,) = vendor_endpoint.requests()
    sent = json.dumps(body)
    for name, value in (("temperature", 0.5), ("max_?(output)?tokens", 50), ("top_?p", 0.9)):
        assert re.search(f'"{name}": {value}', sent, re.IGNORECASE), sent
    assert '["END"]' in sent
    headers = vendor_endpoint.headers("echo")
    credential = headers["x-goog-api-key" if provider == "google" else "authorization"]
    assert credential.removeprefix("Bearer ") == KEY or "Credential=AKIATEST/" in credential
    if provider != "bedrock":
        assert headers["accept-encoding"] == "identity"


COMPATIBLE: tuple[Provider, ...] = ("azure", "groq", "openrouter", "ollama", "mistral")


@pytest.mark.parametrize("provider", COMPATIBLE)
def test_openai_compatible_provider_answers_and_calls_tools(
    provider: Provider, model_endpoint: ModelEndpoint
) -> None:
    url = model_endpoint.root_url if provider == "mistral" else model_endpoint.base_url
    prefix = "test/" if provider == "openrouter" else ""
    models = tuple(
        Model(name, provider, prefix + name, base_url=url, api_key_env="TEST_VENDOR_KEY", retries=0)
        for name in ("echo", "tool:add", "http-429")
    )
    agents = tuple(Agent(model.id.replace(":", "-"), model.id, tools=(ADD,)) for model in models)
    given = settings(models=models, agents=agents)

    ended, failure = attempt(given, "two words", component="echo")
    assert failure is None
    assert ended.joined_deltas == "two words"
    assert 1 <= len(ended.events) <= 2
    headers = model_endpoint.headers(prefix + "echo")
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["accept-encoding"] == "identity"
    if provider not in {"mistral", "openrouter"}:
        ended, failure = attempt(given, '{"a": 2, "b": 5}', component="tool-add")
        assert failure is None
        assert ended.transcript.content == "7"
        ended, failure = attempt(given, "x", component="http-429")
        assert failure is not None
        assert failure.code == "MODEL_UNAVAILABLE"


def test_dated_version_of_azure_is_called(model_endpoint: ModelEndpoint) -> None:
    model = Model(
        "m2",
        "azure",
        "echo",
        base_url=model_endpoint.root_url,
        api_key_env="TEST_VENDOR_KEY",
        api_version="2024-10-21",
    )
    ended, failure = attempt(
        settings(models=(model,), agents=(Agent("a", "m2"),)), "hi", component="a"
    )
    assert failure is None
    assert ended.transcript.content == "hi"
    assert model_endpoint.headers("echo")["api-key"] == KEY


def test_bedrock_without_credentials_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    vendor_endpoint: ModelEndpoint,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")

    _, failure = attempt(configured("bedrock", "echo", vendor_endpoint), "hi", component="a")

    assert failure is not None
    assert failure.detail.startswith("The AWS credentials of the model vendor are not set: set ")
    assert "model vendor: there are no AWS credentials" in caplog.text


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0)


PERSON = f"{__name__}:Person"


def test_provider_without_schemas_gets_it_as_instructions(vendor_endpoint: ModelEndpoint) -> None:
    ended = run(configured("anthropic", "echo", vendor_endpoint, output=PERSON), ANN)

    assert ended.transcript.output == json.loads(ANN)
    system = json.dumps(vendor_endpoint.requests("echo")[-1]["system"])
    assert "Be brief." in system
    assert "minimum" in system


@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["plain", "tools"])
@pytest.mark.parametrize("provider", ["google", "bedrock"])
def test_other_vendors_give_structured_results(
    vendor_endpoint: ModelEndpoint, provider: Provider, tools: tuple[str, ...]
) -> None:
    given = configured(provider, "echo", vendor_endpoint, tools=tools, output=PERSON)

    assert run(given, ANN).transcript.output == json.loads(ANN)
