"""The program of a stdio server: its guard, its log and its end.

The transport is that of the `mcp` library. The command that it starts is a guard
(`agentctl/runtime/mcp/guard.py`), which starts the program, checks its lines, and ends its process
group (decision 42).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

from agentctl.records.logs import RateLimitedLog
from agentctl.records.text import escape_controls, mask_secrets
from agentctl.runtime.mcp.calls import McpUnavailable
from agentctl.runtime.mcp.guard import LOGGED_LINES, START, Bounds, Report
from agentctl.runtime.mcp.library import Streams
from agentctl.work.event_loop import Turns

EXIT_SECONDS = 1.5
"""Time to exit after the end of stdin, and again after SIGTERM; then SIGKILL. The library kills the
group, with the guard, after four seconds."""

MAXIMUM_MESSAGE_BYTES = 8_388_608
"""Maximum size of a message from the program. The time that the library takes to read it grows with
the square of its size: 0.3 seconds in all, in steps of some 30 ms."""

WRITE_SECONDS = 30.0
"""Time to read a message from stdin. A program that takes longer is restarted."""

_END_SECONDS = 2.0
"""Maximum time until the guard reports the end of a program whose messages have ended."""

_PACKAGE_FOLDER = str(Path(__file__).parents[3])

_MINIMUM_SECRET_LENGTH = 4
"""Shorter values are not masked in the log: they would mask parts of words."""

_log = logging.getLogger("agentctl.mcp")
_rate_limited = RateLimitedLog(_log)

OnEnd = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start."""

    server: str
    """Id of the server, for the log."""

    line: tuple[str, ...]
    """The command and its arguments."""

    variables: Mapping[str, str]
    """Environment variables, in addition to the few that every program inherits."""

    folder: Path
    """The folder in which it starts."""

    secrets: tuple[str, ...]
    """Values that the log must not show."""

    message_bytes: int
    """Maximum size of a message from the program, if `MAXIMUM_MESSAGE_BYTES` is larger."""

    def mask(self, text: bytes) -> str:
        """Return one line of the program with secrets masked and control characters escaped."""
        shown = text.decode("utf-8", "replace")
        return escape_controls(mask_secrets(shown, self.secrets, minimum=_MINIMUM_SECRET_LENGTH))


def find_command(command: str, folder: Path) -> str | None:
    """Return the path of a command, or None if there is no such program.

    A name is searched on PATH, then next to the Python interpreter, where pip installs programs of
    the same environment. A relative path starts at `folder`.
    """
    if os.sep in command:
        path = folder / command
        return str(path) if os.access(path, os.X_OK) and path.is_file() else None

    interpreter_folder = str(Path(sys.executable).parent)
    return shutil.which(command) or shutil.which(command, path=interpreter_folder)


class RunningProgram:
    """A program that is started once.

    Args:
        on_end: called once when the program has ended or cannot be used any more, with the reason
            and the last line on stderr, which is for operators only.
    """

    def __init__(self, program: Program, on_end: OnEnd) -> None:
        self._program = program
        self._on_end = on_end
        self._group: int | None = None
        self._last_line = b""
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Streams]:
        """Start the program and connect to it; end its process group at the end of the block.

        Raises:
            McpUnavailable: the program could not be started.
        """
        # Sockets instead of a pipe: uvloop 0.23 closes the descriptor of a pipe that it was given,
        # and then its file object, which closes the same number again. In between, another thread
        # may have got the number for a database. From a socket object, uvloop takes the descriptor.
        reports, guard_socket = socket.socketpair()
        async with AsyncExitStack() as stack:
            stack.enter_context(reports)
            guard_stderr = stack.enter_context(os.fdopen(guard_socket.detach(), "w"))
            reading = asyncio.create_task(self._read_reports(reports))
            stack.push_async_callback(self._close, reading)

            transport = stdio_client(self._describe(), guard_stderr)
            try:
                streams = await stack.enter_async_context(transport)
            except (OSError, ValueError) as error:
                cause = "invalid text"
                if isinstance(error, OSError):
                    cause = os.strerror(error.errno or 0).lower()
                raise McpUnavailable(f"its program could not be started: {cause}") from error
            finally:
                # From now on the end of the guard is the end of its reports.
                guard_stderr.close()

            yield streams

    async def wait_for_reason(self) -> None:
        """Wait until the guard has reported the end of the program, whose messages have ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._ended.wait()

    def _describe(self) -> StdioServerParameters:
        """Return the command that the library starts: the guard, which starts the program."""
        program = self._program
        size = min(program.message_bytes, MAXIMUM_MESSAGE_BYTES)
        names = {*get_default_environment(), *program.variables}
        bounds = Bounds(size, WRITE_SECONDS, EXIT_SECONDS, tuple(sorted(names)))

        # Without `site`, and without what the variables of the program would change in Python.
        options = ["-I", "-S", "-c", START]
        guard_arguments = [_PACKAGE_FOLDER, json.dumps(bounds._asdict())]
        return StdioServerParameters(
            command=sys.executable,
            args=[*options, *guard_arguments, *program.line],
            env=dict(program.variables),
            cwd=program.folder,
        )

    async def _close(self, reading: asyncio.Task[None]) -> None:
        """Read the last reports of the guard, and kill what a guard has left that was killed."""
        try:
            await asyncio.wait({reading}, timeout=_END_SECONDS)
        finally:
            reading.cancel()
            if self._group is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._group, signal.SIGKILL)

    async def _read_reports(self, reports: socket.socket) -> None:
        reports.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=reports)
        turns = Turns()
        try:
            while line := await reader.readline():
                self._take(line.removesuffix(b"\n"))
                await turns.take()
        finally:
            writer.close()
        self._end("the guard of its program ended")

    def _take(self, line: bytes) -> None:
        """Log a report of the guard, or remember what it says about the program."""
        server = self._program.server
        kind, _, text = line.partition(b" ")

        match kind.decode("ascii", "replace"):
            case Report.STARTED:
                self._group = int(text)

            case Report.LINE:
                self._last_line = text
                if _log.isEnabledFor(logging.INFO):
                    _log.info("mcp server %s: stderr: %s", server, self._program.mask(text))

            case Report.SKIPPED:
                _rate_limited.log(
                    "mcp server %s: its program writes over %d lines a second that are no messages,"
                    " of which the others are not logged",
                    server,
                    LOGGED_LINES,
                )

            case Report.TEXT:
                _log.warning(
                    "mcp server %s: its program writes other text than messages to stdout: %s",
                    server,
                    self._program.mask(text),
                )

            case Report.REFUSED:
                reason = text.decode()
                _rate_limited.log("mcp server %s: a message was dropped: %s", server, reason)

            case Report.ENDED:
                # The guard kills the group itself.
                self._group = None
                self._end(text.decode())

            case _:
                # Of the interpreter, which could not become a guard.
                _rate_limited.log(
                    "mcp server %s: the guard of its program: %s", server, self._program.mask(line)
                )

    def _end(self, reason: str) -> None:
        """Report the end of the program once: the first reason is the best one."""
        if not self._ended.is_set():
            self._ended.set()
            self._on_end(reason, self._program.mask(self._last_line))
