"""Tools of a stdio server: calls, results, and a server that misbehaves."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agentctl.config.settings import Limits
from agentctl.runtime.mcp import actions, connection, stdio
from tests.kit.clock import pass_time
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.fake_context import FakeContext
from tests.kit.model import ModelEndpoint
from tests.mcp.hosting import SERVER, host, stdio_spec


def is_running(pid: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"


async def test_agent_calls_the_tools_of_a_server(model_endpoint: ModelEndpoint) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{
        "id": "c1", "type": "function",
        "function": {"name": "files_echo", "arguments": '{"text": "hello"}'},
    }]}  # fmt: skip
    async with host(stdio_spec(), endpoint=model_endpoint) as hosted:
        context = FakeContext(hosted.catalog)
        await context.execute("agent", "writer", json.dumps(call), [])
    assert [(tool["tool_name"], tool["result"]) for tool in context.transcript.tools] == [
        ("files_echo", "hello")
    ]


async def test_named_tools_are_the_only_ones() -> None:
    references = ("mcp:files.echo", "mcp:files.pid")
    async with host(stdio_spec(), references=references) as hosted:
        assert sorted(await hosted.names()) == ["files_echo", "files_pid"]


async def test_allow_tools_limits_the_tools_of_a_server() -> None:
    async with host(stdio_spec(allow_tools=("h*", "pid"))) as hosted:
        assert sorted(await hosted.names()) == ["files_hang", "files_huge", "files_pid"]


async def test_parts_that_are_not_text_are_named_with_type_and_size() -> None:
    async with host(stdio_spec()) as hosted:
        assert await hosted.text("parts") == (
            "first\n[image image/png, 3 bytes, not shown]\n[resource file:///a: a]\n"
            "[resource file:///b]\ninside\n[resource file:///c: data, 2 bytes, not shown]"
        )
        assert await hosted.text("structured") == '{"answer":42}'


async def test_failed_tool_is_a_failed_call_with_the_text_of_the_server() -> None:
    async with host(stdio_spec()) as hosted:
        assert await hosted.call("fail") == ("the disk is full", True)
        await hosted.text("grow", name="ghost")
        await wait_until(lambda: "ghost" in str(hosted.server.listed))
        assert await hosted.call("ghost") == (
            "The tool files_ghost failed: Unknown tool: ghost",
            True,
        )


async def test_result_is_limited_and_a_longer_message_fails_only_its_call() -> None:
    limits = Limits(tool_result_bytes=10_000)
    async with host(stdio_spec(), limits=limits) as hosted:
        assert len(await hosted.text("huge", bytes=20_000)) == 10_000
        pid = await hosted.text("pid")
        text, failed = await hosted.call("huge", bytes=9_000_000)
        assert (text, failed) == (
            "The tool files_huge failed: the result has over 40_000 bytes",
            True,
        )
        assert await hosted.text("pid") == pid


async def test_message_has_a_maximum_also_where_results_may_be_larger() -> None:
    async with host(stdio_spec(), limits=Limits(tool_result_bytes=4_000_000)) as hosted:
        assert await hosted.call("huge", bytes=8_500_000) == (
            "The tool files_huge failed: the result has over 8_388_608 bytes",
            True,
        )


async def test_other_text_on_stdout_is_logged_once_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with host(stdio_spec("--noisy")) as hosted:
        assert await hosted.text("noise") == "after the noise"
    noise = [record.getMessage() for record in caplog.records if "other text" in record.msg]
    assert len(noise) == 1
    assert "Welcome to the test server!" in noise[0]


async def test_changed_tools_are_listed_again() -> None:
    async with host(stdio_spec()) as hosted:
        before = await hosted.names()
        await hosted.text("grow", name="fresh")

        async def is_listed() -> bool:
            return "files_fresh" in await hosted.names()

        await wait_until(is_listed)
        assert await hosted.names() == [*before, "files_fresh"]


async def test_crash_fails_the_call_and_the_server_is_started_again() -> None:
    async with host(stdio_spec()) as hosted:
        pid = await hosted.text("pid")
        hanging, _ = hosted.start_call("hang")
        assert await hosted.call("crash") == (
            "The MCP server files is not available: its program ended with code 3",
            True,
        )
        assert (await hosted.call_result(hanging))[1]
        # The next call waits for the new program instead of a failure.
        assert await hosted.text("pid") != pid
        assert hosted.server.counters.connections == 2


async def test_reason_of_an_end_is_known_though_it_arrives_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the messages and its reason come through two channels."""

    class LateReports(stdio.RunningProgram):
        asked = asyncio.Event()

        async def wait_for_reason(self) -> None:
            self.asked.set()
            await super().wait_for_reason()

        async def _read_reports(self, reports: socket.socket) -> None:
            await self.asked.wait()
            await super()._read_reports(reports)

    monkeypatch.setattr(connection, "RunningProgram", LateReports)
    async with host(stdio_spec()) as hosted:
        text, failed = await hosted.call("crash")
        assert failed
        assert text.endswith("its program ended with code 3")


