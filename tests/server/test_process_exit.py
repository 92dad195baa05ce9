"""The end of a process whose tools leave work that cannot be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
from functools import partial

import httpx2
import pytest

from tests.kit.conditions import PATIENCE, wait_for, wait_until
from tests.kit.deployment import Deploy, Deployment
from tests.kit.process import base_environment, serve_config, start_agentctl, start_at_terminal
from tests.server.concurrent_callers import open_client
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


def agents(model_url: str) -> str:
    """Return the tables of one agent for each tool."""
    return "".join(
        f'[[models]]\nid = "call-{name}"\nprovider = "openai"\nmodel = "tool:{name}"\n'
        f'base_url = "{model_url}"\n'
        f'[[agents]]\nid = "call-{name}"\nmodel = "call-{name}"\ntools = ["leftover:{name}"]\n'
        for name in (*NAMES, "leave", "cancel_all", "native", "stop_loop", "speak")
    )


def leave(deploy: Deploy) -> Deployment:
    """Create a configuration with agents whose tools cannot be stopped."""
    return deploy(agents(deploy.url), files={"leftover.py": TOOLS})


@pytest.fixture
def leaving(deploy: Deploy) -> Deployment:
    """A configuration with agents whose tools cannot be stopped."""
    return leave(deploy)


def has_begun(deployment: Deployment, *names: str) -> bool:
    return all((deployment.folder / f"began-{name}").exists() for name in names)


def statuses(deployment: Deployment) -> list[str]:
    with open_read_only(deployment.folder / "main.db") as connection:
        rows = connection.execute("SELECT status FROM runs ORDER BY status").fetchall()
    return [status for (status,) in rows]


async def test_signal_ends_a_server_with_work_that_ignores_its_cancel(deploy: Deploy) -> None:
    # At the same time: each waits for the work for a second.
    await asyncio.gather(*(check_signal(leave(deploy), workers) for workers in (1, 2)))


async def check_signal(leaving: Deployment, workers: int) -> None:
    with serve_config(leaving.path, "--workers", str(workers)) as served:
        async with open_client(leaving, served.url) as client:
            for name in NAMES:
                body = {"message": "{}", "background": True, "stream": False}
                answer = await client.post(f"/agents/call-{name}/runs", json=body)
                assert answer.status_code == 202
                await wait_until(partial(has_begun, leaving, name))
            served.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(served.process.wait, PATIENCE) == 0, served.log_text
    assert statuses(leaving) == ["CANCELLED"] * len(NAMES)
    assert "Traceback" not in served.log_text
    assert "Task was destroyed" not in served.log_text


async def test_thread_in_native_code_does_not_abort_the_process(leaving: Deployment) -> None:
    with serve_config(leaving.path) as served:
        async with open_client(leaving, served.url) as client:
            body = {"message": "{}", "background": True, "stream": False}
            answer = await client.post("/agents/call-native/runs", json=body)
            assert answer.status_code == 202
            await wait_until(partial(has_begun, leaving, "native"))
            served.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(served.process.wait, PATIENCE) == 0, served.log_text


async def test_task_that_raises_system_exit_does_not_end_the_server(leaving: Deployment) -> None:
    with serve_config(leaving.path) as served:
        async with open_client(leaving, served.url) as client:
            for _ in range(2):
                body = {"message": "{}", "stream": False}
                run = (await client.post("/agents/call-leave/runs", json=body)).json()
                assert (run["status"], run["content"]) == ("COMPLETED", "a task raised SystemExit")
    assert "raised SystemExit" in served.log_text


async def test_loop_that_a_tool_stops_continues(leaving: Deployment) -> None:
    with serve_config(leaving.path) as served:
        async with open_client(leaving, served.url) as client:
            for _ in range(2):
                body = {"message": "{}", "stream": False}
                run = (await client.post("/agents/call-stop_loop/runs", json=body)).json()
                assert (run["status"], run["content"]) == ("COMPLETED", "stopped")
    assert "a tool stopped the event loop" in served.log_text


@pytest.mark.parametrize("background", [True, False])
async def test_tool_that_cancels_every_task_ends_the_server_in_order(
    leaving: Deployment, background: bool
) -> None:
    with serve_config(leaving.path) as served:
        async with open_client(leaving, served.url) as client:
            body = {"message": "{}", "background": True, "stream": False}
            answer = await client.post("/agents/hang/runs", json=body)
            assert answer.status_code == 202
            # A client that waits has not cancelled the run.
            body = {"message": "{}", "background": background, "stream": False}
            with contextlib.suppress(httpx2.HTTPError):
                await client.post("/agents/call-cancel_all/runs", json=body)
            assert await asyncio.to_thread(served.process.wait, PATIENCE) == 1
    assert set(statuses(leaving)) <= {"ERROR", "CANCELLED"}
    with open_read_only(leaving.folder / "main.db") as connection:
        rows = connection.execute("SELECT cancel_requested_by FROM runs").fetchall()
    assert {actor for (actor,) in rows} <= {None, "system:shutdown"}
    assert "error: a tool cancelled the tasks of the server" in served.log_text
    assert not background or "Traceback" not in served.log_text


async def test_closed_terminal_stops_the_server_in_order(deploy: Deploy) -> None:
    await asyncio.gather(*(close_terminal(leave(deploy), workers) for workers in (1, 2)))


async def close_terminal(leaving: Deployment, workers: int) -> None:
    """Close the terminal of a server, and check its end."""
    # Without PYTHONUNBUFFERED, as at a user's terminal: Python writes buffered text at its exit.
    environment = base_environment()
    terminal, inner = pty.openpty()
    options = ("--config", str(leaving.path), "--port", "0", "--workers", str(workers))
    try:
        process = start_at_terminal(inner, "serve", *options, env=environment, cwd=leaving.folder)
        url = await asyncio.to_thread(read_url, terminal)
        os.close(inner)
        async with open_client(leaving, url) as client:
            body = {"message": "{}", "background": True, "stream": False}
            answer = await client.post("/agents/hang/runs", json=body)
            assert answer.status_code == 202
            os.close(terminal)
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert statuses(leaving) == ["CANCELLED"]


async def test_closed_terminal_does_not_fail_a_tool_that_prints(leaving: Deployment) -> None:
    terminal, inner = pty.openpty()
    options = ("--config", str(leaving.path), "--port", "0")
    try:
        process = start_agentctl(
            *("serve", *options),
            cwd=leaving.folder,
            env=base_environment(),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        url = await asyncio.to_thread(read_url, terminal)
        # It is not the controlling terminal of the server: no signal reports its end.
        os.close(terminal)
        async with open_client(leaving, url) as client:
            body = {"message": "{}", "stream": False}
            run = (await client.post("/agents/call-speak/runs", json=body)).json()
            assert (run["status"], run["content"]) == ("COMPLETED", "said")
        process.terminate()
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def read_url(terminal: int) -> str:
    """Return the URL of a server that writes to a terminal."""
    said = b""
    while not (found := re.search(rb"listens on (http://[^\s,]+),", said)):
        said += os.read(terminal, 4096)
    return found[1].decode()


async def test_signal_ends_a_local_run_whose_work_ignores_its_cancel(deploy: Deploy) -> None:
    ends = {"swallow": signal.SIGINT, "executor": signal.SIGTERM, "thread": signal.SIGINT}
    # At the same time: each waits for its work for a second.
    checks = [
        asyncio.to_thread(check_local_run, leave(deploy), name, number)
        for name, number in ends.items()
    ]
    await asyncio.gather(*checks)


def check_local_run(leaving: Deployment, name: str, number: signal.Signals) -> None:
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
