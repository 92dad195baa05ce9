"""Hanging work: the run ends in time, and its record shows if the work stopped.

See docs/contract.md "Tools and threads".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentctl.interface.requests import CancelRequest, RunFilter, RunRequest, SessionFilter
from agentctl.records.times import parse_rfc3339
from agentctl.runs.life import finish
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.sqlite import connection, database
from tests.kit.clock import pass_time
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import open_service, user, wait_for_live_run, wait_for_running
from tests.runs import hanging_tools

CANCEL_SECONDS = 30.0
"""The longest time that a request to cancel may wait; no work here ends on its own before."""

RUN_SECONDS = 200.0
"""A time limit of runs, which the test lets pass when they hang."""

MODELS = ("hang", "drip", "half", "trickle")
ANSWERING = {"half": "one two three", "trickle": ""}
"""The models that hang within their answer, with its begin."""

TOOLS = ("polite", "blocked", "stubborn")
LEFT = ("blocked", "stubborn")
"""Tools that do not stop on a cancel."""


@pytest.fixture(autouse=True)
def held_tools() -> Iterator[None]:
    """Hold the tools during a test, and release them afterwards."""
    hanging_tools.opened.clear()
    yield
    hanging_tools.opened.set()


def create_hanging_deployment(folder: Path, endpoint: ModelEndpoint, extra: str = "") -> Deployment:
    """Create a deployment with an agent for each hanging tool, and a team with one of them."""
    drip = _model("drip", "drip", endpoint) + _agent("drip")
    tools = "".join(
        _model(name, f"tool:{name}", endpoint)
        + _agent(name, f'tools = ["tests.runs.hanging_tools:{name}"]')
        for name in TOOLS
    )
    team = '[[teams]]\nid = "pair"\nname = "Pair"\nmode = "coordinate"\nmodel = "delegate"\n'
    team += 'members = ["blocked"]\n'
    return create_deployment(folder, endpoint.base_url, extra=drip + tools + team + extra)


def _model(name: str, model: str, endpoint: ModelEndpoint) -> str:
    return (
        f'[[models]]\nid = "{name}"\nprovider = "openai"\nmodel = "{model}"\n'
        f'base_url = "{endpoint.base_url}"\n'
    )


def _agent(name: str, more: str = "") -> str:
    return f'[[agents]]\nid = "{name}"\nname = "{name.title()}"\nmodel = "{name}"\n{more}\n'


@contextlib.asynccontextmanager
async def open_prepared_service(deployment: Deployment) -> AsyncIterator[Service]:
    """Open a prepared service: its runs need no import, which takes seconds on a busy machine."""
    async with open_service(deployment) as service:
        await service.prepare()
        yield service


async def start_hanging_run(service: Service, agent: str) -> str:
    """Start a run in the session s1, wait until it hangs, and return its id."""
    port = user(service)
    request = RunRequest("x", session_id="s1", background=True)
    run_id = (await port.runs.create("agent", agent, request)).value["run_id"]
    live = await wait_for_live_run(service, run_id)
    reached = {
        "half": lambda: live.transcript.content == "one two three",
        "trickle": lambda: live.transcript.content,
        **dict.fromkeys(TOOLS, lambda: live.transcript.tools),
    }
    await wait_until(reached.get(agent, lambda: live.transcript.messages))
    return str(run_id)


async def read_record(port: ServiceOperations, run_id: str) -> dict[str, Any]:
    return dict((await port.runs.get(run_id)).value)


async def check_stops_late(port: ServiceOperations, before: dict[str, Any], tool: str) -> None:
    """Check that abandoned work continues until its release, and that only its stop is recorded."""
    assert (before["stopped_at"], before["late_result"]) == (None, None)
    assert before["holding"] == [tool]
    hanging_tools.opened.set()
    after: dict[str, Any] = {}

    async def stopped() -> bool:
        after.update(await read_record(port, before["run_id"]))
        return after["stopped_at"] is not None

    await wait_until(stopped)
    assert after["stopped_at"] > before["finished_at"]
    assert after["late_result"] == "dropped"
    assert {**after, "stopped_at": None, "late_result": None, "holding": [tool]} == before
    assert after["holding"] == []


async def check_session_continues(port: ServiceOperations, *roles: str) -> None:
    """Check that a later run of the session gets all messages and answers."""
    answer = (await port.runs.create("agent", "history", RunRequest("and?", "s1"))).value
    assert answer["status"] == "COMPLETED"
    told = [role for role, _ in json.loads(str(answer["content"]))]
    assert told == ["system", *roles, "user"]


async def cancel(port: ServiceOperations, agent: str, run_id: str) -> dict[str, Any]:
    """Cancel a run that hangs, and return its record."""
    request = CancelRequest("s1", wait=CANCEL_SECONDS, reason="enough")
    answer = (await port.runs.cancel("agent", agent, run_id, request)).value
    assert (answer["cancel"], answer["status"]) == ("stopped", "CANCELLED")
    assert answer["cancel_requested_by"] == "me"

    run = await read_record(port, run_id)
    stop = ("stopped_at", "holding")
    assert {name: run[name] for name in stop} == {name: answer[name] for name in stop}
    return run


@pytest.mark.parametrize("agent", MODELS)
async def test_run_whose_model_hangs_has_stopped_with_its_cancel(
    tmp_path: Path, model_endpoint: ModelEndpoint, agent: str
) -> None:
    deployment = create_hanging_deployment(tmp_path, model_endpoint)
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run_id = await start_hanging_run(service, agent)

        run = await cancel(port, agent, run_id)
        assert run["holding"] == []
        assert run["stopped_at"] == run["finished_at"] is not None
        assert run["late_result"] is None
        await asyncio.to_thread(model_endpoint.wait_for_open, 0)

        if agent in ANSWERING:
            assert run["content"].startswith(ANSWERING[agent])
            # Only the model `half` counts its tokens before it hangs.
            assert run["metrics"]["total_tokens"] == (8 if agent == "half" else 0)
            await check_session_continues(port, "user", "assistant")
        else:
            assert run["content"] == ""
            await check_session_continues(port, "user")


@pytest.mark.parametrize("agent", TOOLS)
async def test_run_whose_tool_hangs_is_final_in_time(
    tmp_path: Path, model_endpoint: ModelEndpoint, agent: str
) -> None:
    deployment = create_hanging_deployment(tmp_path, model_endpoint)
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run_id = await start_hanging_run(service, agent)

        run = await cancel(port, agent, run_id)
        assert run["content"] == ""
        assert run["metrics"]["total_tokens"] > 0
        assert [call["result"] for call in run["tools"]] == ["cancelled"]
        await check_session_continues(port, "user", "assistant", "tool")

        if agent in LEFT:
            await check_stops_late(port, await read_record(port, run_id), agent)
        else:
            assert run["holding"] == []
            assert run["stopped_at"] == run["finished_at"] is not None
            assert run["late_result"] is None


@pytest.mark.parametrize("agent", ["drip", "trickle", "blocked", "stubborn"])
async def test_run_exceeds_its_time_limit(
    tmp_path: Path, model_endpoint: ModelEndpoint, agent: str
) -> None:
    deployment = create_hanging_deployment(
        tmp_path, model_endpoint, f"[runs]\ntimeout_seconds = {RUN_SECONDS}\n"
    )
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run_id = await start_hanging_run(service, agent)
        await pass_time(RUN_SECONDS)
        run = await wait_for_run(port, run_id)
        assert run["status"] == "ERROR"
        assert run["error"]["code"] == "RUN_TIMEOUT"
        assert (run["content"] != "") is (agent == "trickle")
        if agent in LEFT:
            await check_stops_late(port, run, agent)
        else:
            assert run["stopped_at"] == run["finished_at"]


@pytest.mark.parametrize("agent", ["polite", "blocked", "stubborn"])
async def test_run_continues_after_a_tool_timeout(
    tmp_path: Path, model_endpoint: ModelEndpoint, agent: str
) -> None:
    deployment = create_hanging_deployment(
        tmp_path, model_endpoint, "[runs]\ntool_timeout_seconds = 0.1\n"
    )
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run = dict((await port.runs.create("agent", agent, RunRequest("x", "s1"))).value)
        assert run["status"] == "COMPLETED"
        assert run["content"] == f"The tool {agent} did not end within 0.1 seconds"
        if agent in LEFT:
            await check_stops_late(port, run, agent)
        else:
            assert (run["stopped_at"], run["late_result"]) == (run["finished_at"], None)


async def test_unstopped_work_is_recorded_for_the_member_run(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    async with open_prepared_service(
        create_hanging_deployment(tmp_path, model_endpoint)
    ) as service:
        port = user(service)
        request = RunRequest("x", session_id="s1", background=True)
        run_id = (await port.runs.create("team", "pair", request)).value["run_id"]
        member = await wait_for_running(port, component_id="blocked")
        live = await wait_for_live_run(service, member["run_id"])
        await wait_until(lambda: live.transcript.tools)
        await port.runs.cancel("team", "pair", run_id, CancelRequest("s1", wait=CANCEL_SECONDS))

        team = await read_record(port, run_id)
        # The work of a member is work of its team.
        assert (team["status"], team["stopped_at"], team["holding"]) == (
            "CANCELLED", None, ["blocked"],
        )  # fmt: skip
        await check_stops_late(port, await read_record(port, member["run_id"]), "blocked")
        await wait_until(lambda: _stopped(port, run_id))


@pytest.mark.parametrize("agent", LEFT)
async def test_closing_service_does_not_wait_for_hanging_work(
    tmp_path: Path, model_endpoint: ModelEndpoint, agent: str
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    deployment = create_hanging_deployment(tmp_path, model_endpoint)
    async with open_prepared_service(deployment) as service:
        run_id = await start_hanging_run(service, agent)
        live = service.hosting.engine.find_run(run_id)
        assert live is not None
    assert live.transcript.unstopped.pending, "the service closed before the work ended"
    hanging_tools.opened.set()
    await wait_until(lambda: not live.transcript.unstopped.pending)
    await asyncio.sleep(0)

    assert complaints == []
    async with open_service(deployment) as service:
        run = await read_record(user(service), run_id)
    assert (run["status"], run["stopped_at"]) == ("CANCELLED", None)


@contextlib.asynccontextmanager
async def lock_database(deployment: Deployment) -> AsyncIterator[None]:
    """Hold the write lock of the default database in another program."""
    holder = apsw.Connection(str(deployment.folder / "main.db"))
    holder.set_busy_timeout(5_000)
    try:
        await asyncio.to_thread(holder.execute, "BEGIN IMMEDIATE")
        yield
    finally:
        holder.close(True)


async def test_work_that_stops_before_the_end_is_stored_has_stopped_at(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAIT_MILLISECONDS", 20)
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(finish, "RETRY_SECONDS", (0.05,))
    deployment = create_hanging_deployment(
        tmp_path, model_endpoint, f"[runs]\ntimeout_seconds = {RUN_SECONDS}\n"
    )
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run_id = await start_hanging_run(service, "blocked")
        live = service.hosting.engine.find_run(run_id)
        assert live is not None
        async with lock_database(deployment):
            await pass_time(RUN_SECONDS)
            await wait_until(lambda: live.transcript.unstopped.pending)
            # The end waits for the lock; it records that the work continues.
            await wait_until(lambda: live.transcript.tools[0]["result"] == "cancelled")
            hanging_tools.opened.set()
            await wait_until(lambda: not live.transcript.unstopped.pending)
        run = await wait_for_run(port, run_id)
        await wait_until(lambda: _stopped(port, run_id))
        assert run["error"]["code"] == "RUN_TIMEOUT"


async def _stopped(port: ServiceOperations, run_id: str) -> bool:
    return (await read_record(port, run_id))["stopped_at"] is not None


async def read_last_run(port: ServiceOperations) -> dict[str, Any]:
    """Return the last run of the session s1, as the session and the list of sessions show it."""
    (listed,) = (await port.sessions.list(SessionFilter())).value["data"]
    head: Any = (await port.sessions.get("s1", view="summary")).value
    assert head["last_run"] == listed["last_run"]
    return dict(listed["last_run"] or {})


async def test_sessions_tell_a_stop_from_the_end_of_its_work(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = create_hanging_deployment(tmp_path, model_endpoint)
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run_id = await start_hanging_run(service, "blocked")
        live = await read_last_run(port)
        assert (live["run_id"], live["status"], live["finished_at"]) == (run_id, "RUNNING", None)
        assert live["phase"]["words"] == "running"

        run = await cancel(port, "blocked", run_id)
        held = await read_last_run(port)
        assert (held["phase"]["words"], held["phase"]["warning"]) == ("stopped", "work goes on")
        assert "tool blocked has not returned" in held["phase"]["sentence"]
        names = ("status", "cancel_requested_at", "finished_at", "stopped_at", "holding")
        assert {name: held[name] for name in names} == {name: run[name] for name in names}

        await check_stops_late(port, run, "blocked")
        freed = await read_last_run(port)
        assert (freed["phase"]["warning"], freed["holding"]) == ("", [])
        assert freed["stopped_at"] > freed["finished_at"]


async def test_run_is_listed_as_at_work_until_its_work_ends(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = create_hanging_deployment(tmp_path, model_endpoint)
    async with open_prepared_service(deployment) as service:
        port = user(service)
        run_id = await start_hanging_run(service, "blocked")
        run = await cancel(port, "blocked", run_id)
        at_work = (await port.runs.list(RunFilter(at_work=True))).value
        assert [each["run_id"] for each in at_work["data"]] == [run_id]
        assert at_work["meta"]["total_count"] == 1

        await check_stops_late(port, run, "blocked")
        assert (await port.runs.list(RunFilter(at_work=True))).value["data"] == []
        ended = RunFilter(finished_after=parse_rfc3339(str(run["finished_at"])))
        assert (await port.runs.list(ended)).value["meta"]["total_count"] == 1
