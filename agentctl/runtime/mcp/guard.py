"""The guard of the program of an MCP server: a process between agentctl and the program.

The stdio transport of the `mcp` library starts one command and reads its stdout in the event loop:
a line of any length stays in memory, a result that is no valid message leaves its call without an
answer, and nobody ends a program that ignores the end of its stdin once agentctl was killed. So the
command that the library starts is this guard, which starts the program (decision 42):

- Messages for the program pass as they are. A program that reads none for long is ended.
- A line of the program passes if it is a message within the bounds. If it is a result beyond them,
  an error for the same request takes its place; any other text is left out.
- The stderr of the guard has its reports, a line each: a `Report` and a text. They are the lines on
  the stderr of the program, and what happens to it.
- The guard leads the process group of the program. It kills the group when the program has ended,
  when agentctl has closed the stdin of the guard, and when agentctl has died.

It imports the standard library and small modules only: it starts in some 30 ms of processor time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import IO, Any, NamedTuple

from agentctl.records.strict import has_too_many_values
from agentctl.records.text import replace_unstorable

LOGGED_LINES = 1_000
"""Lines of stderr in a second that are reported."""

LOGGED_BYTES = 2_000
"""Bytes of a line of stderr that are reported."""

MAXIMUM_DEPTH = 190
"""Levels of a message; the parser of the library refuses 200."""

START = """
import sys
sys.path.insert(0, sys.argv[1])
from agentctl.runtime.mcp.guard import main
main(*sys.argv[2:])
"""
"""The code of an interpreter that becomes a guard. Its arguments are the folder of the package,
`Bounds` as JSON, and the command of the program. It must lead a process group."""

_CHUNK_BYTES = 65_536

_EDGE_BYTES = 512
"""Bytes at the beginning and at the end of a message in which its id is searched."""

_SHOWN_BYTES = 200
"""Bytes of a text that is no message that are reported."""

_LAST_SECONDS = 1.0
"""Maximum time to read the last lines of the program after its end."""

_SETTLE_SECONDS = 0.2
"""Time from the end of a pipe of the program to its exit, whose code is the better reason."""

_INTERNAL_ERROR = -32603
_UNREADABLE = "the result is not a readable message"
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_VERSION = rb'\s*"jsonrpc"\s*:\s*"2\.0"\s*'
_ID = rb'\s*"id"\s*:\s*(\d{1,15})\s*'
_FIRST_ID = re.compile(rb'\{(?:%b,)?%b,(?!\s*"method")' % (_VERSION, _ID))
_LAST_ID = re.compile(rb",%b(?:,%b)?\}\s*\Z" % (_ID, _VERSION))

_reporting = threading.Lock()
"""Held for each report, so that the lines of two threads do not mix."""


class Bounds(NamedTuple):
    """The bounds of a program."""

    message_bytes: int
    """Maximum size of a message from the program."""

    write_seconds: float
    """Maximum time for which the program reads nothing of a message."""

    exit_seconds: float
    """Time to exit after the end of stdin, and again after SIGTERM; then SIGKILL."""

    variables: tuple[str, ...]
    """Names of the environment variables of the program."""


class Report(StrEnum):
    """The first word of a report, and what follows it."""

    STARTED = "started"
    """The number of the process group."""

    LINE = "line"
    """A line of stderr."""

    SKIPPED = "skipped"
    """Nothing follows: further lines of this second are not reported."""

    TEXT = "text"
    """The first text on stdout that is no message."""

    REFUSED = "refused"
    """The reason for which a message was left out."""

    ENDED = "ended"
    """The reason for which the program cannot be used any more."""


class Refusal(Exception):
    """Raised for a message that must not pass.

    Attributes:
        answer: the error for its request; None if the request is not known.
    """

    def __init__(self, reason: str, request_id: object) -> None:
        super().__init__(reason)
        self.answer: bytes | None = None
        if is_id(request_id):
            error = {"code": _INTERNAL_ERROR, "message": reason}
            message = {"jsonrpc": "2.0", "id": request_id, "error": error}
            self.answer = json.dumps(message).encode()


def main(bounds: str, *command: str) -> None:
    """Start the program, and end with it."""
    # The library sends SIGTERM to the group, and the guard stays until all others have ended. The
    # program inherits no handler, but would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    limits = Bounds(**json.loads(bounds))
    report(Report.STARTED, str(os.getpid()))

    # The interpreter may have added LC_CTYPE to its environment.
    environment = {name: os.environ[name] for name in limits.variables if name in os.environ}
    pipe = subprocess.PIPE
    try:
        program = subprocess.Popen(
            command, _CHUNK_BYTES, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
    except OSError as error:
        cause = os.strerror(error.errno or 0).lower()
        report(Report.ENDED, f"its program could not be started: {cause}")
    else:
        _Guard(limits, program).run()


class _Guard:
    """The threads around a running program."""

    def __init__(self, bounds: Bounds, program: subprocess.Popen[bytes]) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stderr is not None
        self._bounds = bounds
        self._program = program
        self._stdin = program.stdin
        self._stdout = program.stdout
        self._stderr = program.stderr
        self._stopping = threading.Lock()
        self._quota = _Quota()

    def run(self) -> None:
        """Return never: the guard ends with its group, after the program."""
        self._start_thread(self._pass_input)
        readers = [self._start_thread(self._pass_output), self._start_thread(self._pass_log)]

        exit_code = self._program.wait()

        # A child of the program keeps the pipes open, also one that ignores this signal.
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + _LAST_SECONDS
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))

        report(Report.ENDED, describe_exit(exit_code))
        os.killpg(0, signal.SIGKILL)

    def _start_thread(self, work: Callable[[], str | None]) -> threading.Thread:
        thread = threading.Thread(target=self._do, args=(work,), daemon=True)
        thread.start()
        return thread

    def _do(self, work: Callable[[], str | None]) -> None:
        """Do the work of a thread, whose result is a reason to end the program."""
        try:
            reason = work()
        except Exception as error:
            # Without this thread the program would wait for ever.
            reason = f"its guard failed: {type(error).__name__}"
        if reason is not None:
            self._stop(reason)

    def _stop(self, reason: str) -> None:
        """End the program in bounded steps, unless it exits by itself; `run` does the rest."""
        with self._stopping:
            if self._exits_within(_SETTLE_SECONDS):
                return
            report(Report.ENDED, reason)
            if self._exits_within(self._bounds.exit_seconds):
                return
            os.killpg(0, signal.SIGTERM)
            if not self._exits_within(self._bounds.exit_seconds):
                self._program.kill()

    def _exits_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._program.wait(seconds)
        return self._program.returncode is not None

    def _pass_input(self) -> str:
        """Pass messages to the program until agentctl closes the pipe or nothing is read."""
        try:
            return self._copy_input(self._stdin.fileno())
        finally:
            with contextlib.suppress(OSError):
                self._stdin.close()

    def _copy_input(self, target: int) -> str:
        os.set_blocking(target, False)
        # A death of agentctl is seen also while the program reads nothing.
        changes = select.poll()
        changes.register(target, select.POLLOUT)
        changes.register(0, 0)

        while data := os.read(0, _CHUNK_BYTES):
            while data:
                ready = dict(changes.poll(self._bounds.write_seconds * 1_000))
                if not ready:
                    return f"its program read nothing for {self._bounds.write_seconds:g} seconds"
                if target not in ready:
                    return "the connection was closed"
                try:
                    data = data[os.write(target, data) :]
                except OSError:
                    return "its program closed stdin"
        return "the connection was closed"

    def _pass_output(self) -> str:
        """Pass the messages of the program, and drop all other lines."""
        is_first = True
        for text, tail in read_lines(self._stdout, self._bounds.message_bytes):
            try:
                message = check(text, tail, self._bounds.message_bytes)
            except Refusal as refusal:
                message = refusal.answer
                if self._quota.take():
                    report(Report.REFUSED, str(refusal))
            else:
                if message is None and text and is_first:
                    is_first = False
                    report(Report.TEXT, text[:_SHOWN_BYTES])

            if message is not None:
                # After the end of agentctl the rest is read too, so that the program can end.
                with contextlib.suppress(OSError):
                    write(1, message + b"\n")
        return "its program closed stdout"

    def _pass_log(self) -> None:
        """Report the lines of stderr, so that the program does not wait for a reader."""
        for text, _ in read_lines(self._stderr, LOGGED_BYTES):
            if text and self._quota.take():
                report(Report.LINE, text)


class _Quota:
    """The number of lines that may be reported in a second. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._second_ends = 0.0
        self._remaining = 0

    def take(self) -> bool:
        """Return True if a further line may be reported; report the first that may not."""
        with self._lock:
            now = time.monotonic()
            if now >= self._second_ends:
                self._second_ends = now + 1
                self._remaining = LOGGED_LINES

            self._remaining -= 1
            if self._remaining == -1:
                report(Report.SKIPPED)
            return self._remaining >= 0


