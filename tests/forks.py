"""Processes that run `agentctl` without the second or two that its imports take each time.

A template process imports everything once and forks for each process that a test asks for. Such a
process is one of its own like any other: started by the test, which waits for it and sees its exit
code, with the environment, folder, streams and signals that it is given, and it ends as Python
ends. Only that its modules are loaded already, so what is about that takes a new interpreter; with
AGENTCTL_TEST_LONG=1, where coverage is measured, and where Linux is not, everything does.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import platform
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Forked", "may_fork"]

_CLONE_PARENT = 0x8000
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), 0)
_SIZE = struct.Struct("!I")
_AT_START = ("PYTHON", "LANG", "LC_ALL", "LC_CTYPE")
"""What variables begin with that an interpreter reads when it starts."""


def may_fork(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment may come from the template: what is in it for the
    start of an interpreter, which is over, the template had as well.
    """
    return (
        sys.platform == "linux"
        and "PYTEST_VERSION" in os.environ  # benchmarks measure how long a start takes
        and _CLONE > 0
        and not os.environ.get("AGENTCTL_TEST_LONG")
        and not any(name.startswith(("COV_CORE", "COVERAGE_")) for name in os.environ)
        and all(
            (name, value) == ("PYTHONWARNINGS", "error") or os.environ.get(name) == value
            for name, value in environment.items()
            if name.startswith(_AT_START)
        )
    )


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """As `subprocess.Popen`; the arguments are those behind `agentctl`."""

    def _execute_child(self, *given: Any) -> None:
        """Start the process, as the method of the base class does, and close what it was given."""
        bound = _PARAMETERS.bind(self, *given)
        asked = bound.arguments
        arguments = [os.fspath(argument) for argument in asked["args"]]
        streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        request = {
            "arguments": arguments,
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": bool(asked["start_new_session"]),
        }
        own = [stream if stream != -1 else number for number, stream in enumerate(streams)]
        pid = _template().fork(request, own)
        if pid == 0:  # this system has no such forks
            asked["args"] = [sys.executable, "-m", "agentctl", *arguments]
            super()._execute_child(*bound.args[1:])  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[end] for end in ends))


_PARAMETERS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class _Template:
    """The process that forks, seen from a test."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._door, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                cwd=Path(__file__).parent.parent,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """Start a process, which is a child of this one; its id, 0 when there is none."""
        text = json.dumps(request).encode()
        with self._asking:
            socket.send_fds(self._door, [_SIZE.pack(len(text))], streams)
            self._door.sendall(text)
            return int(_SIZE.unpack(_received(self._door, _SIZE.size))[0])

    def close(self) -> None:
        """End it."""
        self._door.close()
        self._process.wait()


@functools.cache
def _template() -> _Template:
    return _Template()


def _received(door: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = door.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def main() -> None:
    """Fork for whoever holds the other end, until that is closed; in the child, be `agentctl`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests and what they started
    door = socket.socket(fileno=int(sys.argv[1]))
    _import_everything()
    while True:
        head, streams, _, _ = socket.recv_fds(door, _SIZE.size, 3)
        if not head:
            return
        request = json.loads(_received(door, *_SIZE.unpack(head)))
        pid = _fork()
        if pid == 0:
            door.close()
            break
        for stream in streams:
            os.close(stream)
        door.sendall(_SIZE.pack(max(pid, 0)))
    _become(request, streams)
    from agentctl.cli.app import main as agentctl

    sys.exit(agentctl())


_LATER = (
    "anyio._backends._asyncio", "genai_prices.data", "openai.resources.chat.completions",
    "pydantic_ai.models.openai", "pydantic_ai.providers.openai", "rich.console", "rich.table",
    "rich.text", "tomli_w", "tomllib", "typer._adapters", "uvloop",
)  # fmt: skip
"""What a server or a command imports when it is at work."""


def _import_everything() -> None:
    """With warnings as errors, as the commands have it that tests start."""
    import agentctl

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for found in pkgutil.walk_packages(agentctl.__path__, "agentctl."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
        for name in _LATER:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _fork() -> int:
    """Fork a sibling: a child of our parent, who may then wait for it as for any of its own."""
    library = ctypes.PyDLL(None)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(library.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take over what a new process would have been given."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["session"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that a Ctrl-C typed there is a signal here
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [str(importlib.import_module("agentctl.__main__").__file__), *request["arguments"]]
    sys.path[0] = request["folder"]
    if "PYTHONWARNINGS" in os.environ:
        warnings.simplefilter("error")
    sys.stdin = sys.__stdin__ = _text(sys.stdin, io.BufferedReader(io.FileIO(0, "r", False)))
    sys.stdout = sys.__stdout__ = _text(sys.stdout, io.BufferedWriter(io.FileIO(1, "w", False)))
    sys.stderr = sys.__stderr__ = _text(sys.stderr, io.BufferedWriter(io.FileIO(2, "w", False)))
    sys.stderr.reconfigure(line_buffering=True)


def _text(like: Any, buffer: Any) -> io.TextIOWrapper:
    """A stream of the same encoding on another file."""
    lines = buffer.raw.isatty()
    return io.TextIOWrapper(buffer, like.encoding, like.errors, line_buffering=lines)


if __name__ == "__main__":
    main()
