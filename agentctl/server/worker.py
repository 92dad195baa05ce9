"""One of several processes of a server: `python -m agentctl.server.worker`, started by its parent.

The arguments are two file descriptors: the listening socket, and the line to the parent (see
`line`). When the line closes the parent is gone: the worker drains and ends as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agentctl.config.handover import settings_from_text
from agentctl.server.line import DRAIN, END, failure_to_line
from agentctl.server.listener import taken_over
from agentctl.server.log import log_to_stderr

if TYPE_CHECKING:
    from agentctl.server.serve import Server

__all__ = ["main"]

_CHUNK = 65_536


def main() -> None:
    """Serve until the parent says so, a signal does, or the parent is gone; ends the process."""
    listening, line = (taken_over(int(number)) for number in sys.argv[1:3])
    with listening, line:
        _work(listening, _Line(line))


def _work(listening: socket.socket, line: _Line) -> None:
    log_to_stderr(one_of_many=True)
    text = line.next()
    if text is None:
        sys.exit(1)
    settings = settings_from_text(text.decode())
    try:
        from agentctl.server.serve import serve_on

        serve_on(
            listening,
            settings,
            started=lambda: line.tell(ready=True),
            stopping=lambda runs: line.tell(stopping=runs),
            guided=line.guiding,
        )
    except Exception as failure:
        line.tell(failed=failure_to_line(failure))
        sys.exit(1)


class _Line:
    """The worker's end of the line."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._unread = b""

    def next(self) -> bytes | None:
        """Wait for a whole line; None when the parent is gone."""
        while b"\n" not in self._unread:
            if not self._read():
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def tell(self, **said: Any) -> None:
        """Send one object; nobody hears it when the parent is gone."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(said).encode() + b"\n")

    @contextlib.contextmanager
    def guiding(self, server: Server) -> Iterator[None]:
        """Have the server do what the parent says while the block lasts."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            if not self._read():
                loop.remove_reader(self._socket)
                server.leave()
            *whole, self._unread = self._unread.split(b"\n")
            for line in whole:
                {DRAIN: server.drain, END: server.end}[line]()

        loop.add_reader(self._socket, hear)
        try:
            yield
        finally:
            loop.remove_reader(self._socket)

    def _read(self) -> bool:
        """Take what was sent; False at the end of the line."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            return False
        self._unread += data
        return bool(data)


if __name__ == "__main__":
    main()