def check(text: bytes, tail: bytes, message_bytes: int) -> bytes | None:
    """Return the message of a line, as the library accepts it; None if the line is no message.

    JSON of JavaScript and Python has lone surrogates, which the library refuses: U+FFFD takes their
    place.

    Args:
        text, tail: a line, as `read_lines` yields it.
        message_bytes: maximum size of a message, for the text of the refusal.

    Raises:
        Refusal: the message is too large, or the library would refuse it.
    """
    if tail:
        raise Refusal(f"the result has over {message_bytes:_} bytes", find_id(text, tail))
    if not text.startswith(b"{"):
        return None
    if has_too_many_values(text):
        raise Refusal("the result has too many values", find_id(text, text))

    try:
        message = json.loads(text.decode())
    except (ValueError, RecursionError):
        if b'"jsonrpc"' not in text:
            return None
        raise Refusal(_UNREADABLE, find_id(text, text)) from None

    if "jsonrpc" not in message:
        return None
    if "method" not in message and not is_readable_answer(message):
        raise Refusal(_UNREADABLE, message.get("id"))

    # Most messages pass as they are. A pair of surrogates is a character, and passes too.
    if _ESCAPED_SURROGATE.search(text) is None:
        return text
    unescaped = json.dumps(message, ensure_ascii=False)
    repaired = replace_unstorable(unescaped)
    return text if repaired == unescaped else repaired.encode()


