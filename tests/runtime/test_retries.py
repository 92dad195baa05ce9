"""Retries and fallbacks of model calls, and the settings that a model receives.

docs/internals/security-cases.md M22.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentctl.config.settings import Agent, Model, ModelSettings
from agentctl.runtime.components.catalog import Catalog
from tests.kit.clock import pass_time
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.fake_context import FakeContext, attempt, run, settings, with_catalog
from tests.kit.model import ModelEndpoint


def model(endpoint: ModelEndpoint, id: str, name: str, **keys: Any) -> Model:
    return Model(id, "openai", name, base_url=endpoint.base_url, **keys)


@pytest.mark.parametrize("name", ["http-429", "http-500", "http-503"])
def test_temporary_failure_is_retried(model_endpoint: ModelEndpoint, name: str) -> None:
    model_endpoint.forget()
    again = model(model_endpoint, "again", name, retries=1)
    configured = settings(models=(again,), agents=(Agent("a", "again"),))

    _, failure = attempt(configured, "hi", component="a")

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"
    assert len(model_endpoint.requests(name)) == 2


@pytest.mark.parametrize("name", ["http-400", "http-401", "garbage", "reset"])
def test_other_failures_are_not_retried(model_endpoint: ModelEndpoint, name: str) -> None:
    """A rejected request fails again, and text before a reset was sent to the client."""
    model_endpoint.forget()
    other = model(model_endpoint, "other", "echo")
    again = model(model_endpoint, "again", name, fallbacks=("other",))
    configured = settings(models=(again, other), agents=(Agent("a", "again"),))

    _, failure = attempt(configured, "hi", component="a")

    assert failure is not None
    assert len(model_endpoint.requests(name)) == 1
    assert model_endpoint.requests("echo") == []


@pytest.mark.parametrize("wait", ["20", "date"])
def test_retry_waits_as_the_provider_asks(
    model_endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture, wait: str
) -> None:
    again = model(model_endpoint, "again", f"later:{wait}")
    configured = settings(models=(again,), agents=(Agent("a", "again"),))

    async def work(catalog: Catalog) -> FakeContext:
        context = FakeContext(catalog)
        task = asyncio.create_task(context.execute("agent", "a", "hi", []))
        # No wait that the product chooses itself is longer than half of that.
        await pass_time(20.0)
        await task
        return context

    with caplog.at_level(logging.INFO, "agentctl.runtime"):
        ended = with_catalog(configured, work)

    assert len(model_endpoint.requests()) == 2
    assert ended.transcript.content == ended.joined_deltas == "hi"
    assert "run run: model again is called again, attempt 2 after" in caplog.text


def test_wait_beyond_the_budget_is_not_made(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.forget()
    again = model(model_endpoint, "again", "later:40")
    configured = settings(models=(again,), agents=(Agent("a", "again"),))

    _, failure = attempt(configured, "hi", component="a")

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"
    assert len(model_endpoint.requests("later:40")) == 1


def test_long_wait_is_replaced_by_a_fallback(
    model_endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """The run continues with the fallback: its second call does not try the first model again."""
    model_endpoint.forget()
    models = (
        model(model_endpoint, "first", "later:20", fallbacks=("second",)),
        model(model_endpoint, "second", "http-503", retries=0, fallbacks=("third",)),
        model(model_endpoint, "third", "tool:add"),
    )
    agent = Agent("a", "first", tools=("tests.runtime.sample_tools:add",))
    counters: list[dict[str, int]] = []

    async def work(catalog: Catalog) -> FakeContext:
        context = FakeContext(catalog)
        await context.execute("agent", "a", '{"a": 1}', [])
        counters.append(catalog.models.counters.fallbacks)
        return context

    with caplog.at_level(logging.WARNING, "agentctl.runtime"):
        ended = with_catalog(settings(models=models, agents=(agent,)), work)

    assert ended.transcript.content == "3"
    answers = [each for each in ended.transcript.messages if each["role"] == "assistant"]
    assert [each["model"] for each in answers] == ["third", "third"]
    assert [body["model"] for body in model_endpoint.requests()] == [
        "later:20", "http-503", "tool:add", "tool:add",
    ]  # fmt: skip
    assert "model first is not available, its fallback second is called" in caplog.text
    assert counters == [{"m": 0, "first": 1, "second": 1, "third": 0}]


def test_fallback_without_a_key_is_left_out(model_endpoint: ModelEndpoint) -> None:
    closed = Model("closed", "openai", "echo", api_key_env="TEST_KEY_OF_NOBODY")
    models = (
        model(model_endpoint, "first", "http-503", retries=0, fallbacks=("closed", "open")),
        closed,
        model(model_endpoint, "open", "echo"),
    )
    ended = run(settings(models=models, agents=(Agent("a", "first"),)), "hi", component="a")
    assert ended.transcript.content == "hi"
    assert ended.transcript.messages[-1]["model"] == "open"


async def test_cancel_ends_the_wait_of_a_retry(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.forget()
    again = model(model_endpoint, "again", "later:25")
    catalog = Catalog.from_settings(settings(models=(again,), agents=(Agent("a", "again"),)))
    context = FakeContext(catalog)
    task = asyncio.create_task(context.execute("agent", "a", "hi", []))
    await wait_until(lambda: len(model_endpoint.requests("later:25")) == 1)
    await wait_until(lambda: model_endpoint.open_calls() == 0)
    await asyncio.sleep(0)

    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)

    assert done == {task}
    assert task.cancelled()
    await catalog.close()


SETTINGS = ModelSettings(
    temperature=0.5,
    max_tokens=20,
    top_p=0.9,
    stop=("END",),
    seed=7,
    reasoning_effort="low",
    extra_body={"guided_choice": ["a", "b"]},
)

SENT_SETTINGS = {
    "temperature": 0.5,
    "max_completion_tokens": 20,
    "top_p": 0.9,
    "stop": ["END"],
    "seed": 7,
    "reasoning_effort": "low",
    "guided_choice": ["a", "b"],
}
"""The members of a request with `SETTINGS`."""


def test_settings_reach_the_model(model_endpoint: ModelEndpoint) -> None:
    """Those of an agent replace single ones of its model."""
    models = (
        model(model_endpoint, "set", "history", settings=SETTINGS),
        model(model_endpoint, "plain", "history"),
    )
    agents = (
        Agent("a", "set"),
        Agent("b", "set", settings=ModelSettings(temperature=0, stop=("X", "Y"))),
        Agent("c", "plain"),
    )
    model_endpoint.forget()
    for agent in agents:
        run(settings(models=models, agents=agents), "hi", component=agent.id)

    sent = [
        {name: body[name] for name in SENT_SETTINGS if name in body}
        for body in model_endpoint.requests("history")
    ]
    changed = SENT_SETTINGS | {"temperature": 0, "stop": ["X", "Y"]}
    assert sent == [SENT_SETTINGS, changed, {}]


def test_timeout_of_the_settings_bounds_a_silent_model(model_endpoint: ModelEndpoint) -> None:
    silent = model(
        model_endpoint, "silent", "hang", retries=0, settings=ModelSettings(timeout_seconds=0.2)
    )
    _, failure = attempt(
        settings(models=(silent,), agents=(Agent("a", "silent"),)), "hi", component="a"
    )
    assert failure is not None
    assert failure.code == "MODEL_TIMEOUT"
    model_endpoint.wait_for_open(0)
