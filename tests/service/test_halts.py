"""Halts: nothing in their scope begins, and what they hold continues exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.interface.requests.halts import HaltFilter, NewHalt
from agentctl.records.times import HOUR, format_rfc3339, now
from agentctl.runs.gate.halting import end_due_halts
from agentctl.runs.gate.halts import ALIVE_SECONDS
from agentctl.runs.life.live import LiveRun
from agentctl.service.service import Service
from tests.kit.clock import pass_time, wait_for_timer
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deploy, Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, open_service, streamed_run, user, wait_for_running

FALLBACK = """
[[models]]
id = "first"
provider = "openai"
model = "hang"
base_url = "{url}"
fallbacks = ["second"]

[[models]]
id = "second"
provider = "openai"
model = "echo"
base_url = "{url}"

[[agents]]
id = "careful"
model = "first"

[[agents]]
id = "asks"
model = "tool-add"
tools = ["world_tools:add"]
approve = {{ add = "user" }}
"""

CALL = '{"a": 1, "b": 2}'

CALL_SECONDS = 200
"""The time of a call that ends when the test lets it pass; less than the limit of calls."""

LONG_CALL = f'{{"seconds": {CALL_SECONDS}}}'


async def create_halt(service: Service, scope: Any, scope_id: str | None, **more: Any) -> str:
    """Create a halt as an administrator; return its id."""
    halt = NewHalt(scope, "too many mails", scope_id=scope_id, **more)
    return str((await admin(service).halts.create(halt)).value["halt_id"])


async def test_halt_is_recorded_until_it_is_ended(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = admin(service)
        halt_id = await create_halt(service, "agent", "echo")
        record = (await operations.halts.get(halt_id)).value
        assert (record["scope"], record["scope_id"], record["state"]) == ("agent", "echo", "active")
        assert (record["reason"], record["created_by"]) == ("too many mails", "local:boss")

        await operations.halts.end(halt_id)
        record = (await operations.halts.get(halt_id)).value
        assert (record["state"], record["ended_by"]) == ("ended", "local:boss")
        with pytest.raises(errors.Conflict, match="has ended already"):
            await operations.halts.end(halt_id)

        later_id = await create_halt(service, "all", None)
        listed = (await operations.halts.list(HaltFilter())).value["data"]
        assert [row["halt_id"] for row in listed] == [later_id, halt_id]
        active = (await operations.halts.list(HaltFilter(state="active"))).value["data"]
        assert [row["halt_id"] for row in active] == [later_id]


@pytest.mark.parametrize(
    ("halt", "error"),
    [
        (NewHalt("agent", "why", scope_id="nobody"), "Agent not found"),
        (NewHalt("model", "why", scope_id="nothing"), "Model not found"),
        (NewHalt("agent", "why"), "scope_id must be 1 to 255 characters"),
        (NewHalt("all", "why", scope_id="x"), "scope_id cannot be used with scope all"),
        (NewHalt("all", " "), "reason must be 1 to"),
        (NewHalt("all", "why", until="tomorrow"), "until is not an RFC 3339 date-time"),
        (NewHalt("all", "why", until="2020-01-01T00:00:00Z"), "until must be in the future"),
        (NewHalt("tool", "why", scope_id="add", stop_running=True), "stop_running cannot be used"),
        (NewHalt("planet", "why", scope_id="x"), "scope must be one of"),  # type: ignore[arg-type]
    ],
)
async def test_wrong_halts_are_refused(deployment: Deployment, halt: NewHalt, error: str) -> None:
    async with open_service(deployment) as service:
        with pytest.raises(errors.AgentctlError, match=error):
            await admin(service).halts.create(halt)
        assert (await admin(service).halts.list(HaltFilter())).value["data"] == []


async def test_users_without_the_scope_can_neither_halt_nor_resume(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        halt_id = await create_halt(service, "agent", "hang")
        for refused in (
            user(service).halts.create(NewHalt("all", "why")),
            user(service).halts.end(halt_id),
            user(service).halts.list(HaltFilter()),
        ):
            with pytest.raises(errors.Forbidden):
                await refused


@pytest.mark.parametrize(
    ("scope", "scope_id", "subject"),
    [
        ("agent", "echo", "The agent echo is halted"),
        ("model", "echo", "The model echo is halted"),
        ("user", "me", "The runs of this user are halted"),
        ("all", None, "Everything is halted"),
    ],
)
async def test_new_run_is_refused_with_the_reason(
    deployment: Deployment,
    model_endpoint: ModelEndpoint,
    scope: Any,
    scope_id: str | None,
    subject: str,
) -> None:
    model_endpoint.forget()
    until = format_rfc3339(now() + 90_000_000)
    async with open_service(deployment) as service:
        halt_id = await create_halt(service, scope, scope_id, until=until)
        with pytest.raises(errors.Halted, match=f"{subject}: too many mails") as refusal:
            await user(service).runs.create("agent", "echo", RunRequest("hello"))
        assert 80 < (refusal.value.retry_after or 0) <= 90
        assert refusal.value.halt == halt_id

        await admin(service).halts.end(halt_id)
        run = (await user(service).runs.create("agent", "echo", RunRequest("hello"))).value
        assert run["status"] == "COMPLETED"
    assert len(model_endpoint.requests("echo")) == 1


async def test_other_agents_and_users_work_on(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await create_halt(service, "agent", "hang")
        await create_halt(service, "user", "other")
        await create_halt(service, "tool", "block")
        run = (await user(service).runs.create("agent", "echo", RunRequest("hello"))).value
        assert run["status"] == "COMPLETED"


async def test_held_run_continues_exactly_once(deploy: Deploy) -> None:
    deployment = deploy('[runs]\non_halt = "hold"\n')
    deploy.endpoint.forget()
    async with open_service(deployment) as service:
        halt_id = await create_halt(service, "agent", "echo")
        run = asyncio.create_task(
            user(service).runs.create("agent", "echo", RunRequest("held", background=True))
        )
        run_id = (await run).value["run_id"]
        waiting = asyncio.create_task(
            user(service).runs.create("agent", "echo", RunRequest("held too"))
        )
        record = (await user(service).runs.get(run_id)).value
        assert record["status"] == "PENDING"
        assert deploy.endpoint.requests("echo") == []

        await admin(service).halts.end(halt_id)
        assert (await waiting).value["status"] == "COMPLETED"

        async def has_ended() -> bool:
            return bool((await user(service).runs.get(run_id)).value["status"] == "COMPLETED")

        await wait_until(has_ended)
        assert len(deploy.endpoint.requests("echo")) == 2


async def wait_for_live_run(service: Service) -> LiveRun:
    """Return the run of a process that has one, as soon as it has begun.

    A read of the database would take longer, and the run might end meanwhile.
    """
    engine = service.hosting.engine
    await engine.wait_for_live_run()
    (live,) = engine.live_runs()
    return live


async def test_live_run_waits_before_its_next_call(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    """The call of the tool has begun: it ends, and the next call of the model waits."""
    model_endpoint.forget()
    async with open_service(deployment) as service:
        running = asyncio.create_task(
            user(service).runs.create("agent", "tool-wait", RunRequest(LONG_CALL, session_id="s1"))
        )
        live = await wait_for_live_run(service)
        await wait_for_timer(CALL_SECONDS)
        halt_id = await create_halt(service, "agent", "tool-wait")
        await pass_time(CALL_SECONDS)
        await wait_until(lambda: live.is_held)
        assert len(model_endpoint.requests("tool:wait")) == 1

        await admin(service).halts.end(halt_id)
        record = (await running).value
        assert (record["status"], record["content"]) == ("COMPLETED", "waited")
        assert len(model_endpoint.requests("tool:wait")) == 2


async def test_held_run_does_not_reach_its_time_limit(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2 * CALL_SECONDS
    deployment = deploy(f"[runs]\ntimeout_seconds = {limit}\n")
    async with open_service(deployment) as service:
        running = asyncio.create_task(
            user(service).runs.create("agent", "tool-wait", RunRequest(LONG_CALL))
        )
        live = await wait_for_live_run(service)
        await wait_for_timer(CALL_SECONDS)
        halt_id = await create_halt(service, "agent", "tool-wait")
        await pass_time(CALL_SECONDS)
        await wait_until(lambda: live.is_held)
        looks = list[float]()
        held_seconds = LiveRun.held_seconds.fget
        assert held_seconds is not None

        def look(run: LiveRun) -> float:
            looks.append(held_seconds(run))
            return looks[-1]

        monkeypatch.setattr(LiveRun, "held_seconds", property(look))
        await pass_time(limit - CALL_SECONDS)
        await wait_until(lambda: looks)
        assert looks[-1] >= limit - CALL_SECONDS
        assert not running.done()
        await admin(service).halts.end(halt_id)
        assert (await running).value["status"] == "COMPLETED"


async def test_held_run_can_be_cancelled(deployment: Deployment) -> None:
    request = {"message": LONG_CALL, "session_id": "s1"}
    async with (
        open_service(deployment) as service,
        streamed_run(user(service), "agent", "tool-wait", **request) as (run, _),
    ):
        live = await wait_for_live_run(service)
        await wait_for_timer(CALL_SECONDS)
        await create_halt(service, "agent", "tool-wait")
        await pass_time(CALL_SECONDS)
        await wait_until(lambda: live.is_held)
        cancel = CancelRequest(session_id="s1", wait=30)
        answer = await user(service).runs.cancel("agent", "tool-wait", run["run_id"], cancel)
        assert answer.value["cancel"] == "stopped"


async def test_model_reads_that_a_tool_is_halted(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        await create_halt(service, "tool", "add")
        run = (await user(service).runs.create("agent", "tool-add", RunRequest(CALL))).value
    assert run["status"] == "COMPLETED"
    assert run["content"] == "not available: the tool add is halted: too many mails"
    (call,) = run["tools"]
    assert call["tool_call_error"]


async def test_halted_model_is_passed_over_for_its_fallback(deploy: Deploy) -> None:
    deployment = deploy(FALLBACK.format(url=deploy.url))
    deploy.endpoint.forget()
    async with open_service(deployment) as service:
        await create_halt(service, "model", "first")
        run = (await user(service).runs.create("agent", "careful", RunRequest("hello"))).value
        assert (run["status"], run["content"]) == ("COMPLETED", "hello")
        assert deploy.endpoint.requests("hang") == []

        await create_halt(service, "model", "second")
        with pytest.raises(errors.Halted, match="The model first is halted"):
            await user(service).runs.create("agent", "careful", RunRequest("hello"))


@pytest.mark.parametrize("scope", [("agent", "asks"), ("tool", "add")])
async def test_call_of_a_decided_approval_waits(deploy: Deploy, scope: tuple[Any, str]) -> None:
    deployment = deploy(FALLBACK.format(url=deploy.url))
    deploy.endpoint.forget()
    async with open_service(deployment) as service:
        await service.prepare()
        operations = admin(service)
        request = RunRequest(CALL, session_id="s1")
        run = (await operations.runs.create("agent", "asks", request)).value
        assert run["status"] == "PAUSED"

        halt_id = await create_halt(service, *scope)
        (asked,) = (await operations.approvals.list(ApprovalFilter())).value["data"]
        ruling = Ruling("approve", asked["arguments_hash"])
        decided = await operations.approvals.decide("agent", "asks", asked["approval_id"], ruling)
        assert decided.value["status"] == "approved"
        assert len(deploy.endpoint.requests("tool:add")) == 1

        await admin(service).halts.end(halt_id)

        async def read_ended() -> Any:
            record = (await operations.runs.get(run["run_id"])).value
            return record if record["status"] == "COMPLETED" else None

        record = await wait_until(read_ended)
        assert record["content"] == "3"
        assert len(deploy.endpoint.requests("tool:add")) == 2


async def test_members_of_a_halted_agent_wait(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    """The leader of the team is not halted: it delegates, and its member waits."""
    model_endpoint.forget()
    async with open_service(deployment) as service:
        halt_id = await create_halt(service, "agent", "echo")
        running = asyncio.create_task(
            user(service).runs.create("team", "crew", RunRequest("hello"))
        )
        member = await wait_for_running(user(service), component_id="echo")
        # Its row is committed before it is among the live runs.
        live = await wait_until(lambda: service.hosting.engine.find_run(member["run_id"]))
        await wait_until(lambda: live.is_held)
        assert model_endpoint.requests("echo") == []
        await admin(service).halts.end(halt_id)
        assert (await running).value["status"] == "COMPLETED"
        assert len(model_endpoint.requests("echo")) == 1


async def test_stop_running_cancels_the_runs_in_scope(deployment: Deployment) -> None:
    async with (
        open_service(deployment) as service,
        streamed_run(user(service), "agent", "hang", message="x") as (run, events),
    ):
        other = asyncio.create_task(
            user(service, "other").runs.create("agent", "trickle", RunRequest("x"))
        )
        await wait_for_running(user(service, "other"), component_id="trickle")
        halt = NewHalt("agent", "wrong mails", scope_id="hang", stop_running=True)
        record = (await admin(service).halts.create(halt)).value
        assert record["cancelled_runs"] == 1
        assert (await events)[-1].name == "RunCancelled"
        stored = (await user(service).runs.get(run["run_id"])).value
        assert stored["cancel_reason"] == "Halted: wrong mails"
        assert not other.done()
        other.cancel()


async def test_halt_ends_when_its_time_has_come(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        until = format_rfc3339(now() + HOUR)
        halt_id = await create_halt(service, "agent", "echo", until=until)
        with pytest.raises(errors.Halted):
            await user(service).runs.create("agent", "echo", RunRequest("hello"))

        for module in ("runs.gate.halts", "runs.gate.halting", "service.operations.halts"):
            monkeypatch.setattr(f"agentctl.{module}.now", lambda: now() + 2 * HOUR)
        await user(service).runs.create("agent", "echo", RunRequest("hello"))
        await end_due_halts(service.hosting.databases.system)
        record = (await admin(service).halts.get(halt_id)).value
        assert (record["state"], record["ended_by"]) == ("ended", "system:until")


async def test_process_that_cannot_read_the_halts_starts_nothing(
    deployment: Deployment, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_endpoint.forget()
    async with open_service(deployment) as service:
        halts = service.hosting.gate.halts
        running = asyncio.create_task(
            user(service).runs.create("agent", "tool-wait", RunRequest(LONG_CALL))
        )
        live = await wait_for_live_run(service)
        await wait_for_timer(CALL_SECONDS)

        async def fail() -> None:
            raise errors.Unavailable("The database is not available")

        with monkeypatch.context() as patch:
            patch.setattr(halts, "refresh", fail)
            patch.setattr(halts, "_clock", lambda: float("inf"))
            # The call of the tool ends, and the next step of the run is held.
            await pass_time(CALL_SECONDS)
            await wait_until(lambda: live.is_held)
            with pytest.raises(errors.Unavailable):
                await user(service).runs.create("agent", "echo", RunRequest("hello"))
            assert model_endpoint.requests("echo") == []

        assert (await running).value["status"] == "COMPLETED"


async def test_process_with_an_old_heartbeat_starts_nothing(
    deployment: Deployment, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have removed the row of its worker, so that a new halt does not wait for it."""
    model_endpoint.forget()
    async with open_service(deployment) as service:
        halts = service.hosting.gate.halts
        running = asyncio.create_task(
            user(service).runs.create("agent", "tool-wait", RunRequest(LONG_CALL))
        )
        live = await wait_for_live_run(service)
        await wait_for_timer(CALL_SECONDS)

        with monkeypatch.context() as patch:
            worker = service._worker
            patch.setattr(halts, "_clock", lambda: worker.alive_at + ALIVE_SECONDS + 1)
            # The halts can be read all the time.
            await halts.refresh()
            await pass_time(CALL_SECONDS)
            await wait_until(lambda: live.is_held)
            new_run = asyncio.create_task(
                user(service).runs.create("agent", "echo", RunRequest("hello"))
            )
            run = await wait_for_running(user(service), component_id="echo")
            # The row is committed before the run is among the live ones.
            new_live = await wait_until(lambda: service.hosting.engine.find_run(run["run_id"]))
            await wait_until(lambda: new_live.is_held)
            assert model_endpoint.requests("echo") == []

        for ended in await asyncio.gather(running, new_run):
            assert ended.value["status"] == "COMPLETED"