def is_readable_answer(message: dict[str, Any]) -> bool:
    """Return True if the library accepts a result or an error.

    It reports no other error, so that the call would wait until its time limit.
    """
    if message["jsonrpc"] != "2.0" or not is_id(message.get("id")) or is_deep(message):
        return False

    if "error" not in message:
        return isinstance(message.get("result"), dict)

    error = message["error"]
    if not isinstance(error, dict):
        return False
    return isinstance(error.get("code"), int) and isinstance(error.get("message"), str)


def is_id(value: object) -> bool:
    """Return True for a value that can be the id of a request."""
    return isinstance(value, int | str) and not isinstance(value, bool)


def is_deep(value: object) -> bool:
    """Return True if a value has more than `MAXIMUM_DEPTH` levels."""
    # Level by level: a recursive function would need a frame of Python for each.
    level = [value]
    for _ in range(MAXIMUM_DEPTH):
        next_level: list[object] = []
        for container in level:
            if isinstance(container, dict):
                next_level += container.values()
            elif isinstance(container, list):
                next_level += container

        if not next_level:
            return False
        level = next_level

    return True


def find_id(head: bytes, tail: bytes) -> int | None:
    """Return the id of the request that a result answers, by its first and last bytes.

    An id within the result is not taken for it: the id is the first member or the last one.
    """
    match = _FIRST_ID.match(head[:_EDGE_BYTES]) or _LAST_ID.search(tail[-_EDGE_BYTES:])
    return int(match[1]) if match is not None else None


def read_lines(source: IO[bytes], limit: int) -> Iterator[tuple[bytes, bytes]]:
    """Read lines of any length with bounded memory, without the white space around them.

    Yields:
        A line, and its tail: `b""` for a whole line. Of a line with over `limit` bytes the first
        `LOGGED_BYTES` and the last `_EDGE_BYTES` bytes.
    """
    while text := source.readline(limit + 1):
        tail = b""
        if len(text) > limit and not text.endswith(b"\n"):
            tail = text[-_EDGE_BYTES:]
            while piece := source.readline(_CHUNK_BYTES):
                tail = (tail + piece)[-_EDGE_BYTES:]
                if piece.endswith(b"\n"):
                    break
            text = text[:LOGGED_BYTES]

        yield text.strip(), tail


def describe_exit(code: int) -> str:
    """Return the end of a program as the reason of a failure."""
    if code >= 0:
        return f"its program ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"its program was ended by {signal.Signals(-code).name}"
    return f"its program was ended by signal {-code}"


def report(kind: Report, text: str | bytes = b"") -> None:
    """Write a report, unless agentctl has ended."""
    data = text.encode() if isinstance(text, str) else text
    with _reporting, contextlib.suppress(OSError):
        write(2, b"%b %b\n" % (kind.encode(), data))


def write(descriptor: int, data: bytes) -> None:
    """Write all of the data to a file descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]
