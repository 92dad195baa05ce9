"""A service manager for tests: it passes a listening socket to servers, as systemd does."""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.process import AGENTCTL, base_environment

__all__ = ["Instance", "Manager", "build_shell_command"]


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
        deadline = time.monotonic() + PATIENCE
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
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()


def build_shell_command(command: list[str], listener: socket.socket) -> list[str]:
    """Return a command that starts another one with a socket as systemd does."""
    number = listener.fileno()
    passing = f"exec 3<&{number} {number}<&-; export LISTEN_PID=$$ LISTEN_FDS=1"
    return ["bash", "-c", f"{passing}; exec {shlex.join(command)}"]
