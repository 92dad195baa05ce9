"""Cancel: the response equals the stored state, and the work has stopped."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, RunFilter, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import Service
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import runs as run_rows
from agentctl.store.repositories import sessions
from tests.kit.clock import pass_time
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.rows import a_run
from tests.kit.service import (
    admin,
    event_data,
    open_service,
    streamed_run,
    user,
    wait_for_live_run,
    wait_for_running,
)

STUBBORN_SECONDS = 200
"""The time of a call that no cancel ends, and that a test lets pass."""


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("hang", "x"),
        ("trickle", "x"),
        ("half", "x"),
        ("tool-wait", '{"seconds": 600}'),
        ("tool-block", '{"seconds": 60}'),
        ("tool-stubborn", f'{{"seconds": {STUBBORN_SECONDS}}}'),
    ],
)
async def test_cancel_stops_every_kind_of_hang(
    deployment: Deployment, agent: str, message: str
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", agent, message=message, session_id="s1") as (
            run,
            task,
        ):
            if agent.startswith("tool"):
                await _wait_for_tool(service, run["run_id"])
            request = CancelRequest(session_id="s1", wait=30, reason="enough")
            # A cancel that waited for the work would not be "stopped" after 30 seconds.
            answer = (await operations.runs.cancel("agent", agent, run["run_id"], request)).value
            assert answer["cancel"] == "stopped"
            assert answer["status"] == "CANCELLED"
            assert answer["reason"] == "enough"
            events = await task
        assert events[-1].name == "RunCancelled"
        assert event_data(events[-1])["reason"] == "enough"
        stored = (await operations.runs.get(run["run_id"])).value
        assert stored["status"] == "CANCELLED"
        assert stored["cancel_requested_by"] == "me"
        assert stored["finished_at"] == answer["finished_at"]

        # The event loop waits for the stubborn task at its end.
        if agent == "tool-stubborn":
            await pass_time(STUBBORN_SECONDS)


async def _wait_for_tool(service: Service, run_id: str) -> None:
    live = await wait_for_live_run(service, run_id)
    await wait_until(lambda: live.transcript.tools)


async def test_cancel_closes_the_model_request(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            await asyncio.to_thread(model_endpoint.wait_for_open, 1)
            await operations.runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest("s1", wait=30)
            )
            await asyncio.to_thread(model_endpoint.wait_for_open, 0)


async def test_cancel_keeps_messages_and_tokens(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        message = '{"seconds": 600}'
        async with streamed_run(
            operations, "agent", "tool-wait", message=message, session_id="s1"
        ) as (run, _):
            await _wait_for_tool(service, run["run_id"])
            await operations.runs.cancel(
                "agent", "tool-wait", run["run_id"], CancelRequest("s1", wait=30)
            )
        stored = (await operations.runs.get(run["run_id"])).value
        assert stored["metrics"]["total_tokens"] > 0
        assert [tool["result"] for tool in stored["tools"]] == ["cancelled"]
        roles = [entry["role"] for entry in stored["messages"]]
        assert roles == ["system", "user", "assistant", "tool"]
        again = await operations.runs.create(
            "agent", "echo", RunRequest("still there?", session_id="s1")
        )
        assert again.value["status"] == "COMPLETED"


async def test_cancel_keeps_partial_text(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "half", message="x", session_id="s1") as (
            run,
            _,
        ):
            live = await wait_for_live_run(service, run["run_id"])
            await wait_until(lambda: live.transcript.content.count(" ") >= 2)
            await operations.runs.cancel(
                "agent", "half", run["run_id"], CancelRequest("s1", wait=30)
            )
        stored = (await operations.runs.get(run["run_id"])).value
        history = (await operations.sessions.get("s1")).value["chat_history"] or []
        assert stored["content"]
        assert history[-1]["content"] == stored["content"]


async def test_cancel_of_a_finished_run_returns_already_final(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        run = (
            await operations.runs.create("agent", "echo", RunRequest("x", session_id="s1"))
        ).value
        answer = await operations.runs.cancel(
            "agent", "echo", run["run_id"], CancelRequest("s1", wait=30)
        )
        assert answer.value["cancel"] == "already_final"
        assert answer.value["status"] == "COMPLETED"
        assert answer.value["cancel_requested_at"] is None
        assert (await operations.runs.get(run["run_id"])).value == run


async def test_run_cancelled_before_its_start_keeps_its_message(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "echo", RunRequest("first", session_id="s1"))
        row = a_run(
            "pending", "s1", user_id="me", background=True, input="second", owner="elsewhere"
        )
        await service.hosting.databases["main"].write(run_rows.create(row))
        answer = await operations.runs.cancel(
            "agent", "echo", "pending", CancelRequest("s1", wait=30)
        )
        assert (answer.value["cancel"], answer.value["status"]) == ("stopped", "CANCELLED")
        history = (await operations.sessions.get("s1")).value["chat_history"] or []
        questions = [entry["content"] for entry in history if entry["role"] == "user"]
        assert questions == ["first", "second"]


async def test_second_cancel_returns_already_final(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            first = CancelRequest("s1", wait=30, reason="first")
            await operations.runs.cancel("agent", "hang", run["run_id"], first)
            second = CancelRequest("s1", wait=30, reason="second")
            answer = await operations.runs.cancel("agent", "hang", run["run_id"], second)
        assert answer.value["cancel"] == "already_final"
        assert answer.value["status"] == "CANCELLED"
        assert answer.value["reason"] == "first"


async def test_cancel_of_an_unknown_run_stores_nothing(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        other = user(service, "other")
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            run_id = run["run_id"]
            wrong = [
                (operations, "agent", "hang", "no-such-run", CancelRequest("s1", wait=30)),
                (operations, "agent", "echo", run_id, CancelRequest("s1", wait=30)),
                (operations, "team", "crew", run_id, CancelRequest("s1", wait=30)),
                (operations, "agent", "hang", run_id, CancelRequest("s2")),
                (other, "agent", "hang", run_id, CancelRequest("s1", wait=30)),
            ]
            told = set()
            for caller, kind, component, identifier, request in wrong:
                with pytest.raises(errors.NotFound) as refusal:
                    await caller.runs.cancel(kind, component, identifier, request)  # type: ignore[arg-type]
                told.add(refusal.value.detail)
            assert told == {"Run not found"}
            with pytest.raises(errors.NotFound, match="Agent not found"):
                await operations.runs.cancel(
                    "agent", "nobody", run_id, CancelRequest("s1", wait=30)
                )
            assert (await operations.runs.get(run_id)).value["cancel_requested_at"] is None


async def test_only_administrators_may_omit_the_session(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            with pytest.raises(errors.BadRequest, match="session_id is required"):
                await operations.runs.cancel("agent", "hang", run["run_id"], CancelRequest(wait=30))
            answer = await admin(service).runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest(wait=30)
            )
            assert answer.value["cancel"] == "stopped"


async def test_session_of_the_token_is_the_default(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service, session_id="s1")
        async with streamed_run(operations, "agent", "hang", message="x") as (run, _):
            assert run["session_id"] == "s1"
            answer = await operations.runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest(wait=30)
            )
            assert answer.value["cancel"] == "stopped"


@pytest.mark.parametrize("wait", [-1, 31, float("nan")])
async def test_wait_of_a_cancel_is_bounded(deployment: Deployment, wait: float) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        request = CancelRequest("s", wait=wait)
        with pytest.raises(errors.NotFound):
            await operations.runs.cancel("agent", "echo", "nothing", request)
        run = (await operations.runs.create("agent", "echo", RunRequest("hello", "s"))).value
        with pytest.raises(errors.ValidationFailed, match="wait"):
            await operations.runs.cancel("agent", "echo", run["run_id"], request)


@pytest.mark.parametrize(
    ("kind", "component"), [("team", "crew"), ("team", "jam"), ("workflow", "stuck")]
)
async def test_cancel_of_a_parent_cancels_members_and_steps(
    deployment: Deployment, kind: ComponentKind, component: str
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        message = "ask hang"
        async with streamed_run(operations, kind, component, message=message, session_id="s1") as (
            run,
            task,
        ):
            await _wait_for_children(service, run["run_id"])
            request = CancelRequest("s1", wait=30, reason="enough")
            answer = await operations.runs.cancel(kind, component, run["run_id"], request)
            assert answer.value["cancel"] == "stopped"
            events = await task
        assert events[-1].name.endswith("Cancelled")
        assert event_data(events[-1])["run_id"] == run["run_id"]
        runs = (await operations.sessions.list_runs("s1")).value
        assert len(runs) > 1
        assert {stored["status"] for stored in runs} == {"CANCELLED"}
        assert {stored["cancel_reason"] for stored in runs} == {"enough"}


async def _wait_for_children(service: Service, run_id: str) -> None:
    live = await wait_for_live_run(service, run_id)
    wanted = 2 if live.component.id == "jam" else 1
    await wait_until(lambda: len(live.children) == wanted)


async def test_cancel_of_a_member_is_reported_to_its_team(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(
            operations, "team", "crew", message="ask hang", session_id="s1"
        ) as (_, task):
            member = await wait_for_running(operations, component_type="agent")
            answer = await operations.runs.cancel(
                "agent", "hang", member["run_id"], CancelRequest("s1", wait=30)
            )
            assert answer.value["cancel"] == "stopped"
            events = await task
        assert events[-1].name == "TeamRunCompleted"


async def test_cancel_from_another_process_uses_the_database(deployment: Deployment) -> None:
    """A second open service on the same databases acts as another process."""
    async with open_service(deployment) as owner, open_service(deployment) as elsewhere:
        operations = user(owner)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            task,
        ):
            answer = await admin(elsewhere).runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest(wait=30, reason="from afar")
            )
            assert answer.value["cancel"] == "stopped"
            assert answer.value["reason"] == "from afar"
            assert (await task)[-1].name == "RunCancelled"


async def test_cancel_from_another_process_does_not_wait_for_a_deleted_run(
    deployment: Deployment,
) -> None:
    async with open_service(deployment) as owner, open_service(deployment) as elsewhere:
        operations = user(owner)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            run_id = run["run_id"]
            cancelling = elsewhere.hosting.canceller.cancel(
                elsewhere.hosting.databases.system,
                run_id,
                actor="admin",
                reason=None,
                wait=10 * PATIENCE,
                extra_write=_delete_session,
            )
            async with asyncio.timeout(PATIENCE):
                result = await cancelling
            assert (result.outcome, result.state.run_id) == ("requested", run_id)


@unit
def _delete_session() -> Steps[None]:
    yield from sessions.delete("s1")


async def test_cancel_during_completion_returns_the_stored_status(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        outcomes = set[str]()
        for number in range(600):
            if number >= 20 and len(outcomes) == 2:
                break
            task = asyncio.create_task(
                operations.runs.create("agent", "echo", RunRequest("x", session_id=f"s{number}"))
            )
            while not (live := service.hosting.engine.live_runs()):
                await asyncio.sleep(0)
            # The first cancels of each round come at once: the answer of the model is quick.
            await asyncio.sleep(max(0, number % 60 - 10) * 0.0003)
            answer = (
                await operations.runs.cancel(
                    "agent", "echo", live[0].run_id, CancelRequest(f"s{number}", wait=30)
                )
            ).value
            run = (await task).value
            assert run["status"] == answer["status"]
            assert run["finished_at"] == answer["finished_at"]
            expected = "stopped" if run["status"] == "CANCELLED" else "already_final"
            assert answer["cancel"] in (expected, "already_final")
            outcomes.add(run["status"])
        assert outcomes == {"COMPLETED", "CANCELLED"}


async def test_engine_keeps_no_waiters_after_a_cancel(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        async with streamed_run(operations, "agent", "hang", message="x", session_id="s1") as (
            run,
            _,
        ):
            await operations.runs.cancel(
                "agent", "hang", run["run_id"], CancelRequest("s1", wait=30)
            )
        assert service.hosting.engine.live_runs() == []
        page = (await operations.runs.list(RunFilter(status="RUNNING"))).raw
        assert orjson.loads(page)["data"] == []
