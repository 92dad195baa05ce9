"""`agentctl serve` as a process: start, signals, and failed starts."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from agentctl.errors import AgentctlError, InvalidKey, SchemaMismatch, Unavailable, UsageError
from agentctl.server import create_app
from agentctl.server.processes.listener import Announcements, base_url, bind_socket
from agentctl.server.processes.serve import serve
from agentctl.telemetry.measurements import SAMPLE_SECONDS
from tests.kit.command import run_command
from tests.kit.conditions import wait_for
from tests.kit.deployment import Deploy, Deployment
from tests.kit.ports import find_free_port
from tests.kit.process import ServerProcess, serve_config
from tests.kit.threaded_server import serve_in_thread


def test_idle_server_wakes_up_rarely(deployment: Deployment) -> None:
    with serve_config(deployment.path) as served:
        httpx2.get(f"{served.url}/health").raise_for_status()
        threads = list(Path(f"/proc/{served.process.pid}/task").iterdir())
        # Timers of 0.25, 0.5, 0.75, 1 and 2 seconds. A window may have the end of a late start.
        rates: list[float] = []
        while not rates or (rates[-1] >= 20 and len(rates) < 20):
            start = time.monotonic()
            before = count_wake_ups(threads)
            time.sleep(3.0)
            rates.append((count_wake_ups(threads) - before) / (time.monotonic() - start))
        assert rates[-1] < 20, rates


def count_wake_ups(threads: list[Path]) -> int:
    """Return how often threads, folders of `/proc`, have waited for something until now."""
    texts = [(thread / "status").read_text() for thread in threads]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


SLOW_MODULE = """
import time

time.sleep(1.5)


async def agent(message):
    return message
"""
SLOW_AGENT = '[[agents]]\nid = "slow"\nobject = "slow_import_agent:agent"\n'


@pytest.fixture(scope="module")
def starting(deploy: Deploy) -> Iterator[tuple[Deployment, ServerProcess]]:
    """A server that imports for 1.5 seconds at its start. The last test that uses it stops it."""
    files = {"slow_import_agent.py": SLOW_MODULE}
    deployment = deploy(SLOW_AGENT, files=files)
    text = deployment.path.read_text()
    deployment.path.write_text(text.replace("drain_seconds = 1", "drain_seconds = 600"))
    with serve_config(deployment.path) as served:
        yield deployment, served


def test_slow_import_at_the_start_is_no_blocked_loop(
    starting: tuple[Deployment, ServerProcess],
) -> None:
    _, served = starting
    answered = 0
    begun = time.monotonic()
    while answered < 3 or time.monotonic() < begun + 3 * SAMPLE_SECONDS:
        answer = httpx2.get(f"{served.url}/health")
        assert answer.status_code == 200
        assert "server" not in answer.headers
        answered += 1
    assert "was blocked" not in served.log_text


def test_draining_server_rejects_runs_until_a_second_signal(
    starting: tuple[Deployment, ServerProcess],
) -> None:
    """An idle connection does not delay the end. An open stream ends with its run."""
    deployment, served = starting
    with (
        deployment.client(served.url) as client,
        socket.create_connection(("127.0.0.1", served.port)) as idle,
        client.stream("POST", "/agents/hang/runs", json={"message": "hello"}) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == "event: RunStarted"
        run_id = orjson.loads(next(lines).removeprefix("data: "))["run_id"]

        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/ready").status_code == 503)
        assert client.get("/ready").json()["checks"]["runs"] == "failed"
        asked = client.post("/agents/echo/runs", json={"message": "hello"})
        assert (asked.status_code, asked.json()["error_code"]) == (503, "UNAVAILABLE")
        assert asked.headers["retry-after"]
        assert client.get(f"/runs/{run_id}").json()["status"] == "RUNNING"

        assert served.stop(signal.SIGINT) == 0
        assert [line for line in lines if line.startswith("event: ")] == ["event: RunCancelled"]
        assert idle.recv(1) == b""
    assert "Traceback" not in served.log_text
    with serve_in_thread(deployment) as host, deployment.client(host.url) as client:
        run = client.get(f"/runs/{run_id}").json()
    assert (run["status"], run["cancel_requested_by"]) == ("CANCELLED", "system:shutdown")


def test_idle_connection_outlives_that_of_its_client(deployment: Deployment) -> None:
    """httpx drops a connection after 5 idle seconds: the server must not be the first."""
    with (
        serve_config(deployment.path) as served,
        httpx2.Client(base_url=served.url, limits=httpx2.Limits(keepalive_expiry=60)) as client,
    ):
        first = client_address(client.get("/health"))
        time.sleep(6.5)
        assert client_address(client.get("/health")) == first


def client_address(answer: httpx2.Response) -> Any:
    return answer.extensions["network_stream"].get_extra_info("client_addr")


def test_port_in_use_is_reported(deployment: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_command(
            "serve", "--port", str(port), environment=os.environ, folder=deployment.folder
        )
    assert (ended.code, ended.stdout) == (1, "")
    assert f"error: port {port} on 127.0.0.1 is in use" in ended.stderr
    assert "hint:" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (deployment.folder / "main.db").exists()


def refused(deployment: Deployment, **server: Any) -> AgentctlError:
    """Return the error of a failed start."""
    settings = deployment.settings
    settings = replace(settings, server=replace(settings.server, **server))

    def fail(value: object) -> None:
        pytest.fail(f"it announces {value}")

    with pytest.raises(AgentctlError) as refusal:
        serve(settings, Announcements(fail, fail, fail))
    return refusal.value


@pytest.mark.parametrize("host", ["203.0.113.9", "no such host", "nothing.invalid", "a" * 300])
def test_unknown_host_is_reported(settled: Deployment, host: str) -> None:
    refusal = refused(settled, host=host)
    assert isinstance(refusal, UsageError)
    assert "not an address of this machine" in refusal.detail


def test_unusable_database_is_reported(deployment: Deployment) -> None:
    (deployment.folder / "main.db").write_bytes(
        b"this is no database, and long enough to be seen" * 99
    )
    assert isinstance(refused(deployment), SchemaMismatch | Unavailable)


def test_missing_keys_are_reported(deployment: Deployment) -> None:
    (deployment.folder / "keys" / "signing.pub.pem").unlink()
    refusal = refused(deployment)
    assert isinstance(refusal, InvalidKey)
    assert "signing.pub.pem" in str(refusal)


def test_failed_start_releases_the_port(deployment: Deployment) -> None:
    (deployment.folder / "keys" / "signing.pub.pem").unlink()
    port = find_free_port()
    refused(deployment, port=port)
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_base_url_has_the_real_port(host: str, shown: str) -> None:
    with bind_socket(host, 0) as listener:
        assert base_url(listener) == f"http://{shown}:{listener.getsockname()[1]}"


def test_every_caller_is_admin_without_authorization(settled: Deployment) -> None:
    settings = settled.settings
    off = replace(settings, authorization=replace(settings.authorization, enabled=False))
    with serve_in_thread(settled, create_app(off)) as host:
        me = host.client.get("/auth/me", headers={"Authorization": "Bearer nonsense"})
        who = {"principal": "anonymous", "scopes": [], "admin": True, "auth_mode": "none"}
        who |= {"trace_url": None, "scope_origins": []}
        found = me.json()
        assert {"get_agents", "delete_session", "get_audit"} <= set(found.pop("operations"))
        assert found == who
        assert host.client.get("/nothing").status_code == 404
