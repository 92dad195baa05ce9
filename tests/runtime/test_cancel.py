"""Cancelled tasks of runs, and their partial results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from agentctl.config.settings import Agent, Settings, Step, Team, Workflow
from agentctl.records.kinds import ComponentKind
from agentctl.runtime.components.catalog import Catalog
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.fake_context import FakeContext, served, settings, with_catalog
from tests.kit.model import ModelEndpoint
from tests.runtime import sample_tools

"""Seconds within which a cancelled run has ended on a busy machine. No work here ends without a
cancel in less than 10 minutes, except `stubborn`, which is checked to be abandoned."""

Reached = Callable[[FakeContext], bool]


def run_and_cancel(
    configured: Settings,
    reached: Reached,
    message: str = "do {}",
    *,
    kind: ComponentKind = "agent",
    component: str = "writer",
) -> FakeContext:
    """Run a component, cancel its task once `reached` is true, and return the context.

    The work of the component continues until later, so an end is the end by the cancel.
    """

    async def work(catalog: Catalog) -> FakeContext:
        context = FakeContext(catalog)
        task = asyncio.create_task(context.execute(kind, component, message, []))
        deadline = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(reached, context):
            assert time.monotonic() < deadline
            assert not task.done()
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE)
        assert task.cancelled()
        return context

    return with_catalog(configured, work)


def test_hanging_model_is_abandoned_and_its_socket_closed(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.wait_for_open(0)

    left = run_and_cancel(
        settings(model_endpoint, model="hang"), lambda _: model_endpoint.open_calls() == 1
    )

    model_endpoint.wait_for_open(0)
    assert [message["role"] for message in left.transcript.messages] == ["user"]
    assert left.transcript.content == ""


def test_partial_text_and_usage_are_kept(model_endpoint: ModelEndpoint) -> None:
    left = run_and_cancel(
        settings(model_endpoint, model="half"), lambda run: run.joined_deltas == "one two three"
    )

    assert left.transcript.content == "one two three"
    assert left.transcript.metrics["input_tokens"] == 7
    assert left.transcript.metrics["total_tokens"] == 8
    said = left.transcript.messages[-1]
    assert (said["role"], said["content"]) == ("assistant", "one two three")
    assert said["metrics"]["total_tokens"] == 8
    model_endpoint.wait_for_open(0)


def test_demo_model_stops_between_words() -> None:
    left = run_and_cancel(
        settings(model="slow"), lambda run: run.joined_deltas.count(" ") >= 2, "so it goes"
    )

    assert left.transcript.content.startswith("so it ")
    assert left.transcript.metrics["input_tokens"] == 3
    spent = left.transcript.metrics["output_tokens"]
    assert spent == len(left.transcript.content.split())


def test_no_task_outlives_a_cancelled_run() -> None:
    async def work(catalog: Catalog) -> None:
        before = asyncio.all_tasks()
        for steps in range(60):
            task = asyncio.create_task(FakeContext(catalog).execute("agent", "writer", "x", []))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await wait_until(lambda: asyncio.all_tasks() == before)

    with_catalog(settings(model="slow"), work)


@pytest.mark.parametrize("name", ["sleepy", "stubborn", "stuck", "stuck_elsewhere"])
def test_open_tool_call_is_closed(model_endpoint: ModelEndpoint, name: str) -> None:
    sample_tools.release.clear()
    configured = settings(
        model_endpoint, model=f"tool:{name}", tools=(f"{sample_tools.TOOLS}:{name}",)
    )

    try:
        left = run_and_cancel(configured, lambda run: bool(run.transcript.tools))
    finally:
        sample_tools.release.set()

    (call,) = left.transcript.tools
    assert (call["tool_call_error"], call["result"]) == (True, "cancelled")
    called, closed = left.transcript.messages[-2:]
    assert called["tool_calls"][0]["id"] == closed["tool_call_id"] == call["tool_call_id"]
    assert (closed["role"], closed["content"]) == ("tool", "cancelled")
    assert left.left == {"sleepy": []}.get(name, [name])


def test_all_calls_are_closed_if_one_hangs(model_endpoint: ModelEndpoint) -> None:
    configured = settings(
        model_endpoint, model="tools:sleepy", tools=(f"{sample_tools.TOOLS}:sleepy",)
    )

    left = run_and_cancel(configured, lambda run: len(run.transcript.tools) == 2)

    assert [call["result"] for call in left.transcript.tools] == ["cancelled"] * 2
    roles = [message["role"] for message in left.transcript.messages]
    assert roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("checkpoint", "roles"), [(1, ["user"]), (2, ["user", "assistant", "tool"])]
)
def test_checkpoint_stops_the_run_before_the_next_call(
    model_endpoint: ModelEndpoint, checkpoint: int, roles: list[str]
) -> None:
    model_endpoint.forget()
    configured = settings(model_endpoint, model="tool:add", tools=(f"{sample_tools.TOOLS}:add",))

    async def work(catalog: Catalog) -> FakeContext:
        context = FakeContext(catalog)
        context.cancel_at_checkpoint = checkpoint
        with pytest.raises(asyncio.CancelledError):
            await context.execute("agent", "writer", 'do {"a": 1}', [])
        return context

    left = with_catalog(configured, work)

    assert [message["role"] for message in left.transcript.messages] == roles
    assert left.transcript.tools == []
    assert len(model_endpoint.requests("tool:add")) == checkpoint - 1


@pytest.mark.parametrize("mode", ["coordinate", "route", "broadcast"])
def test_cancel_of_a_team_cancels_its_members(model_endpoint: ModelEndpoint, mode: str) -> None:
    model_endpoint.wait_for_open(0)
    configured = settings(
        model_endpoint,
        model="hang",
        models=(served("lead", "delegate", model_endpoint),),
        agents=(Agent("editor", "m"),),
        teams=(Team("news", "lead", ("writer", "editor"), mode=mode),),  # type: ignore[arg-type]
    )
    waiting = 2 if mode == "broadcast" else 1

    left = run_and_cancel(
        configured,
        lambda run: len(run.children) == waiting and model_endpoint.open_calls() == waiting,
        kind="team",
        component="news",
    )

    assert len(left.children) == waiting
    model_endpoint.wait_for_open(0)


def test_cancel_of_a_workflow_cancels_its_step(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.wait_for_open(0)
    configured = settings(
        model_endpoint,
        model="hang",
        models=(served("e", "echo", model_endpoint),),
        agents=(Agent("first", "e"),),
        workflows=(Workflow("flow", (Step("a", agent="first"), Step("b", agent="writer"))),),
    )

    left = run_and_cancel(
        configured,
        lambda run: len(run.children) == 2 and model_endpoint.open_calls() == 1,
        "hello",
        kind="workflow",
        component="flow",
    )

    assert left.transcript.content == "hello"
    assert left.transcript.messages == []
    model_endpoint.wait_for_open(0)
