"""The units of systemd, and a server on a socket that a service manager passes."""

from __future__ import annotations

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
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.documents import ROOT
from tests.kit.model import ModelEndpoint
from tests.kit.process import AGENTCTL, base_environment, run_agentctl
from tests.packaging.programs import PACKAGING, needs_packaging_mode, require_program
from tests.packaging.service_manager import Instance, Manager, build_shell_command

UNITS = PACKAGING / "systemd"
PREFIX = "/opt/agentctl/bin"


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
    assert server.process.wait(PATIENCE) == 0
    # The manager keeps the socket: a connection waits for the next process.
    with socket.create_connection(manager.listener.getsockname()) as waiting:
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        server = manager.start(deployment, "--workers", workers)
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200 OK")
    server.stop()


def test_server_that_leaves_serves_open_connections(
    manager: Manager, deployment: Deployment
) -> None:
    """The clients of open connections cannot know that the server leaves: none gets a reset."""
    server = manager.start(deployment)
    headers = deployment.bearer("ada", ADMIN)
    run = {"message": "hello", "stream": "false"}
    with socket.create_connection(manager.listener.getsockname()) as unused:
        with httpx2.Client(base_url=manager.url, headers=headers) as kept:
            assert kept.post("/agents/echo/runs", data=run).headers.get("connection") is None
            server.process.send_signal(signal.SIGTERM)
            wait_for_leave(manager, server)
            # On the connection that is kept: another one would wait for the next process.
            answer = kept.post("/agents/echo/runs", data=run)
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert "STOPPING=1" not in server.states
        unused.sendall(b"GET /ready HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answered = unused.recv(4096).decode().lower()
        assert answered.startswith("http/1.1 200 ok")
        assert "connection: close" in answered
    server.wait_for("STOPPING=1")
    assert server.process.wait(PATIENCE) == 0


def wait_for_leave(manager: Manager, server: Instance) -> None:
    """Wait until a server has closed its descriptor of the listening socket."""
    listener = Path(f"/proc/self/fd/{manager.listener.fileno()}").readlink()
    folder = Path(f"/proc/{server.process.pid}/fd")
    deadline = time.monotonic() + PATIENCE
    while listener in read_links(folder):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_links(folder: Path) -> set[Path]:
    found = set[Path]()
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(file.readlink())
    return found


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


def read_commands(text: str, key: str, instance: str) -> list[list[str]]:
    """Return the commands of a key in the text of a unit, as systemd starts them."""
    commands = []
    for line in re.findall(rf"^{key}=(.+)$", text, re.MULTILINE):
        command = line.replace("%%", "\0").replace("%i", instance).replace("\0", "%")
        command = command.replace("$$", "$").replace(PREFIX, str(Path(sys.executable).parent))
        commands.append(shlex.split(command))
    return commands


def run_in_folder(commands: list[list[str]], backups: Path, env: dict[str, str]) -> None:
    """Run commands of the backup unit with another folder for the backups."""
    for command in commands:
        words = [word.replace("/var/lib/agentctl-backups", str(backups)) for word in command]
        subprocess.run(words, env=env, check=True)


def add_backup(folder: Path, name: str, days: float) -> None:
    """Create a file that was changed some days ago."""
    (folder / name).touch()
    at = time.time() - days * 86_400
    os.utime(folder / name, (at, at))


def test_backup_unit_copies_a_database_and_deletes_old_copies(
    tmp_path: Path, deployment: Deployment
) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    add_backup(backups, "main-old.db", 15.1)
    add_backup(backups, "main-killed.db.part", 15.1)
    add_backup(backups, "main-new.db", 13)
    add_backup(backups, "other-old.db", 100)
    assert run_agentctl("db", "migrate", "--config", str(deployment.path)).returncode == 0
    env = base_environment() | {"AGENTCTL_CONFIG": str(deployment.path)}
    unit = (UNITS / "agentctl-backup@.service").read_text()
    for key in ("ExecStart", "ExecStartPost"):
        run_in_folder(read_commands(unit, key, "main"), backups, env)
    copy, *others = sorted(path.name for path in backups.iterdir())
    assert re.fullmatch(r"main-\d{4}-\d\d-\d\dT\d{6}Z\.db", copy)
    assert others == ["main-new.db", "other-old.db"]


def test_page_keeps_fewer_of_the_older_backups(tmp_path: Path) -> None:
    (page,) = re.findall(
        r"^```ini\n(\[Service\]\n.*?)^```$",
        (ROOT / "docs/databases.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    for name, days in {
        "main-2026-11-29T101500Z.db": 0.9,
        "main-2026-11-28T101500Z.db": 1.1,
        "main-2026-11-28T000003Z.db": 1.5,
        "main-2026-10-31T000003Z.db": 29.5,
        "main-2026-10-30T000003Z.db": 30.5,
    }.items():
        add_backup(tmp_path, name, days)
    run_in_folder(read_commands(page, "ExecStartPost", "main"), tmp_path, base_environment())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "main-2026-10-31T000003Z.db",
        "main-2026-11-28T000003Z.db",
        "main-2026-11-29T101500Z.db",
    ]


@needs_packaging_mode
def test_scheduled_unit_starts_one_run_in_an_hour(tmp_path: Path) -> None:
    unit = (UNITS / "agentctl-run@.service").read_text()
    (command,) = read_commands(unit, "ExecStart", "echo")
    with serving(tmp_path / "demo") as demo:
        (tmp_path / "token").write_text(demo.token)
        env = base_environment() | {"URL": demo.url, "TOKEN_FILE": str(tmp_path / "token")}
        hour = time.strftime("%H", time.gmtime())
        for _ in range(2):
            subprocess.run(command, env=env | {"MESSAGE": "daily report"}, check=True)
        listed = run_agentctl("runs", "list", "-o", "json", "--config", str(demo.config))
        runs = json.loads(listed.stdout)["data"]
        assert len(runs) == 1 or hour != time.strftime("%H", time.gmtime())
