"""The end of a process whose tools leave work that cannot be stopped."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deploy, Deployment
from tests.kit.process import (
    ServerProcess,
    base_environment,
    serve_config,
    start_agentctl,
    start_at_terminal,
)
from tests.server.database_checks import open_read_only

TOOLS = '''
import asyncio
import pathlib
import threading
import time

import pydantic


async def ignore_cancels():
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            await asyncio.sleep(0)


def began(name):
    (pathlib.Path(__file__).parent / f"began-{name}").touch()


async def swallow() -> str:
    """Ignore every cancel."""
    began("swallow")
    await ignore_cancels()
    return ""


async def own_task() -> str:
    """Wait for a task that ignores every cancel."""
    began("own_task")
    await asyncio.create_task(ignore_cancels())
    return ""


async def executor() -> str:
    """Occupy every thread of the executor of the event loop."""
    loop = asyncio.get_running_loop()
    calls = [loop.run_in_executor(None, time.sleep, 600) for _ in range(64)]
    began("executor")
    await asyncio.gather(*calls)
    return ""


def thread() -> str:
    """Start a thread that Python joins at its exit, and wait for it."""
    started = threading.Thread(target=time.sleep, args=(600,))
    started.start()
    began("thread")
    started.join()
    return ""


def native() -> str:
    """Wait in Python code that native code calls."""
    began("native")
    return pydantic.validate_call(poll)()


def poll() -> str:
    while True:
        time.sleep(0.001)


async def leave() -> str:
    """Start a task that ends Python, and wait for it."""
    task = asyncio.create_task(exit_python())
    await asyncio.wait({task})
    return f"a task raised {type(task.exception()).__name__}"


async def interrupted(message):
    """An agent with a task that raises what Ctrl-C raises."""
    await asyncio.create_task(interrupt())


async def interrupt():
    raise KeyboardInterrupt


async def cancel_all() -> str:
    """Cancel every task of the event loop."""
    began("cancel_all")
    for task in asyncio.all_tasks():
        task.cancel()
    return ""


async def stop_loop() -> str:
    """Stop the event loop of the server."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "stopped"


async def speak() -> str:
    """Print a line."""
    print("a line", flush=True)
    return "said"


async def exit_python():
    raise SystemExit(3)
