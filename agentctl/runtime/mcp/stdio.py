"""The program of a stdio server: its pipes, its process group and its end.

The program speaks JSON-RPC, one message per line. Unlike the transport of the `mcp` library, this
one limits the size of a message, accepts other text on stdout, and reads stderr
(docs/decisions/0042).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from agentctl.records.logs import RateLimitedLog
from agentctl.records.strict import has_too_many_values
from agentctl.records.text import escape_controls, mask_secrets, replace_unstorable
from agentctl.runtime.mcp.calls import McpUnavailable
from agentctl.runtime.mcp.library import Streams, build_error, parse_message, types
from agentctl.work.event_loop import Turns

EXIT_SECONDS = 2.0
"""Time to exit after the end of stdin, and again after SIGTERM; then SIGKILL."""

WRITE_SECONDS = 30.0
"""Time to read a message from stdin. A program that takes longer is restarted."""

LOGGED_LINES = 1_000
"""Lines of stderr in a second that are logged; further ones are counted."""

NOISE_LINES = 10_000
"""Lines in a second that are no messages; the program waits before it can write more."""

_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
_CHUNK_BYTES = 65_536
_EDGE_BYTES = 512
"""Bytes that are kept of both ends of a message that is too long, to find its id."""

_STDERR_LINE_BYTES = 2_000
_EXIT_POLL_SECONDS = 0.01
_EXIT_POLLS = 20
_WATCH_SECONDS = 1.0
_MINIMUM_SECRET_LENGTH = 4

_VERSION = b'"jsonrpc"'
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')

_log = logging.getLogger("agentctl.mcp")
_rate_limited = RateLimitedLog(_log)

Message: TypeAlias = SessionMessage | Exception
OnEnd = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start.

    Attributes:
        line: the command and its arguments.
        secrets: values that the log must not show.
        message_bytes: maximum size of a message from the program.
    """

    server: str
    line: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    secrets: tuple[str, ...]
    message_bytes: int

    def mask(self, text: str) -> str:
        """Return one line of the program with secrets masked and control characters escaped."""
        return escape_controls(mask_secrets(text, self.secrets, minimum=_MINIMUM_SECRET_LENGTH))


def find_command(command: str, folder: Path) -> str | None:
    """Return the path of a command, or None if there is no such program.

    A name is searched on PATH, then next to the Python interpreter, where pip installs programs of
    the same environment. A relative path starts at `folder`.
    """
    if os.sep in command:
        path = folder / command
        return str(path) if os.access(path, os.X_OK) and path.is_file() else None
    return shutil.which(command) or shutil.which(command, path=str(Path(sys.executable).parent))


def build_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the few variables that every program inherits, and the given ones."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, **variables}


