"""Endings of runs whose model fails."""

from __future__ import annotations

import json
import logging
import socket

import pytest

from agentctl.config.settings import Agent, Database, Limits, Model, Settings
from agentctl.runtime.failures import MAXIMUM_CALLS
from agentctl.runtime.models import provider
from tests.kit.fake_context import attempt, settings
from tests.kit.model import ModelEndpoint


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("http-400", "MODEL_REJECTED"),
        ("http-401", "MODEL_KEY_REJECTED"),
        ("http-403", "MODEL_KEY_REJECTED"),
        ("http-404", "MODEL_NOT_FOUND"),
        ("http-429", "MODEL_UNAVAILABLE"),
        ("http-500", "MODEL_UNAVAILABLE"),
        ("http-503", "MODEL_UNAVAILABLE"),
        ("http-504", "MODEL_TIMEOUT"),
        ("garbage", "MODEL_ANSWER_INVALID"),
        ("reset", "MODEL_UNAVAILABLE"),
    ],
)
def test_failure_has_a_code_and_a_public_text(
    model_endpoint: ModelEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    model: str,
    code: str,
) -> None:
    with caplog.at_level(logging.WARNING, "agentctl.runtime"):
        ended, failure = attempt(settings(model_endpoint, model=model), "hi")

    assert failure is not None
    assert failure.code == code
    kept = json.dumps([ended.transcript.messages, ended.transcript.tools, failure.detail])
    assert "secret of the provider" not in kept
    assert ("secret of the provider" in caplog.text) is model.startswith("http-")
    assert "run run" in caplog.text


@pytest.mark.parametrize(
    ("status", "detail"),
    [
        (
            401,
            "The provider rejected the API key of the model m (HTTP 401): check the variable"
            " TEST_KEY_OF_MODEL",
        ),
        (
            403,
            "The provider denied access to the model m (HTTP 403): check the rights of the key in"
            " the variable TEST_KEY_OF_MODEL",
        ),
        (
            404,
            "The provider does not have the model http-404 (HTTP 404): check model and base_url of"
            " the model m",
        ),
        (400, "The model m refused the request (HTTP 400)"),
    ],
)
def test_refusal_names_what_to_check(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch, status: int, detail: str
) -> None:
    monkeypatch.setenv("TEST_KEY_OF_MODEL", "value-of-the-key")
    url = model_endpoint.base_url
    name = f"http-{status}"
    model = Model("m", "openai", name, base_url=url, api_key_env="TEST_KEY_OF_MODEL")

    _, failure = attempt(_configured(model), "hi")

    assert failure is not None
    assert failure.detail == detail


def test_text_before_a_broken_connection_is_kept(model_endpoint: ModelEndpoint) -> None:
    ended, failure = attempt(settings(model_endpoint, model="reset"), "hi")

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"
    assert ended.transcript.content == "almost "
    assert ended.transcript.messages[-1]["content"] == "almost "


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("endless", "MODEL_ANSWER_INVALID"),
        ("trickle", "AGENT_FAILED"),
        ("arguments", "AGENT_FAILED"),
        ("thoughts", "AGENT_FAILED"),
        ("http-long", "MODEL_ANSWER_INVALID"),
    ],
)
def test_endless_response_ends_at_the_size_limit(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch, model: str, code: str
) -> None:
    limits = Limits(run_bytes=200 if model == "trickle" else 100_000)

    ended, failure = attempt(settings(model_endpoint, model=model, limits=limits), "hi")

    assert failure is not None
    assert failure.code == code
    kept = json.dumps([ended.transcript.messages, ended.transcript.tools])
    assert len(kept) < 2 * limits.run_bytes + 1_000
    model_endpoint.wait_for_open(0)


def test_number_of_concurrent_tool_calls_is_limited(model_endpoint: ModelEndpoint) -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    calls = [
        {"id": f"c{number}", "type": "function", "function": function}
        for number in range(MAXIMUM_CALLS + 1)
    ]
    configured = settings(model_endpoint, model="exact", tools=("tests.runtime.sample_tools:add",))

    ended, failure = attempt(configured, json.dumps({"tool_calls": calls}))
    assert failure is not None
    assert failure.detail == "The model called too many tools at once"
    assert ended.transcript.tools == []

    ended, failure = attempt(configured, json.dumps({"tool_calls": calls[1:]}))
    assert failure is None
    assert ended.transcript.content == " | ".join(["3"] * MAXIMUM_CALLS)


def test_silent_model_times_out(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The text before the model hangs has to arrive within the same time.
    for model, said, seconds in (("hang", "", 0.2), ("half", "one two three", 4.0)):
        monkeypatch.setattr(provider, "READ_SECONDS", seconds)
        ended, failure = attempt(settings(model_endpoint, model=model), "hi")
        assert failure is not None
        assert failure.code == "MODEL_TIMEOUT"
        assert ended.transcript.content == said
    model_endpoint.wait_for_open(0)


def test_unreachable_endpoint_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        _, failure = attempt(
            _configured(Model("m", "openai", "echo", base_url=url, retries=0)), "hi"
        )

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"


@pytest.mark.parametrize("variable", ["", "TEST_KEY_OF_MODEL"])
def test_missing_key_is_reported_with_its_variable(
    caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    model = Model("fast", "openai", "gpt", api_key_env=variable)

    _, failure = attempt(_configured(model), "hi")

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"
    assert failure.detail.startswith("The API key of the model fast is not set: ")
    assert variable in failure.detail
    assert "model fast: the environment variable" in caplog.text
    assert variable in caplog.text


def test_key_is_read_when_the_model_is_needed(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = model_endpoint.base_url
    model = Model("m", "openai", "echo", base_url=url, api_key_env="TEST_KEY_OF_MODEL")

    _, failure = attempt(_configured(model), "hi")
    assert failure is not None

    monkeypatch.setenv("TEST_KEY_OF_MODEL", "k")
    ended, failure = attempt(_configured(model), "hi")
    assert failure is None
    assert ended.transcript.content == "hi"
    assert model_endpoint.headers("echo")["authorization"] == "Bearer k"


def test_unknown_demo_model_is_an_internal_failure() -> None:
    _, failure = attempt(_configured(Model("m", "demo", "x")), "hi")

    assert failure is not None
    assert failure.code == "INTERNAL"
    assert failure.detail == "The component is not configured correctly"


def _configured(model: Model) -> Settings:
    return Settings(
        databases=(Database("main", "sqlite:///nowhere"),),
        models=(model,),
        agents=(Agent("writer", model.id),),
    )