async def test_killed_program_is_replaced() -> None:
    async with host(stdio_spec()) as hosted:
        os.kill(int(await hosted.text("pid")), signal.SIGKILL)
        await wait_until(lambda: hosted.server.counters.failures == 1)
        assert "SIGKILL" in str(hosted.server.problem)
        assert await hosted.text("echo", text="again") == "again"
        assert hosted.server.problem is None


async def test_program_gets_few_variables_and_the_configured_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_AGENTCTL", "hidden")
    monkeypatch.setenv("FILES_TOKEN", "token-of-files")
    env = {"GIVEN": "plain", "TOKEN": "a-${env:FILES_TOKEN}"}
    async with host(stdio_spec(env=env)) as hosted:
        assert await hosted.text("variable", name="GIVEN") == "plain"
        assert await hosted.text("variable", name="TOKEN") == "a-token-of-files"
        assert await hosted.text("variable", name="SECRET_OF_AGENTCTL") == "not set"
        assert await hosted.text("variable", name="PATH") == os.environ["PATH"]


async def test_missing_variable_makes_the_server_unavailable() -> None:
    async with host(stdio_spec(env={"TOKEN": "${env:NOT_SET_HERE}"})) as hosted:
        await hosted.wait_for_state("failed")
        assert hosted.server.problem == "the environment variable NOT_SET_HERE is not set"


async def test_stderr_goes_to_the_log_without_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "agentctl.mcp")
    monkeypatch.setenv("FILES_TOKEN", "token-of-files")
    async with host(stdio_spec(env={"TOKEN": "${env:FILES_TOKEN}"})) as hosted:
        await hosted.text("log", text="using token-of-files\x1b[2J")
        await wait_until(lambda: "using" in caplog.text)
    assert "mcp server files: stderr: using ********\\x1b[2J" in caplog.messages


async def test_missing_program_is_reported_and_named_tools_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = stdio_spec()
    spec = type(spec)("files", command="no-such-program")
    async with host(spec, references=("mcp:files", "mcp:files.echo")) as hosted:
        assert await hosted.names() == []
    async with host(spec, references=("mcp:files.echo",)) as hosted:
        assert await hosted.names() == ["files_echo"]
        assert await hosted.call("echo") == (
            "The MCP server files is not available: there is no program no-such-program",
            True,
        )
    assert "mcp server files is not available: there is no program no-such-program" in caplog.text


async def test_cached_tools_stay_while_the_server_is_down(tmp_path: Path) -> None:
    gate = tmp_path / "server.py"
    gate.write_text(SERVER.read_text())
    async with host(replace(stdio_spec(), args=(str(gate),))) as hosted:
        before = await hosted.names()
        gate.unlink()
        await hosted.call("crash")
        await hosted.wait_for_state("failed")
        assert await hosted.names() == before
        assert (await hosted.call("echo"))[1]


async def test_silent_server_is_given_up_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.3)
    async with host(stdio_spec("--silent")) as hosted:
        await hosted.wait_for_state("failed")
        assert hosted.server.problem == "it did not answer within 0.3 seconds"


async def test_call_has_a_time_limit_and_notifies_the_server() -> None:
    async with host(stdio_spec(call_seconds=4)) as hosted:
        assert await hosted.call("hang") == (
            "The tool files_hang did not end within 4 seconds",
            True,
        )
        assert (await hosted.received()).count("notifications/cancelled") == 1


