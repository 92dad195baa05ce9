"""A server that a test kills, stops and starts again on the same port."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.postgres_server import list_children
from tests.kit.process import ServerProcess, serve_config
from tests.kit.releases import NEW, Program

__all__ = ["Server"]


class Server:
    """A server with its own folder; all servers of a world have the same keys.

    Args:
        options: options of `agentctl serve`.
        program: the version of the server.
        variables: further environment variables of the server.
        python: the interpreter, if it is that of another environment.

    Attributes:
        program: the version of the next start.
        variables: further environment variables of the next start.
        url: the URL, the same after a restart; empty before the first start.
        logs: the log file of each start.
    """

    def __init__(
        self,
        name: str,
        deployment: Deployment,
        *options: str,
        program: Program = NEW,
        variables: Mapping[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        self.name = name
        self.deployment = deployment
        self._options = options
        self.program = program
        self.variables = {**program.variables, **(variables or {})}
        self._interpreter: dict[str, Any] = {}
        if python is not None:
            self._interpreter["python"] = python
        self.url = ""
        self.logs = list[Path]()
        self._context = contextlib.ExitStack()
        self._running: ServerProcess | None = None

    @property
    def is_running(self) -> bool:
        """True from the end of `start` until `kill` or `stop`."""
        return self._running is not None

    @property
    def is_alive(self) -> bool:
        """True if it runs, and has not ended by itself."""
        return self._running is not None and self._running.process.poll() is None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process of the running server."""
        assert self._running is not None
        return self._running.process

    @property
    def workers(self) -> list[int]:
        """The process ids of its workers; its own if it is one process.

        Children only: a pid of the database may belong to a process of another program by now.
        """
        if self._running is None:
            return []
        pid = self.process.pid
        return list_children(pid) if "--workers" in self._options else [pid]

    def start(self) -> None:
        """Start the server and wait until it listens."""
        port = self.url.rpartition(":")[2] or "0"
        name = f"{self.name}-{len(self.logs) + 1}.log"
        self.logs.append(self.deployment.folder / name)
        options = ("--port", port, *self._options)
        command = None if self.program is NEW else self.program.command
        running = serve_config(
            self.deployment.path,
            *options,
            log=name,
            variables=self.variables,
            program=command,
            **self._interpreter,
        )
        self._running = self._context.enter_context(running)
        self.url = self._running.url

    def start_until_it_stays(self) -> None:
        """Start it again and again, as a supervisor does: without a database it exits."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.start()
            except AssertionError:
                assert time.monotonic() < deadline
            else:
                return

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._running = None
        self._context.close()

    def stop(self) -> None:
        """Stop the server with SIGTERM; it must exit with code 0."""
        self._running = None
        self._context.close()

    def describe(self) -> str:
        """Return its state, and the last lines of its log."""
        state = "does not run"
        if self.is_running:
            exit_code = self.process.poll()
            state = "runs" if exit_code is None else f"has ended with {exit_code}"
        lines = self.logs[-1].read_text().splitlines()[-20:]
        return "\n".join([f"server {self.name} {state}; its log:", *lines])
