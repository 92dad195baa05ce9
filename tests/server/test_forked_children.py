"""Processes that a tool forks keep no port, connection or signal of the server (R51).

`test_workers.py` has those of a dead worker.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx2
import pytest

from agentctl.server.processes.listener import bind_socket
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deploy
from tests.kit.process import ServerProcess, serve_config
from tests.server.forking_tools import FILES, call_tool, describe_agents, surviving
from tests.server.raw_http import open_raw_connection

METRICS = '\n[metrics]\nlisten = "127.0.0.1:0"\n'


@pytest.fixture(scope="module")
def forking(deploy: Deploy) -> Iterator[tuple[ServerProcess, httpx2.Client]]:
    """A server with agents whose tools fork, which the last test kills, and its client."""
    deployment = deploy(describe_agents(deploy.url) + METRICS, files=FILES)
    with serve_config(deployment.path) as server, deployment.client(server.url) as client:
        yield server, client


def test_terminated_pool_does_not_stop_the_server(
    forking: tuple[ServerProcess, httpx2.Client],
) -> None:
    server, client = forking
    for _ in range(3):
        assert call_tool(client, "use_pool") == 6
    assert server.process.poll() is None
    assert "stopping" not in server.log_text


def test_children_of_a_killed_server_keep_no_port(
    forking: tuple[ServerProcess, httpx2.Client],
) -> None:
    server, client = forking
    metrics = server.wait_for("metrics: ").partition("metrics: http://127.0.0.1:")[2]
    child = call_tool(client, "keep_children")
    with open_raw_connection(server.port) as connection, surviving(child):
        connection.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.answer().status == 200
        second = call_tool(client, "keep_children")

        server.process.kill()
        server.process.wait()

        with surviving(second):
            assert connection.ended()
            with pytest.raises(ConnectionRefusedError):
                wait_until_refused(int(metrics.partition("/")[0]))
            with bind_socket("127.0.0.1", server.port):
                pass


def wait_until_refused(port: int) -> None:
    """Connect to a port until nothing listens there. Raise ConnectionRefusedError then."""
    for _ in range(400):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.settimeout(0.05)
            with contextlib.suppress(OSError):
                connection.recv(1)