async def test_cancel_is_forwarded_and_known_as_stopped_after_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actions, "STOP_SECONDS", 10 * PATIENCE)
    async with host(stdio_spec()) as hosted:
        context = await hosted.cancel_call("hang")
        stopped: list[bool] = []
        context.transcript.unstopped.notify_when_empty(stopped.append)
        assert context.transcript.unstopped.names == ["files_hang"]
        assert "notifications/cancelled" in await hosted.received()
        await pass_time(10 * PATIENCE)
        await wait_until(lambda: stopped)
        assert stopped == [False]


async def test_late_result_of_a_cancelled_call_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "STOP_SECONDS", 60.0)
    async with host(stdio_spec()) as hosted:
        context = await hosted.cancel_call("stubborn", seconds=2)
        stopped: list[bool] = []
        context.transcript.unstopped.notify_when_empty(stopped.append)
        await wait_until(lambda: stopped)
        assert stopped == [True]


async def test_end_of_the_server_stops_a_cancelled_call() -> None:
    async with host(stdio_spec()) as hosted:
        context = await hosted.cancel_call("stubborn", seconds=600)
        assert context.transcript.unstopped.pending
        await hosted.call("crash")
        await wait_until(lambda: not context.transcript.unstopped.pending)


async def test_close_ends_the_program_and_its_children() -> None:
    async with host(stdio_spec()) as hosted:
        pids = [int(await hosted.text(name)) for name in ("pid", "child")]
        assert all(map(is_running, pids))
    await wait_until(lambda: not any(map(is_running, pids)))


async def test_close_kills_a_program_that_ignores_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "EXIT_SECONDS", 0.2)
    async with host(stdio_spec("--stubborn")) as hosted:
        pids = [int(await hosted.text(name)) for name in ("pid", "child")]
    await wait_until(lambda: not any(map(is_running, pids)))


async def test_program_that_reads_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "WRITE_SECONDS", 0.3)
    async with host(stdio_spec(call_seconds=30)) as hosted:
        assert await hosted.text("block") == "blocked"
        # More than a pipe holds.
        text, failed = await hosted.call("echo", text="x" * 300_000)
        assert failed
        assert text.endswith("its program read nothing for 0.3 seconds")
        assert await hosted.text("echo", text="again") == "again"


async def test_close_leaves_no_task_and_no_file_descriptor() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()  # Earlier tests may have left files that a collection closes.
    before = descriptors()
    async with host(stdio_spec()) as hosted:
        await hosted.text("echo", text="x")
        await hosted.cancel_call("hang")
        assert descriptors() > before
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)
    await wait_until(lambda: descriptors() == before)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("deep", ("The tool files_raw failed: the result is not a readable message", True)),
        ("values", ("The tool files_raw failed: the result has too many values", True)),
        ("surrogate", ("a\ufffdb", False)),
    ],
)
async def test_result_that_the_library_refuses_ends_its_call(
    name: str, result: tuple[str, bool]
) -> None:
    async with host(stdio_spec()) as hosted:
        pid = await hosted.text("pid")
        assert await asyncio.wait_for(hosted.call("raw", name=name), PATIENCE) == result
        assert await hosted.text("pid") == pid


@pytest.mark.parametrize("pipe", [1, 2], ids=["stdout", "stderr"])
async def test_flood_of_lines_leaves_turns_to_other_runs(
    pipe: int, caplog: pytest.LogCaptureFixture
) -> None:
    """decision 75."""
    caplog.set_level(logging.INFO, "agentctl.mcp")
    async with host(stdio_spec(call_seconds=60)) as hosted:
        asked = time.monotonic()
        await hosted.text("flood", to=pipe)
        began = time.monotonic()
        used = time.thread_time()
        await asyncio.sleep(1)
        share = (time.thread_time() - used) / (time.monotonic() - began)
    seconds = time.monotonic() - asked
    assert share < 0.5, "most of the time is left to other work"
    logged = [record for record in caplog.records if "stderr:" in record.msg]
    assert len(logged) <= (seconds + 2) * stdio.LOGGED_LINES
