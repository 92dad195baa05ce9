"""`agentctl` for a shell of tests, without the start of an interpreter for each command.

A process imports the commands once. A function of the shell, named `agentctl`, hands the words, the
environment and the streams of a command to it; a fork of the process then runs the real `main`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentctl import cli

__all__ = ["forked_commands"]

_FUNCTION = """agentctl() {{
  if [ "$1" = serve ]; then command agentctl "$@"; else '{python}' -IS '{client}' '{path}' "$@"; fi
}}"""
"""A server is a separate process, which the test ends with a signal."""

_MODULES = (
    "agentctl.auth.explain.explain", "agentctl.auth.verifier", "agentctl.config",
    "agentctl.remote.client", "agentctl.runs.engine", "agentctl.runtime.components.configured",
    "agentctl.store.sqlite.database", "concurrent.futures.thread", "httpx2", "pydantic",
    "rich.console", "rich.table",
)  # fmt: skip
"""The modules that commands import from other packages."""


@contextlib.contextmanager
def forked_commands(folder: Path) -> Iterator[str]:
    """Start the process; enter the block with the definition of the function.

    Args:
        folder: an existing folder for the socket.
    """
    path, client = folder / "commands.sock", Path(__file__).with_name("forked_client.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.forked", str(listener.fileno())],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
        try:
            yield _FUNCTION.format(python=sys.executable, client=client, path=path)
        finally:
            process.kill()
            process.wait()


def serve_forks(listener: socket.socket) -> None:
    """Run each command of the socket in a fork, until this process is killed."""
    commands = [found.name for found in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}.")]
    for module in (*commands, *_MODULES):
        importlib.import_module(module)
    gc.freeze()
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                _wait_for_command(connection)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _wait_for_command(connection: socket.socket) -> None:
    message, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = json.loads(connection.makefile("rb").read(int(message)))
    command = os.fork()
    if command == 0:
        connection.close()
        _run_command(request, streams)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d" % (code if code >= 0 else 128 - code))
    os._exit(0)


def _run_command(request: dict[str, Any], streams: list[int]) -> None:
    from agentctl.cli.app import main

    code = 70
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["agentctl", *request["words"]]
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
        code = main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve_forks(socket.socket(fileno=int(sys.argv[1])))
