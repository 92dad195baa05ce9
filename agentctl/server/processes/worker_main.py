"""A worker process of a server: `python -m agentctl.server.processes.worker_main`.

The arguments are three file descriptors: the listening socket, the line to the parent (see `line`),
and the one over which it asks for metrics (see `gathering`). When the line closes the parent is
gone: the worker drains and ends as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from agentctl.config.transfer import settings_from_text
from agentctl.server.observability.log import log_to_stderr
from agentctl.server.observability.metrics_channel import answer_metrics_requests
from agentctl.server.processes.listener import adopt_socket
from agentctl.server.processes.worker_channel import DRAIN, END, PROCEED, error_to_message

if TYPE_CHECKING:
    from agentctl.server.processes.serve import Server

__all__ = ["main"]

_RECEIVE_BYTES = 65_536


def main() -> None:
    """Serve until the parent says so, a signal does, or the parent is gone; ends the process."""
    listening, line, metrics = (adopt_socket(int(number)) for number in sys.argv[1:4])
    with listening, line, metrics:
        _serve_as_worker(listening, _ParentChannel(line, metrics))


def _serve_as_worker(listening: socket.socket, line: _ParentChannel) -> None:
    text = line.next()
    if text is None:
        sys.exit(1)
    settings = settings_from_text(text.decode())
    log_to_stderr(settings.log, one_of_many=True)
    try:
        from agentctl.server.processes.serve import serve_on_socket

        serve_on_socket(listening, settings, line)
    except Exception as failure:
        line.tell(failed=error_to_message(failure))
        sys.exit(1)


class _ParentChannel:
    """The worker's end of the line, and so the overseer of its server."""

    def __init__(self, ours: socket.socket, metrics: socket.socket) -> None:
        self._socket = ours
        self._metrics = metrics
        self._unread = b""
        self._alone = False
        self._go_on = asyncio.Event()

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

    def started(self) -> None:
        """Requests are answered."""
        self.tell(ready=True)

    def stopping(self, runs: int) -> None:
        """The server drains, and waits for so many runs."""
        self.tell(stopping=runs)

    def showing(self, text: Callable[[int], str]) -> AbstractAsyncContextManager[None]:
        """Tell the parent the metrics when it asks, while the block lasts."""
        return answer_metrics_requests(self._metrics, text)

    async def meet(self, seconds: float) -> None:
        """Wait until every worker has come as far, up to a time; not at all without a parent."""
        self._go_on.clear()
        if self._alone:
            return
        self.tell(waiting=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._go_on.wait(), seconds)

    @contextlib.contextmanager
    def guiding(self, server: Server) -> Iterator[None]:
        """Have the server do what the parent says while the block lasts."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._hear, server)
        try:
            yield
        finally:
            loop.remove_reader(self._socket)

    def _hear(self, server: Server) -> None:
        if not self._read():
            asyncio.get_running_loop().remove_reader(self._socket)
            self._alone = True
            self._go_on.set()
            server.leave()
        *whole, self._unread = self._unread.split(b"\n")
        orders = {DRAIN: server.drain, PROCEED: self._go_on.set, END: server.end}
        for line in whole:
            orders[line]()

    def _read(self) -> bool:
        """Take what was sent; False at the end of the line."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError:
            return False
        self._unread += data
        return bool(data)


if __name__ == "__main__":
    main()
