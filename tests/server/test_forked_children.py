"""Processes that a tool forks keep no port, connection or signal of the server (R51)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config
from tests.kit.process_states import is_alive
from tests.server.raw_http import open_raw_connection

TOOLS = """
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

FORK = multiprocessing.get_context("fork")
POOLS = []


def keep_children() -> int:
    \"\"\"Start a pool whose process stays.\"\"\"
    POOLS.append(ProcessPoolExecutor(1, mp_context=FORK))
    return POOLS[-1].submit(os.getpid).result()


def use_pool() -> int:
    \"\"\"Use a pool and terminate it.\"\"\"
    with FORK.Pool(3) as pool:
        return sum(pool.map(abs, [1, -2, 3]))
"""

NAMES = ("keep_children", "use_pool")
ENTRY = """
[[models]]
id = "{name}"
provider = "openai"
model = "tool:{name}"
base_url = "{url}"

[[agents]]
id = "{name}"
model = "{name}"
tools = ["fork_tools:{name}"]
"""


@pytest.fixture
def forking(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    """A configuration with agents whose tools fork."""
    url = model_endpoint.base_url
    extra = "".join(ENTRY.format(name=name, url=url) for name in NAMES)
    extra += '\n[metrics]\nlisten = "127.0.0.1:0"\n'
    deployment = create_deployment(tmp_path, url, extra=extra)
    (tmp_path / "fork_tools.py").write_text(TOOLS)
    return deployment


def call_tool(deployment: Deployment, server: ServerProcess, name: str) -> int:
    """Run the agent of a tool; return the number that the tool returned."""
    headers = deployment.bearer("me", ADMIN)
    body = {"message": "{}", "stream": False}
    url = f"{server.url}/agents/{name}/runs"
    run = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE).json()
    assert run["status"] == "COMPLETED", run
    return int(run["tools"][0]["result"])


@contextlib.contextmanager
def surviving(pid: int) -> Iterator[None]:
    """End a process that must be alive until the end of the block."""
    try:
        yield
        assert is_alive(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_children_of_a_killed_server_keep_no_port(forking: Deployment) -> None:
    with serve_config(forking.path) as server:
        port = server.url.rpartition(":")[2]
        metrics = server.wait_for("metrics: ").partition("metrics: http://127.0.0.1:")[2]
        child = call_tool(forking, server, "keep_children")
        with open_raw_connection(int(port)) as connection, surviving(child):
            connection.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.answer().status == 200
            second = call_tool(forking, server, "keep_children")
            server.process.kill()
            server.process.wait()
            with surviving(second):
                assert connection.ended()
                with pytest.raises(ConnectionRefusedError):
                    wait_until_refused(int(metrics.partition("/")[0]))
                with serve_config(forking.path, "--port", port, log="again.log") as again:
                    assert httpx2.get(f"{again.url}/health", timeout=PATIENCE).status_code == 200


def wait_until_refused(port: int) -> None:
    """Connect to a port until nothing listens there. Raise ConnectionRefusedError then."""
    for _ in range(400):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.settimeout(0.05)
            with contextlib.suppress(OSError):
                connection.recv(1)


def test_terminated_pool_does_not_stop_the_server(forking: Deployment) -> None:
    with serve_config(forking.path) as server:
        for _ in range(3):
            assert call_tool(forking, server, "use_pool") == 6
        assert server.process.poll() is None
        assert "stopping" not in server.log_text


def test_worker_with_children_is_replaced(forking: Deployment) -> None:
    with serve_config(forking.path, "--workers", "2") as server:
        child = call_tool(forking, server, "keep_children")
        with surviving(child):
            worker = int(Path(f"/proc/{child}/stat").read_text().split()[3])
            os.kill(worker, signal.SIGKILL)
            server.wait_for("was killed by SIGKILL")
            assert call_tool(forking, server, "use_pool") == 6