'''

NAMES = ("swallow", "own_task", "thread", "executor")


INTERRUPTED = '[[agents]]\nid = "interrupted"\nobject = "leftover:interrupted"\n'


def agents(model_url: str) -> str:
    """Return the tables of an agent for each tool, and of one in code."""
    return INTERRUPTED + "".join(
        f'[[models]]\nid = "call-{name}"\nprovider = "openai"\nmodel = "tool:{name}"\n'
        f'base_url = "{model_url}"\n'
        f'[[agents]]\nid = "call-{name}"\nmodel = "call-{name}"\ntools = ["leftover:{name}"]\n'
        for name in (*NAMES, "leave", "cancel_all", "native", "stop_loop", "speak")
    )


def leave(deploy: Deploy) -> Deployment:
    """Create a configuration with agents whose tools cannot be stopped."""
    return deploy(agents(deploy.url), files={"leftover.py": TOOLS})


@dataclass(frozen=True)
class LeavingServer:
    """A server with one process whose tools leave work."""

    deployment: Deployment

    served: ServerProcess

    terminal: int
    """The other end of its stdout. It is not its controlling terminal: no signal reports its end.
    """


@pytest.fixture(scope="module")
def leaving(deploy: Deploy) -> Iterator[LeavingServer]:
    """A shared server, which the last test stops."""
    deployment = leave(deploy)
    log = deployment.folder / "server.log"
    terminal, inner = pty.openpty()
    with log.open("wb") as stderr:
        process = start_agentctl(
            *("serve", "--config", str(deployment.path), "--port", "0"),
            cwd=deployment.folder,
            env=base_environment(),
            stdout=inner,
            stderr=stderr,
            start_new_session=True,
        )
    os.close(inner)
    try:
        listens = wait_for(lambda: re.search(r"listens on (http://[^\s,]+),", log.read_text()))
        yield LeavingServer(deployment, ServerProcess(listens[1], process, log), terminal)
    finally:
        process.kill()
        process.wait()


def has_begun(deployment: Deployment, *names: str) -> bool:
    return all((deployment.folder / f"began-{name}").exists() for name in names)


def statuses(deployment: Deployment) -> list[str]:
    with open_read_only(deployment.folder / "main.db") as connection:
        rows = connection.execute("SELECT status FROM runs ORDER BY status").fetchall()
    return [status for (status,) in rows]


@pytest.mark.parametrize(
    ("tool", "result", "said"),
    [
        ("leave", "a task raised SystemExit", "raised SystemExit"),
        ("stop_loop", "stopped", "a tool stopped the event loop"),
    ],
)
def test_tool_that_ends_the_event_loop_ends_only_its_call(
    leaving: LeavingServer, tool: str, result: str, said: str
) -> None:
    with leaving.deployment.client(leaving.served.url) as client:
        for _ in range(2):
            run = start_run(client, tool)
            assert (run["status"], run["content"]) == ("COMPLETED", result)
    assert said in leaving.served.log_text


def test_interrupt_in_code_of_an_agent_ends_only_its_run(leaving: LeavingServer) -> None:
    """`test_interrupting_code.py` has agents of libraries."""
    with leaving.deployment.client(leaving.served.url) as client:
        body = {"message": "hello", "stream": False}
        for _ in range(2):
            run = client.post("/agents/interrupted/runs", json=body).json()
            assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
        assert client.post("/agents/echo/runs", json=body).json()["status"] == "COMPLETED"
    assert leaving.served.process.poll() is None


def start_run(client: httpx2.Client, tool: str) -> dict[str, Any]:
    """Run the agent of a tool; return its record."""
    body = {"message": "{}", "stream": False}
    record: dict[str, Any] = client.post(f"/agents/call-{tool}/runs", json=body).json()
    return record


def test_closed_terminal_does_not_fail_a_tool_that_prints(leaving: LeavingServer) -> None:
    with leaving.deployment.client(leaving.served.url) as client:
        assert start_run(client, "speak")["content"] == "said"
        assert b"a line" in os.read(leaving.terminal, 4096)
        os.close(leaving.terminal)
        run = start_run(client, "speak")
    assert (run["status"], run["content"]) == ("COMPLETED", "said")


def test_thread_in_native_code_does_not_abort_the_process(leaving: LeavingServer) -> None:
    with leaving.deployment.client(leaving.served.url) as client:
        start_in_background(client, "native")
        wait_for(lambda: has_begun(leaving.deployment, "native"))
        assert leaving.served.stop() == 0, leaving.served.log_text


def start_in_background(client: httpx2.Client, tool: str) -> None:
    """Start a run of the agent of a tool."""
    body = {"message": "{}", "background": True, "stream": False}
    answer = client.post(f"/agents/call-{tool}/runs", json=body)
    assert answer.status_code == 202


def test_signal_ends_a_server_with_work_that_ignores_its_cancel(deploy: Deploy) -> None:
    deployment = leave(deploy)
    with serve_config(deployment.path, "--workers", "2") as served:
        with deployment.client(served.url) as client:
            for name in NAMES:
                start_in_background(client, name)
                wait_for(lambda name=name: has_begun(deployment, name))  # type: ignore[misc]
            served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0, served.log_text
    assert statuses(deployment) == ["CANCELLED"] * len(NAMES)
    assert "Traceback" not in served.log_text
    assert "Task was destroyed" not in served.log_text


def test_tool_that_cancels_every_task_ends_the_server_in_order(deploy: Deploy) -> None:
    deployment = leave(deploy)
    with serve_config(deployment.path) as served:
        with deployment.client(served.url) as client:
            body = {"message": "{}", "background": True, "stream": False}
            assert client.post("/agents/hang/runs", json=body).status_code == 202
            # Its client waits, and has not cancelled the run.
            with contextlib.suppress(httpx2.HTTPError):
                client.post("/agents/call-cancel_all/runs", json={"message": "{}", "stream": False})
        assert served.process.wait(PATIENCE) == 1
    assert set(statuses(deployment)) <= {"ERROR", "CANCELLED"}
    with open_read_only(deployment.folder / "main.db") as connection:
        rows = connection.execute("SELECT cancel_requested_by FROM runs").fetchall()
    assert {actor for (actor,) in rows} <= {None, "system:shutdown"}
    assert "error: a tool cancelled the tasks of the server" in served.log_text


def test_closed_terminal_stops_the_server_in_order(deploy: Deploy) -> None:
    deployment = leave(deploy)
    # Without PYTHONUNBUFFERED, as at a user's terminal: Python writes buffered text at its exit.
    environment = base_environment()
    terminal, inner = pty.openpty()
    options = ("--config", str(deployment.path), "--port", "0", "--workers", "2")
    process = start_at_terminal(inner, "serve", *options, env=environment, cwd=deployment.folder)
    try:
        url = read_url(terminal)
        os.close(inner)
        with deployment.client(url) as client:
            body = {"message": "{}", "background": True, "stream": False}
            assert client.post("/agents/hang/runs", json=body).status_code == 202
            os.close(terminal)
            assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert statuses(deployment) == ["CANCELLED"]


def read_url(terminal: int) -> str:
    """Return the URL of a server that writes to a terminal."""
    said = b""
    while not (found := re.search(rb"listens on (http://[^\s,]+),", said)):
        said += os.read(terminal, 4096)
    return found[1].decode()


@pytest.mark.parametrize(
    ("name", "number"), [("swallow", signal.SIGINT), ("thread", signal.SIGTERM)]
)
def test_signal_ends_a_local_run_whose_work_ignores_its_cancel(
    deploy: Deploy, name: str, number: signal.Signals
) -> None:
    leaving = leave(deploy)
    with start_agentctl(
        *("runs", "start", "--agent", f"call-{name}", "-m", "{}", "--config", str(leaving.path)),
        env=base_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            wait_for(lambda: has_begun(leaving, name))
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert said.decode().splitlines()[-1].endswith(" is CANCELLED")
    assert statuses(leaving) == ["CANCELLED"]
