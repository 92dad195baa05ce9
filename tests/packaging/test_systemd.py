"""The units of systemd, and a server on a socket that a service manager passes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.cli.demo import serving
from tests.deployment import ADMIN, Deployment, create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.packaging.programs import PACKAGING, needs_packaging_mode, require_program
from tests.process import AGENTCTL, STOP_SECONDS, base_environment, run_agentctl

__all__ = ["model_endpoint"]

pytestmark = pytest.mark.slow

UNITS = PACKAGING / "systemd"
PREFIX = "/opt/agentctl/bin"
DEADLINE = 60.0


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder with the units, for the programs of this environment, and two instances."""
    folder = tmp_path / "units"
    folder.mkdir()
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.socket"), *UNITS.glob("*.timer")):
        text = unit.read_text().replace(PREFIX, str(Path(sys.executable).parent))
        (folder / unit.name).write_text(text)
    return folder


def test_units_have_no_mistakes(units: Path) -> None:
    program = require_program("systemd-analyze", "systemd")
    names = ["agentctl.socket", "agentctl.service", "agentctl-backup@main.timer"]
    names += ["agentctl@1.service", "agentctl@2.service", "agentctl-run@report.timer"]
    paths = [str(units / name) for name in names]
    done = subprocess.run(
        [program, "verify", "--man=no", *paths], capture_output=True, check=False, cwd=units
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_services_are_confined(units: Path) -> None:
    program = require_program("systemd-analyze", "systemd")
    for unit in units.glob("*.service"):
        command = [program, "security", "--offline=true", "--threshold=15", "--no-pager", str(unit)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode()


class Manager:
    """A service manager: it keeps a listening socket, and receives states of the servers."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.folder = folder
        self._instances = list[Instance]()

    def start(
        self, deployment: Deployment, *options: str, watchdog_microseconds: int = 60_000_000
    ) -> Instance:
        """Start a server with the socket as descriptor 3, and wait until it is ready."""
        number = len(self._instances)
        instance = Instance(self, deployment, options, number, watchdog_microseconds)
        self._instances.append(instance)
        instance.wait_for("READY=1")
        return instance

    def close(self) -> None:
        for instance in self._instances:
            instance.process.kill()
            instance.process.wait()
            instance.socket.close()
        self.listener.close()


class Instance:
    """A server that a `Manager` has started.

    Attributes:
        states: the states that it has sent.
    """

    def __init__(
        self,
        manager: Manager,
        deployment: Deployment,
        options: tuple[str, ...],
        number: int,
        watchdog_microseconds: int,
    ) -> None:
        self.log = manager.folder / f"server-{number}.log"
        address = manager.folder / f"notify-{number}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(address))
        self.states = list[str]()
        command = [*AGENTCTL, "serve", "--config", str(deployment.path), *options]
        env = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": str(watchdog_microseconds)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                build_shell_command(command, manager.listener),
                pass_fds=[manager.listener.fileno()],
                env=base_environment() | env,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def wait_for(self, state: str, count: int = 1) -> None:
        """Wait until the server has sent a state this number of times."""
        deadline = time.monotonic() + DEADLINE
        while self.states.count(state) < count:
            assert time.monotonic() < deadline, (self.states, self.log.read_text())
            self.socket.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                self.states += self.socket.recv(4096).decode().splitlines()
            alive = self.process.poll() is None
            assert alive or state == "STOPPING=1", self.log.read_text()

    def stop(self) -> None:
        """Stop the server, and wait until it has ended."""
        self.process.send_signal(signal.SIGTERM)
        self.wait_for("STOPPING=1")
        assert self.process.wait(STOP_SECONDS) == 0, self.log.read_text()


def build_shell_command(command: list[str], listener: socket.socket) -> list[str]:
    """Return a command that starts another one with a socket as systemd does."""
    passing = f"exec 3<&{listener.fileno()}; export LISTEN_PID=$$ LISTEN_FDS=1"
    return ["bash", "-c", f"{passing}; exec {shlex.join(command)}"]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    created = Manager(tmp_path)
    yield created
    created.close()


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    folder = tmp_path / "deployment"
    folder.mkdir()
    return create_deployment(folder, model_endpoint.base_url)


@pytest.mark.parametrize(
    "workers", ["1", pytest.param("2", marks=needs_packaging_mode)], ids=["single", "workers"]
)
def test_server_works_with_a_service_manager(
    manager: Manager, deployment: Deployment, workers: str
) -> None:
    server = manager.start(deployment, "--workers", workers, watchdog_microseconds=400_000)
    with urllib.request.urlopen(f"{manager.url}/health") as response:
        assert response.status == 200
    assert f"listens on {manager.url}" in server.log.read_text()
    server.wait_for("WATCHDOG=1", 3)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("STOPPING=1")
    assert server.process.wait(STOP_SECONDS) == 0
    # The manager keeps the socket: a connection waits for the next process.
    with socket.create_connection(manager.listener.getsockname()) as waiting:
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        server = manager.start(deployment, "--workers", workers)
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200 OK")
    server.stop()


@needs_packaging_mode
async def test_rolling_restarts_lose_nothing(manager: Manager, deployment: Deployment) -> None:
    """Two instances with one socket: no connection is refused, and no run is lost or made twice."""
    restarts, streams, background = (
        (20, 200, 50) if "AGENTCTL_TEST_LONG" in os.environ else (4, 20, 10)
    )
    text = deployment.path.read_text()
    deployment.path.write_text(text.replace("drain_seconds = 1", "drain_seconds = 60"))
    servers = [await asyncio.to_thread(manager.start, deployment) for _ in range(2)]
    token = deployment.token("ada", ADMIN, seconds=3600)
    ended, refused, stop = list[int](), list[int](), asyncio.Event()

    async def call(number: int) -> None:
        body = {"message": '{"seconds": 2}', "session_id": f"s{number}"}
        in_background = number < background
        body |= {"stream": "false", "background": "true"} if in_background else {"stream": "true"}
        turn = 0
        while not stop.is_set():
            # A connection for each request, as from the proxies in packaging.
            async with httpx2.AsyncClient(
                base_url=manager.url,
                headers={
                    "Authorization": f"Bearer {token}",
                    "Connection": "close",
                    "Idempotency-Key": f"{number}-{turn}",
                },
                timeout=120,
            ) as client:
                try:
                    response = await client.post("/agents/tool-wait/runs", data=body)
                except (httpx2.ReadError, httpx2.RemoteProtocolError):
                    # The key makes it safe to repeat: the run of the first request is continued.
                    refused.append(number)
                    continue
            if response.status_code == 503:
                # The server had accepted the connection when it began to drain. No run was started.
                assert response.headers["Retry-After"]
                refused.append(number)
                await asyncio.sleep(0.1)
                continue
            assert response.status_code < 300, response.text
            if in_background:
                await asyncio.sleep(1)
            else:
                assert response.text.count("event: RunCompleted") == 1, response.text
            ended.append(number)
            turn += 1

    async with asyncio.TaskGroup() as group:
        for number in range(background + streams):
            group.create_task(call(number))
        for restart in range(restarts):
            place = restart % 2
            await asyncio.to_thread(servers[place].stop)
            servers[place] = await asyncio.to_thread(manager.start, deployment)
        stop.set()
    assert len(refused) <= restarts * 10, "new connections go to the other instance"
    async with httpx2.AsyncClient(
        base_url=manager.url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as client:
        deadline = time.monotonic() + DEADLINE
        while (await client.get("/runs?live=true&limit=1")).json()["meta"]["total_count"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        for status in ("ERROR", "CANCELLED"):
            page = (await client.get(f"/runs?status={status}&limit=5")).json()
            assert page["meta"]["total_count"] == 0, page["data"]
        page = (await client.get("/runs?status=COMPLETED&limit=1")).json()
        assert page["meta"]["total_count"] == len(ended)
    for server in servers:
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            ("--port", "0"),
            "--host and --port exclude a socket of the service manager",
            marks=needs_packaging_mode,
        ),
        ((), "authorization is disabled and other machines can reach 0.0.0.0"),
    ],
    ids=["port", "open"],
)
def test_wrong_use_of_a_socket_is_refused(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "agentctl.toml").write_text("[authorization]\nenabled = false\n")
    with socket.create_server(("0.0.0.0", 0)) as listener:
        done = subprocess.run(
            build_shell_command([*AGENTCTL, "serve", *options], listener),
            pass_fds=[listener.fileno()],
            cwd=tmp_path,
            env=base_environment(),
            capture_output=True,
            check=False,
        )
    assert done.returncode == 2
    assert message in done.stderr.decode()


def read_command(unit: str, instance: str) -> list[str]:
    """Return the command of a unit, as systemd starts it."""
    line = re.search(r"^ExecStart=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert line is not None
    text = line[1].replace("%%", "\0").replace("%i", instance).replace("\0", "%")
    return shlex.split(text.replace("$$", "$").replace(PREFIX, str(Path(sys.executable).parent)))


def test_backup_unit_copies_a_database(tmp_path: Path, deployment: Deployment) -> None:
    (tmp_path / "backups").mkdir()
    assert run_agentctl("db", "migrate", "--config", str(deployment.path)).returncode == 0
    command = read_command("agentctl-backup@.service", "main")
    command = [part.replace("/var/lib/agentctl-backups", f"{tmp_path}/backups") for part in command]
    env = base_environment() | {"AGENTCTL_CONFIG": str(deployment.path)}
    subprocess.run(command, env=env, check=True)
    (copy,) = (tmp_path / "backups").iterdir()
    assert re.fullmatch(r"main-\d{4}-\d\d-\d\dT\d{6}Z\.db", copy.name)


@needs_packaging_mode
def test_scheduled_unit_starts_one_run_in_an_hour(tmp_path: Path) -> None:
    command = read_command("agentctl-run@.service", "echo")
    with serving(tmp_path / "demo") as demo:
        (tmp_path / "token").write_text(demo.token)
        env = base_environment() | {"URL": demo.url, "TOKEN_FILE": str(tmp_path / "token")}
        hour = time.strftime("%H", time.gmtime())
        for _ in range(2):
            subprocess.run(command, env=env | {"MESSAGE": "daily report"}, check=True)
        listed = run_agentctl("runs", "list", "-o", "json", "--config", str(demo.config))
        runs = json.loads(listed.stdout)["data"]
        assert len(runs) == 1 or hour != time.strftime("%H", time.gmtime())
