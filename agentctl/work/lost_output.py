"""Output without a reader: the terminal has closed, the reader of a pipe has left.

A failed write to stderr must not end a command halfway, or fail a run whose tool prints. And Python
flushes the standard streams at its exit: with text left that cannot be written, the exit code would
be 120 in place of the true one.
"""

from __future__ import annotations

import io
import os

from agentctl import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, TextIO


def drop_lost_writes(stream: TextIO) -> TextIO:
    """Return a stream to the same file that drops what cannot be written, without an error.

    A later write succeeds again, for example after space on a full disk has become free. The given
    stream is flushed and remains open.

    Args:
        stream: stdout or stderr of the process. A stream without a file, such as the buffer of a
            test, is returned itself.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream

    try:
        number = stream.fileno()
    except OSError:
        return stream

    flush_or_drop(stream)

    raw: Any = _LossyFile(number, "wb", closefd=False)
    # As for Python's own streams: `python -u` and PYTHONUNBUFFERED=1 mean no buffer of bytes.
    buffer = raw if stream.write_through else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def flush_or_drop(stream: TextIO) -> None:
    """Write the text that a stream of the process has buffered; drop it if that fails.

    After a failure the null device is in the place of the file.
    """
    try:
        stream.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


class _LossyFile(io.FileIO):
    """A file for writing; bytes that it does not take are lost."""

    def write(self, data: bytes, /) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
