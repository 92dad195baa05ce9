"""Cancelling: the answer equals what is stored, and what was asked to stop has stopped."""

from __future__ import annotations

import asyncio
import time

import orjson
import pytest

from agentctl import errors
from agentctl.operations import CancelRequest, RunFilter, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import Service
from tests.deployment import Deployment
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.service.doors import boss, data, hosted, running, started, user


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("hang", "x"),
        ("trickle", "x"),
        ("half", "x"),
        ("tool-wait", '{"seconds": 600}'),
        ("tool-block", '{"seconds": 3}'),
        ("tool-stubborn", '{"seconds": 3}'),
    ],
)
async def test_whatever_hangs_is_stopped_at_once(
    deployment: Deployment, agent: str, message: str
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", agent, message=message, session_id="s1") as (run, task):
            if agent.startswith("tool"):
                await _tool_started(service, run["run_id"])
            request = CancelRequest(session_id="s1", wait=10, reason="enough")
            asked = time.monotonic()
            answer = (await port.cancel_run("agent", agent, run["run_id"], request)).value
            assert time.monotonic() - asked < 2.5, "the work was waited for"
            assert answer["cancel"] == "stopped"
            assert answer["status"] == "CANCELLED"
            assert answer["reason"] == "enough"
            events = await task
        assert events[-1].name == "RunCancelled"
        assert data(events[-1])["reason"] == "enough"
        stored = (await port.get_run(run["run_id"])).value
        assert stored["status"] == "CANCELLED"
        assert stored["cancel_requested_by"] == "me"
        assert stored["finished_at"] == answer["finished_at"]


async def _tool_started(service: Service, run_id: str) -> None:
    live = service.hosting.engine.find_run(run_id)
    assert live is not None
    await wait_until(lambda: live.transcript.tools)


async def test_the_call_to_the_model_is_closed(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, _):
            await asyncio.to_thread(model_endpoint.wait_for_open, 1)
            await port.cancel_run("agent", "hang", run["run_id"], CancelRequest("s1"))
            await asyncio.to_thread(model_endpoint.wait_for_open, 0)


async def test_what_was_said_and_spent_is_kept_and_the_session_stays_usable(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        message = '{"seconds": 600}'
        async with started(port, "agent", "tool-wait", message=message, session_id="s1") as (
            run,
            _,
        ):
            await _tool_started(service, run["run_id"])
            await port.cancel_run("agent", "tool-wait", run["run_id"], CancelRequest("s1"))
        stored = (await port.get_run(run["run_id"])).value
        assert stored["metrics"]["total_tokens"] > 0
        assert [tool["result"] for tool in stored["tools"]] == ["cancelled"]
        roles = [entry["role"] for entry in stored["messages"]]
        assert roles == ["system", "user", "assistant", "tool"]
        again = await port.create_run("agent", "echo", RunRequest("still there?", session_id="s1"))
        assert again.value["status"] == "COMPLETED"


async def test_partial_text_is_kept(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "half", message="x", session_id="s1") as (run, _):
            live = service.hosting.engine.find_run(run["run_id"])
            assert live is not None
            await wait_until(lambda: live.transcript.content.count(" ") >= 2)
            await port.cancel_run("agent", "half", run["run_id"], CancelRequest("s1"))
        stored = (await port.get_run(run["run_id"])).value
        history = (await port.get_session_by_id("s1")).value["chat_history"] or []
        assert stored["content"]
        assert history[-1]["content"] == stored["content"]


async def test_a_finished_run_says_so_and_stays_as_it_is(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        run = (await port.create_run("agent", "echo", RunRequest("x", session_id="s1"))).value
        answer = await port.cancel_run("agent", "echo", run["run_id"], CancelRequest("s1"))
        assert answer.value["cancel"] == "already_final"
        assert answer.value["status"] == "COMPLETED"
        assert answer.value["cancel_requested_at"] is None
        assert (await port.get_run(run["run_id"])).value == run


async def test_a_second_cancel_finds_the_run_final(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, _):
            first = CancelRequest("s1", reason="first")
            await port.cancel_run("agent", "hang", run["run_id"], first)
            second = CancelRequest("s1", reason="second")
            answer = await port.cancel_run("agent", "hang", run["run_id"], second)
        assert answer.value["cancel"] == "already_final"
        assert answer.value["status"] == "CANCELLED"
        assert answer.value["reason"] == "first"


async def test_what_is_not_that_run_is_not_found_and_nothing_is_stored(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port, other = user(service), user(service, "other")
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, _):
            run_id = run["run_id"]
            wrong = [
                (port, "agent", "hang", "no-such-run", CancelRequest("s1")),
                (port, "agent", "echo", run_id, CancelRequest("s1")),
                (port, "team", "crew", run_id, CancelRequest("s1")),
                (port, "agent", "hang", run_id, CancelRequest("s2")),
                (other, "agent", "hang", run_id, CancelRequest("s1")),
            ]
            told = set()
            for caller, kind, component, identifier, request in wrong:
                with pytest.raises(errors.NotFound) as refusal:
                    await caller.cancel_run(kind, component, identifier, request)  # type: ignore[arg-type]
                told.add(refusal.value.detail)
            assert told == {"Run not found"}
            with pytest.raises(errors.NotFound, match="Agent not found"):
                await port.cancel_run("agent", "nobody", run_id, CancelRequest("s1"))
            assert (await port.get_run(run_id)).value["cancel_requested_at"] is None


async def test_only_an_administrator_may_leave_the_session_out(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, _):
            with pytest.raises(errors.BadRequest, match="session_id is required"):
                await port.cancel_run("agent", "hang", run["run_id"], CancelRequest())
            answer = await boss(service).cancel_run("agent", "hang", run["run_id"], CancelRequest())
            assert answer.value["cancel"] == "stopped"


async def test_the_session_of_the_token_is_the_default(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service, session_id="s1")
        async with started(port, "agent", "hang", message="x") as (run, _):
            assert run["session_id"] == "s1"
            answer = await port.cancel_run("agent", "hang", run["run_id"], CancelRequest())
            assert answer.value["cancel"] == "stopped"


@pytest.mark.parametrize("wait", [-1, 31, float("nan")])
async def test_the_wait_has_bounds(deployment: Deployment, wait: float) -> None:
    async with hosted(deployment) as service:
        port, request = user(service), CancelRequest("s", wait=wait)
        with pytest.raises(errors.NotFound):
            await port.cancel_run("agent", "echo", "nothing", request)
        run = (await port.create_run("agent", "echo", RunRequest("hello", "s"))).value
        with pytest.raises(errors.ValidationFailed, match="wait"):
            await port.cancel_run("agent", "echo", run["run_id"], request)


@pytest.mark.parametrize(
    ("kind", "component"), [("team", "crew"), ("team", "jam"), ("workflow", "stuck")]
)
async def test_members_and_steps_end_with_what_asked_for_them(
    deployment: Deployment, kind: ComponentKind, component: str
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        message = "ask hang"
        async with started(port, kind, component, message=message, session_id="s1") as (run, task):
            await _children_running(service, run["run_id"])
            request = CancelRequest("s1", reason="enough")
            answer = await port.cancel_run(kind, component, run["run_id"], request)
            assert answer.value["cancel"] == "stopped"
            events = await task
        assert events[-1].name.endswith("Cancelled")
        assert data(events[-1])["run_id"] == run["run_id"]
        runs = (await port.get_session_runs("s1")).value
        assert len(runs) > 1
        assert {stored["status"] for stored in runs} == {"CANCELLED"}
        assert {stored["cancel_reason"] for stored in runs} == {"enough"}


async def _children_running(service: Service, run_id: str) -> None:
    live = service.hosting.engine.find_run(run_id)
    assert live is not None
    wanted = 2 if live.spec.component.id == "jam" else 1
    await wait_until(lambda: len(live.children) == wanted)


async def test_a_member_alone_can_be_cancelled_and_its_team_hears_of_it(
    deployment: Deployment,
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "team", "crew", message="ask hang", session_id="s1") as (_, task):
            member = await running(port, component_type="agent")
            answer = await port.cancel_run("agent", "hang", member["run_id"], CancelRequest("s1"))
            assert answer.value["cancel"] == "stopped"
            events = await task
        assert events[-1].name == "TeamRunCompleted"


async def test_a_cancel_from_elsewhere_needs_only_the_database(deployment: Deployment) -> None:
    """Another opening of the same databases is to the owner what another process is."""
    async with hosted(deployment) as owner, hosted(deployment) as elsewhere:
        port = user(owner)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, task):
            answer = await boss(elsewhere).cancel_run(
                "agent", "hang", run["run_id"], CancelRequest(wait=10, reason="from afar")
            )
            assert answer.value["cancel"] == "stopped"
            assert answer.value["reason"] == "from afar"
            assert (await task)[-1].name == "RunCancelled"


async def test_the_answer_of_a_race_equals_what_is_stored(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        outcomes = set()
        for number in range(60):
            task = asyncio.create_task(
                port.create_run("agent", "echo", RunRequest("x", session_id=f"s{number}"))
            )
            while not (live := service.hosting.engine.live_runs()):
                await asyncio.sleep(0)
            await asyncio.sleep(number * 0.0003)
            answer = (
                await port.cancel_run(
                    "agent", "echo", live[0].run_id, CancelRequest(f"s{number}", wait=5)
                )
            ).value
            run = (await task).value
            assert run["status"] == answer["status"]
            assert run["finished_at"] == answer["finished_at"]
            expected = "stopped" if run["status"] == "CANCELLED" else "already_final"
            assert answer["cancel"] in (expected, "already_final")
            outcomes.add(run["status"])
        assert outcomes == {"COMPLETED", "CANCELLED"}


async def test_nothing_that_waited_is_left_in_the_engine(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        async with started(port, "agent", "hang", message="x", session_id="s1") as (run, _):
            await port.cancel_run("agent", "hang", run["run_id"], CancelRequest("s1"))
        assert service.hosting.engine.live_runs() == []
        page = (await port.get_runs(RunFilter(status="RUNNING"))).raw
        assert orjson.loads(page)["data"] == []
