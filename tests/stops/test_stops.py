"""Everything that the code of a run starts is cancelled with it, or named until it has ended."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.stops.server import (
    FUNCTIONS,
    StopServer,
    cancel_run,
    check_each,
    find_processes,
    serve,
    start_run,
)

ENDING = ("task", "tree", "popen", "exec", "shells", "fork", "command-in-thread")
"""Forms of work that a cancel ends at once."""

GOING_ON = {
    "insisting": "task insist",
    "to-thread": "runner",
    "anyio": "runner",
    "in-pool": "runner",
    "process-pool": "runner",
    "submit": "runner",
    "warm-submit": "runner",
    "warm-process-submit": "runner",
    "process-submit": "runner",
    "thread": "thread beat",
    "deaf": "process sh",
}
"""Forms of work that go on after a cancel, with the begin of their name in the record."""

LATE = ("late-thread", "late-submit", "late-warm-submit")
"""Forms of work that a cleanup starts after the cancel."""

LIBRARIES = (
    "configured", "pydantic_ai", "langgraph", "langgraph_branches", "agno_agent",
    "agno_team_tool", "agno_nested_tool",
)  # fmt: skip
"""Components whose tools, branches or members start the work."""


async def test_cancel_ends_the_work_of_a_run(server: StopServer) -> None:
    async with server.connect() as operations:
        check = partial(server.check_cancel, operations)
        await check_each(check, [f"function {form}" for form in ENDING])


async def test_work_that_goes_on_is_named_until_it_has_ended(server: StopServer) -> None:
    async def check(form: str) -> None:
        run_id, tag = await start_run(operations, "function", form=form)
        await server.wait_for_work(tag)
        run = await cancel_run(operations, "function", run_id)
        assert (run["status"], run["stopped_at"]) == ("CANCELLED", None)
        assert any(name.startswith(GOING_ON[form]) for name in run["holding"]), run["holding"]
        server.end_work(tag)
        await server.check_stop(operations, run_id, tag)

    async with server.connect() as operations:
        await check_each(check, GOING_ON)


async def test_member_of_a_library_works_as_long_as_its_run(server: StopServer) -> None:
    async with server.connect() as operations:
        run_id, tag = await start_run(operations, "agno_team_tool", form="to-thread")
        await server.wait_for_work(tag)
        run = await cancel_run(operations, "agno_team_tool", run_id)
        [member] = run["member_runs"]
        record = (await operations.runs.get(member)).value
        assert (record["status"], record["stopped_at"]) == ("CANCELLED", None)
        assert record["holding"]
        server.end_work(tag)
        await server.check_stop(operations, member, tag)
        await server.check_stop(operations, run_id, tag)


async def test_work_that_starts_after_a_cancel_is_named_until_it_has_ended(
    server: StopServer,
) -> None:
    async def check(form: str) -> None:
        run_id, tag = await start_run(operations, "function", form=form)
        await server.wait_for_work(tag)
        await cancel_run(operations, "function", run_id)
        await wait_until(lambda: len(server.read_beats(tag)) > 5)
        server.end_work(tag)
        await server.check_stop(operations, run_id, tag)

    async with server.connect() as operations:
        await check_each(check, LATE)


async def test_process_that_a_thread_starts_during_the_cancel_is_ended(server: StopServer) -> None:
    # Not next to forks: `Popen` waits for each process that has a copy of its pipe.
    async with server.connect() as operations:
        await server.check_cancel(operations, "function slow-popen")


@pytest.mark.parametrize("form", ["spawning", "deaf-spawning"])
async def test_processes_that_a_process_starts_during_the_cancel_are_ended(
    server: StopServer, form: str
) -> None:
    async def check(number: str) -> None:
        run_id, tag = await start_run(operations, "function", form=form)
        await server.wait_for_work(tag)
        await asyncio.sleep(int(number) / 100)
        await cancel_run(operations, "function", run_id)
        await server.wait_for_stop(operations, run_id)
        assert find_processes(tag) == []

    async with server.connect() as operations:
        await check_each(check, "01234")


async def test_work_that_a_completed_run_leaves_is_named(server: StopServer) -> None:
    async def check(form: str) -> None:
        run_id, tag = await start_run(operations, "function", form=form, leave=True)

        async def has_completed() -> bool:
            return bool((await operations.runs.get(run_id)).value["status"] == "COMPLETED")

        await wait_until(has_completed)
        run = (await operations.runs.get(run_id)).value
        assert (run["content"], run["stopped_at"]) == ("started", None)
        assert run["holding"]
        # It is not cancelled.
        known = len(server.read_beats(tag))
        await wait_until(lambda: len(server.read_beats(tag)) > known + 5)
        server.end_work(tag)
        await server.check_stop(operations, run_id, tag)

    async with server.connect() as operations:
        await check_each(check, ENDING)
        # Not next to the command in a thread: the worker of a pool, which does not end, may have a
        # copy of the pipe on which `Popen` waits.
        await check_each(check, GOING_ON)


async def test_thread_of_another_run_is_not_named(server: StopServer) -> None:
    async with server.connect() as operations:
        plain, plain_tag = await start_run(operations, "function", form="nothing", leave=True)
        await server.wait_for_work(plain_tag)
        owner, tag = await start_run(operations, "function", form="thread")
        await server.wait_for_work(tag)
        named = await cancel_run(operations, "function", owner)
        assert (named["stopped_at"], named["holding"]) == (None, ["thread beat"])
        server.end_work(plain_tag)
        run = await server.wait_for_stop(operations, plain)
        server.end_work(tag)
        assert (run["status"], run["stopped_at"]) == ("COMPLETED", run["finished_at"])


async def test_work_outside_of_a_run_is_not_cancelled(server: StopServer) -> None:
    async with server.connect() as operations:
        run_id, tag = await start_run(operations, "function", form="shared")
        await server.wait_for_work(tag)
        await cancel_run(operations, "function", run_id)
        run = await server.wait_for_stop(operations, run_id)
        assert (run["status"], run["holding"]) == ("CANCELLED", [])
        before = len(server.read_beats(tag))
        await wait_until(lambda: len(server.read_beats(tag)) > before)
        server.end_work(tag)


async def test_cancel_ends_queues_commands_tools_and_members(
    server: StopServer, model_endpoint: ModelEndpoint
) -> None:
    cases = [f"{component} {form}" for component in LIBRARIES for form in ("task", "exec")]
    async with server.connect() as operations:
        check = partial(server.check_cancel, operations)
        await check_each(check, ["generator", "synchronous", "command", *cases])
    model_endpoint.wait_for_open(0)


@pytest.mark.parametrize("component", ["agno_team_hang", "agno_nested_hang"])
async def test_cancel_closes_the_model_call_of_a_member(
    server: StopServer, model_endpoint: ModelEndpoint, component: str
) -> None:
    async with server.connect() as operations:
        await server.check_model_call(operations, model_endpoint, component)


async def test_cancelled_member_calls_no_model_and_no_tool(
    server: StopServer, model_endpoint: ModelEndpoint
) -> None:
    async with server.connect() as operations:
        run_id, tag = await start_run(operations, "agno_team_again")
        await server.wait_for_work(tag)
        await cancel_run(operations, "agno_team_again", run_id)
        run = await server.check_stop(operations, run_id, tag)
        calls = len(model_endpoint.requests("again:touch"))
        await asyncio.sleep(0.5)
        server.check_silence(run, tag)
    assert len(model_endpoint.requests("again:touch")) == calls


async def test_time_limits_and_the_end_of_the_server_end_work(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    async def check(form: str) -> None:
        run_id, tag = await start_run(operations, "function", form=form)
        run = await server.check_stop(operations, run_id, tag)
        assert (run["status"], run["error"]["code"]) == ("ERROR", "RUN_TIMEOUT")
        assert server.read_beats(tag)

    async def check_tool(component: str) -> None:
        run_id, tag = await start_run(operations, component)
        run = await server.check_stop(operations, run_id, tag)
        assert (run["status"], run["holding"]) == ("COMPLETED", [])
        assert "did not end within" in run["content"]

    limits = "\n[runs]\ntimeout_seconds = 3\ntool_timeout_seconds = 1\n"
    with serve(tmp_path, model_endpoint, [FUNCTIONS], limits) as server:
        async with server.connect() as operations:
            await asyncio.gather(
                check_each(check, ["task", "exec"]), check_each(check_tool, ["command"])
            )
            tags = []
            for form in ("exec", "deaf", "task"):
                _, tag = await start_run(operations, "function", form=form, leave=True)
                tags.append(tag)
                await server.wait_for_work(tag)
        assert server.process.stop(signal.SIGTERM) == 0
        lengths = [len(server.read_beats(tag)) for tag in tags]
        await asyncio.sleep(0.3)
        assert [len(server.read_beats(tag)) for tag in tags] == lengths
        # Forked processes have the command line of the server.
        await wait_until(lambda: not find_processes(str(tmp_path)))
