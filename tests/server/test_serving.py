"""`agentctl serve` as a process: start, signals, and ports that are taken."""

from __future__ import annotations

import signal
import socket
import subprocess
import time

import httpx2
import pytest

from tests.server.hosts import ServerProcess, command, serve_process
from tests.world import World


def headers(served: ServerProcess) -> dict[str, str]:
    token = served.world.token("me", "agents:run", "sessions:read")
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(world: World, number: signal.Signals) -> None:
    with serve_process(world) as served:
        answer = httpx2.get(f"{served.url}/health")
        assert answer.status_code == 200
        assert "server" not in answer.headers
        assert served.stop(number) == 0
        assert "Traceback" not in served.said
    assert (world.folder / "main.db").exists()


def test_an_open_stream_ends_with_its_run(world: World) -> None:
    with serve_process(world) as served:
        body = {"message": "hello", "session_id": "s1"}
        url = f"{served.url}/agents/hang/runs"
        with httpx2.stream("POST", url, json=body, headers=headers(served)) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: RunStarted"
            began = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            names = [line for line in lines if line.startswith("event: ")]
        assert served.process.wait(15) == 0
        assert time.monotonic() - began < 8
        assert names[-1] == "event: RunCancelled"
    with serve_process(world) as served:
        listed = httpx2.get(f"{served.url}/sessions/s1/runs", headers=headers(served)).json()
        assert [run["status"] for run in listed] == ["CANCELLED"]
        assert listed[0]["cancel_requested_by"] == "system:shutdown"
        assert served.stop() == 0


def test_a_connection_that_stays_open_does_not_keep_it(world: World) -> None:
    with (
        serve_process(world) as served,
        socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as idle,
        httpx2.Client(base_url=served.url) as client,
    ):
        assert client.get("/health").status_code == 200
        began = time.monotonic()
        assert served.stop() == 0
        assert time.monotonic() - began < 8
        assert idle.recv(1) == b""


def refused(world: World, *arguments: str) -> tuple[int, str]:
    """Exit code and what is said of a server that does not start."""
    done = subprocess.run(
        command(world, *arguments), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_port_in_use_is_said(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused(world, "--port", str(port))
    assert code == 1
    assert f"port {port}" in said
    assert "in use" in said
    assert "hint:" in said
    assert not (world.folder / "main.db").exists()


@pytest.mark.parametrize("host", ["203.0.113.9", "no such host", "nothing.invalid"])
def test_a_host_that_is_not_ours_is_said(world: World, host: str) -> None:
    code, said = refused(world, "--host", host)
    assert code == 2
    assert "no address of this machine" in said


def test_a_database_that_cannot_be_opened_is_said(world: World) -> None:
    (world.folder / "main.db").write_bytes(b"this is no database, and long enough to be seen" * 99)
    code, said = refused(world)
    assert code in (1, 7)
    assert "error:" in said


def test_keys_that_are_missing_are_said(world: World) -> None:
    (world.folder / "keys" / "signing.pub.pem").unlink()
    code, said = refused(world)
    assert code == 2
    assert "signing.pub.pem" in said


def test_an_open_server_beyond_this_machine_is_refused(world: World) -> None:
    text = world.path.read_text()
    world.path.write_text(text.replace("[authorization]", "[authorization]\nenabled = false"))
    code, said = refused(world, "--host", "0.0.0.0")
    assert code == 2
    assert "authorization is off" in said


def test_without_authorization_everybody_is_an_administrator(world: World) -> None:
    with serve_process(world, "--insecure-no-auth") as served:
        me = httpx2.get(f"{served.url}/auth/me", headers={"Authorization": "Bearer nonsense"})
        assert me.json() == {"principal": None, "scopes": [], "admin": True, "auth_mode": "none"}
        assert httpx2.get(f"{served.url}/nothing").status_code == 404
        assert served.stop() == 0