@asynccontextmanager
async def run_program(program: Program, on_end: OnEnd) -> AsyncIterator[Streams]:
    """Start a program and connect to it; end its process group at the end of the block.

    Args:
        on_end: called once when the program has ended or cannot be used any more, with the reason
            and the last line on stderr, which is for operators only.

    Raises:
        McpUnavailable: the program could not be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *program.line,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=program.folder,
            env=dict(program.environment),
            start_new_session=True,
            limit=_CHUNK_BYTES,
        )
    except (OSError, ValueError) as error:
        reason = (
            os.strerror(error.errno or 0).lower() if isinstance(error, OSError) else "invalid text"
        )
        raise McpUnavailable(f"its program could not be started: {reason}") from error
    running = _RunningProgram(program, process, on_end)
    try:
        yield running.open()
    finally:
        # A cancel of this task must not leave a process: a separate task ends it.
        ending = asyncio.create_task(running.close())
        await _finish(ending)


async def _finish(task: asyncio.Task[None]) -> None:
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


class _RunningProgram:
    """A program with its tasks: reader, writer, reader of stderr, and watcher."""

    def __init__(
        self, program: Program, process: asyncio.subprocess.Process, on_end: OnEnd
    ) -> None:
        self._program = program
        self._process = process
        self._on_end = on_end
        self._ended = False
        self._noise = 0
        self._last_line = b""
        self._open_ids: set[int | str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._incoming: MemoryObjectSendStream[Message]
        self._read: MemoryObjectReceiveStream[Message]
        self._incoming, self._read = anyio.create_memory_object_stream[Message](0)
        self._write: MemoryObjectSendStream[SessionMessage]
        self._outgoing: MemoryObjectReceiveStream[SessionMessage]
        self._write, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)

    def open(self) -> Streams:
        works = (self._read_messages(), self._write_messages(), self._read_log(), self._watch())
        self._tasks = [asyncio.create_task(work) for work in works]
        return self._read, self._write

    async def close(self) -> None:
        """End the program in bounded steps: close stdin, SIGTERM, SIGKILL; then release all."""
        self._ended = True
        self._read.close()
        self._write.close()
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        if not await self._wait_for_exit():
            self._signal(signal.SIGTERM)
            await self._wait_for_exit()
        # Also after its exit: the program may have left processes of its group.
        self._signal(signal.SIGKILL)
        if not await self._wait_for_exit():
            _log.error("mcp server %s: process %d does not end", self._program.server, process.pid)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in (self._incoming, self._outgoing):
            stream.close()
        transport = getattr(process, "_transport", None)
        if transport is not None:
            # A process outside of the group may hold the other end of a pipe.
            with contextlib.suppress(PermissionError):
                transport.close()

    async def _wait_for_exit(self) -> bool:
        # `Process.wait` of Python 3.11 returns only when the pipes are closed, too. A child of the
        # program may keep them open.
        deadline = asyncio.get_running_loop().time() + EXIT_SECONDS
        while self._process.returncode is None:
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(_EXIT_POLL_SECONDS)
        return True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._on_end(reason, self._program.mask(_decode(self._last_line)))

    async def _watch(self) -> None:
        while self._process.returncode is None:
            await asyncio.sleep(_WATCH_SECONDS)
        self._end(f"its program ended with code {self._process.returncode}")

    async def _read_messages(self) -> None:
        assert self._process.stdout is not None
        lines = _OutputLines(self._program.message_bytes)
        noise = _Noise()
        with self._incoming:
            while data := await self._process.stdout.read(_CHUNK_BYTES):
                for line in lines.add(data):
                    message = self._parse(line)
                    if message is None:
                        await noise.add()
                    else:
                        # After `close`, the rest is read and dropped, so that the program can end.
                        with contextlib.suppress(
                            anyio.BrokenResourceError, anyio.ClosedResourceError
                        ):
                            await self._incoming.send(message)
            # The exit code and the last line on stderr arrive at about the same time.
            for _ in range(_EXIT_POLLS):
                if self._process.returncode is not None:
                    break
                await asyncio.sleep(_EXIT_POLL_SECONDS)
            code = self._process.returncode
            self._end("its program closed stdout" if code is None else _describe_exit(code))

    def _parse(self, line: _OutputLine) -> SessionMessage | None:
        """Return the message of a line; None if it is none.

        A result that cannot be used becomes an error, so that its call ends.
        """
        if line.is_cut:
            size = self._program.message_bytes
            return self._refuse(line.text, line.tail, f"the result has over {size:_} bytes")
        text = line.text if line.text.startswith(b"{") else line.text.lstrip()
        if not text.startswith(b"{"):
            if text:
                self._note_noise(text)
            return None
        if has_too_many_values(text):
            return self._refuse(text, b"", "the result has too many values")
        try:
            item = parse_message(text)
        except ValueError:
            repaired = _repair(text)
            if repaired is None:
                if _VERSION in text:
                    return self._refuse(text, b"", "the result is not a readable message")
                self._note_noise(text)
                return None
            item = repaired
        message = item.message
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            self._open_ids.discard(message.id if message.id is not None else "")
        return item

    def _note_noise(self, text: bytes) -> None:
        self._noise += 1
        if self._noise == 1:
            _log.warning(
                "mcp server %s: its program writes other text than messages to stdout: %s",
                self._program.server,
                self._program.mask(_decode(text[:200])),
            )

    def _refuse(self, text: bytes, tail: bytes, reason: str) -> SessionMessage | None:
        """Return an error for the request to which an unusable message responds, if it has an id.

        Args:
            tail: the last bytes of a message that is cut.
        """
        _rate_limited.log("mcp server %s: a message was dropped: %s", self._program.server, reason)
        for part in (text[:_EDGE_BYTES], tail or text[-_EDGE_BYTES:]):
            for match in _ID.finditer(part):
                request_id = int(match[1])
                if request_id in self._open_ids:
                    self._open_ids.discard(request_id)
                    return build_error(request_id, reason)
        return None

    async def _write_messages(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            async for item in self._outgoing:
                message = item.message
                if isinstance(message, types.JSONRPCRequest):
                    self._open_ids.add(message.id)
                elif cancelled := cancelled_id(message):
                    self._open_ids.discard(cancelled)
                text = message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(text.encode() + b"\n")
                async with asyncio.timeout(WRITE_SECONDS):
                    await stdin.drain()
        except TimeoutError:
            self._end(f"its program read nothing for {WRITE_SECONDS:g} seconds")
        except OSError:
            # The reader reports the end of the program, with its exit code.
            return

    async def _read_log(self) -> None:
        """Read stderr, so that the program does not wait for it; write its lines to the log."""
        assert self._process.stderr is not None
        lines = _OutputLines(_STDERR_LINE_BYTES)
        noise = _Noise()
        while data := await self._process.stderr.read(_CHUNK_BYTES):
            for line in lines.add(data):
                await noise.add()
                if not (text := line.text.strip()):
                    continue
                self._last_line = text
                if noise.count <= LOGGED_LINES and _log.isEnabledFor(logging.INFO):
                    shown = self._program.mask(_decode(text))
                    _log.info("mcp server %s: stderr: %s", self._program.server, shown)
            if noise.count > LOGGED_LINES:
                _rate_limited.log(
                    "mcp server %s: its program writes over %d lines a second to stderr, of which"
                    " the others are not logged",
                    self._program.server,
                    LOGGED_LINES,
                )


class _Noise:
    """The lines of a pipe that are no messages.

    Attributes:
        count: their number in the current second.
    """

    def __init__(self) -> None:
        self.count = 0
        self._second_ends = 0.0
        self._turns = Turns()

    async def add(self) -> None:
        """Count a line. Wait for the end of the second after `NOISE_LINES`."""
        now = time.monotonic()
        if now >= self._second_ends:
            self.count = 0
            self._second_ends = now + 1
        self.count += 1
        if self.count > NOISE_LINES:
            await asyncio.sleep(self._second_ends - now)
        else:
            await self._turns.take()


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace").rstrip()


def _repair(text: bytes) -> SessionMessage | None:
    """Return a message with U+FFFD for text that cannot be stored; None if it is no message.

    JSON of JavaScript and Python has lone surrogates, which the parser of the library refuses.
    """
    try:
        storable = replace_unstorable(json.dumps(json.loads(text), ensure_ascii=False))
        return parse_message(storable)
    except (ValueError, RecursionError):
        return None


def cancelled_id(message: Any) -> int | str | None:
    """Return the id of the request that a notification cancels; None for another message."""
    if not isinstance(message, types.JSONRPCNotification):
        return None
    if message.method != "notifications/cancelled":
        return None
    request_id = (message.params or {}).get("requestId")
    return request_id if isinstance(request_id, int | str) else None


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"its program ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"its program was ended by {signal.Signals(-code).name}"
    return f"its program was ended by signal {-code}"


@dataclass(frozen=True, slots=True)
class _OutputLine:
    """A line; if it is too long, its first bytes in `text` and its last bytes in `tail`."""

    text: bytes
    is_cut: bool = False
    tail: bytes = b""


class _OutputLines:
    """Splits chunks into lines of at most `limit` bytes, in linear time and bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._tail = b""

    def add(self, data: bytes) -> Iterator[_OutputLine]:
        """Add a chunk and yield the lines that it completes."""
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._extend(piece)
            yield self._take()
        self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        room = self._limit - self._size
        self._size += len(piece)
        if room > 0:
            self._parts.append(piece[:room])
        if len(piece) > room:
            self._tail = (self._tail + piece)[-_EDGE_BYTES:]

    def _take(self) -> _OutputLine:
        text = b"".join(self._parts)
        if self._size <= self._limit:
            line = _OutputLine(text)
        else:
            limit = max(_EDGE_BYTES, min(self._limit, _STDERR_LINE_BYTES))
            line = _OutputLine(text[:limit], True, self._tail)
        self._parts = []
        self._size = 0
        self._tail = b""
        return line
