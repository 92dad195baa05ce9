"""Workflows, with models over HTTP."""

from __future__ import annotations

import pytest

from agentctl.config.settings import Agent, Settings, Step, Team, Workflow
from agentctl.runtime.transcript.events import StepCompleted, StepStarted
from tests.kit import fake_context
from tests.kit.fake_context import attempt, run, served, settings
from tests.kit.model import ModelEndpoint


def build_workflow(endpoint: ModelEndpoint, *, second: str = "echo") -> Settings:
    """Build the workflow `publish`: an agent, a team, and an agent with the model `second`."""
    steps = (
        Step("draft", agent="writer"),
        Step("review", team="news"),
        Step("print", agent="printer"),
    )
    return settings(
        endpoint,
        model="history",
        models=(
            served("e", "echo", endpoint),
            served("d", "delegate", endpoint),
            served("s", second, endpoint),
        ),
        agents=(Agent("editor", "e"), Agent("printer", "s")),
        teams=(Team("news", "d", ("editor",)),),
        workflows=(Workflow("publish", steps),),
    )


def test_step_gets_the_output_of_the_previous_step(model_endpoint: ModelEndpoint) -> None:
    ended = run(build_workflow(model_endpoint), "hello", kind="workflow", component="publish")

    made = '[["user", "hello"]]'
    assert ended.transcript.content == made
    assert ended.events == [
        StepStarted("draft", 0),
        StepCompleted("draft", 0, made),
        StepStarted("review", 1),
        StepCompleted("review", 1, made),
        StepStarted("print", 2),
        StepCompleted("print", 2, made),
    ]
    assert len(ended.children) == 3


def test_workflow_has_no_messages_and_no_usage(model_endpoint: ModelEndpoint) -> None:
    ended = run(build_workflow(model_endpoint), "hello", kind="workflow", component="publish")

    assert ended.transcript.messages == []
    assert ended.transcript.tools == []
    assert set(ended.transcript.metrics.values()) == {0}


@pytest.mark.parametrize(
    ("second", "code", "why"),
    [
        ("http-400", "MODEL_REJECTED", "The model s refused the request (HTTP 400)"),
        ("hang", "INTERNAL", "The run exceeded its time limit"),
    ],
)
def test_failing_step_ends_the_run(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch, second: str, code: str, why: str
) -> None:
    if second == "hang":
        monkeypatch.setitem(fake_context.MEMBER_SECONDS, "printer", 0.1)
    configured = build_workflow(model_endpoint, second=second)

    ended, failure = attempt(configured, "hello", kind="workflow", component="publish")

    assert failure is not None
    assert failure.code == code
    assert failure.detail == f"The step print failed: {why}"
    assert ended.transcript.content == '[["user", "hello"]]'
    assert ended.events[-1] == StepStarted("print", 2)


def test_cancelled_step_ends_the_run(model_endpoint: ModelEndpoint) -> None:
    _, failure = attempt(
        build_workflow(model_endpoint),
        "hello",
        kind="workflow",
        component="publish",
        cancels_members=True,
    )

    assert failure is not None
    assert (failure.code, failure.detail) == ("INTERNAL", "The step draft was cancelled")
