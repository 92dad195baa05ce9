"""A run whose task is cancelled, and what remains of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from agentctl.config.settings import Agent, Settings, Step, Team, Workflow
from agentctl.records.kinds import ComponentKind
from agentctl.runtime.catalog import Catalog
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.runtime import toolbox
from tests.runtime.surroundings import Surroundings, served, settings, with_catalog

SOON = 1.0
"""Seconds within which a cancelled run has ended, also on a busy machine; but for `stubborn`,
which is seen to be left behind, nothing here ends by itself before 30 s."""

Reached = Callable[[Surroundings], bool]


def cancelled_when(
    configured: Settings,
    reached: Reached,
    message: str = "do {}",
    *,
    kind: ComponentKind = "agent",
    component: str = "writer",
) -> tuple[Surroundings, float]:
    """Run a component, cancel its task at a moment; what is left, and how long ending took."""

    async def work(catalog: Catalog) -> tuple[Surroundings, float]:
        surroundings = Surroundings(catalog)
        task = asyncio.create_task(surroundings.execute(kind, component, message, []))
        deadline = time.monotonic() + 5
        while not await asyncio.to_thread(reached, surroundings):
            assert time.monotonic() < deadline
            assert not task.done()
            await asyncio.sleep(0.005)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return surroundings, time.monotonic() - started

    return with_catalog(configured, work)


def test_a_model_that_hangs_is_left_at_once_and_its_socket_is_closed(
    model_endpoint: ModelEndpoint,
) -> None:
    model_endpoint.wait_for_open(0)

    left, took = cancelled_when(
        settings(model_endpoint, model="hang"), lambda _: model_endpoint.open_calls() == 1
    )

    assert took < SOON
    model_endpoint.wait_for_open(0)
    assert [message["role"] for message in left.transcript.messages] == ["user"]
    assert left.transcript.content == ""


def test_what_was_said_and_spent_until_then_is_kept(model_endpoint: ModelEndpoint) -> None:
    left, took = cancelled_when(
        settings(model_endpoint, model="half"), lambda run: run.told == "one two three"
    )

    assert took < SOON
    assert left.transcript.content == "one two three"
    assert left.transcript.metrics["input_tokens"] == 7
    assert left.transcript.metrics["total_tokens"] == 8
    said = left.transcript.messages[-1]
    assert (said["role"], said["content"]) == ("assistant", "one two three")
    assert said["metrics"]["total_tokens"] == 8
    model_endpoint.wait_for_open(0)


def test_a_demo_model_is_stopped_between_words() -> None:
    left, took = cancelled_when(
        settings(model="slow"), lambda run: run.told.count(" ") >= 2, "so it goes"
    )

    assert took < SOON
    assert left.transcript.content.startswith("so it ")
    assert left.transcript.metrics["input_tokens"] == 3
    spent = left.transcript.metrics["output_tokens"]
    assert spent == len(left.transcript.content.split())


def test_no_task_outlives_its_run_whenever_that_is_cancelled() -> None:
    async def work(catalog: Catalog) -> None:
        before = asyncio.all_tasks()
        for steps in range(60):
            task = asyncio.create_task(Surroundings(catalog).execute("agent", "writer", "x", []))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await wait_until(lambda: asyncio.all_tasks() == before, SOON)

    with_catalog(settings(model="slow"), work)


@pytest.mark.parametrize("name", ["sleepy", "stubborn", "stuck"])
def test_a_tool_call_that_was_open_is_closed(model_endpoint: ModelEndpoint, name: str) -> None:
    toolbox.release.clear()
    configured = settings(model_endpoint, model=f"tool:{name}", tools=(f"{toolbox.TOOLS}:{name}",))

    try:
        left, took = cancelled_when(configured, lambda run: bool(run.transcript.tools))
    finally:
        toolbox.release.set()

    assert took < SOON
    (call,) = left.transcript.tools
    assert (call["tool_call_error"], call["result"]) == (True, "cancelled")
    called, closed = left.transcript.messages[-2:]
    assert called["tool_calls"][0]["id"] == closed["tool_call_id"] == call["tool_call_id"]
    assert (closed["role"], closed["content"]) == ("tool", "cancelled")
    assert left.left == ([] if name == "sleepy" else [name])


def test_all_calls_of_an_answer_are_closed_when_one_hangs(model_endpoint: ModelEndpoint) -> None:
    configured = settings(model_endpoint, model="tools:sleepy", tools=(f"{toolbox.TOOLS}:sleepy",))

    left, _ = cancelled_when(configured, lambda run: len(run.transcript.tools) == 2)

    assert [call["result"] for call in left.transcript.tools] == ["cancelled"] * 2
    roles = [message["role"] for message in left.transcript.messages]
    assert roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("checkpoint", "roles"), [(1, ["user"]), (2, ["user", "assistant", "tool"])]
)
def test_a_checkpoint_stops_the_run_before_the_next_call(
    model_endpoint: ModelEndpoint, checkpoint: int, roles: list[str]
) -> None:
    model_endpoint.forget()
    configured = settings(model_endpoint, model="tool:add", tools=(f"{toolbox.TOOLS}:add",))

    async def work(catalog: Catalog) -> Surroundings:
        surroundings = Surroundings(catalog)
        surroundings.cancel_at_checkpoint = checkpoint
        with pytest.raises(asyncio.CancelledError):
            await surroundings.execute("agent", "writer", 'do {"a": 1}', [])
        return surroundings

    left = with_catalog(configured, work)

    assert [message["role"] for message in left.transcript.messages] == roles
    assert left.transcript.tools == []
    assert len(model_endpoint.requests("tool:add")) == checkpoint - 1


@pytest.mark.parametrize("mode", ["coordinate", "route", "broadcast"])
def test_cancelling_a_team_cancels_its_members(model_endpoint: ModelEndpoint, mode: str) -> None:
    model_endpoint.wait_for_open(0)
    configured = settings(
        model_endpoint,
        model="hang",
        models=(served("lead", "delegate", model_endpoint),),
        agents=(Agent("editor", "m"),),
        teams=(Team("news", "lead", ("writer", "editor"), mode=mode),),  # type: ignore[arg-type]
    )
    waiting = 2 if mode == "broadcast" else 1

    left, took = cancelled_when(
        configured,
        lambda run: len(run.children) == waiting and model_endpoint.open_calls() == waiting,
        kind="team",
        component="news",
    )

    assert took < SOON
    assert len(left.children) == waiting
    model_endpoint.wait_for_open(0)


def test_cancelling_a_workflow_cancels_its_step(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.wait_for_open(0)
    configured = settings(
        model_endpoint,
        model="hang",
        models=(served("e", "echo", model_endpoint),),
        agents=(Agent("first", "e"),),
        workflows=(Workflow("flow", (Step("a", agent="first"), Step("b", agent="writer"))),),
    )

    left, took = cancelled_when(
        configured,
        lambda run: len(run.children) == 2 and model_endpoint.open_calls() == 1,
        "hello",
        kind="workflow",
        component="flow",
    )

    assert took < SOON
    assert left.transcript.content == "hello"
    assert left.transcript.messages == []
    model_endpoint.wait_for_open(0)
