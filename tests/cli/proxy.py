"""A way to a server that breaks off, or that is away: what lies between a client and it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

__all__ = ["Proxy", "proxied"]


class Proxy:
    """Passes connections on to a server.

    Attributes:
        url: of this end.
        port: of this end.
        cut: how many connections it has broken off.
    """

    def __init__(self, target: str, cut_behind: bytes, times: int, port: int) -> None:
        self._target = urlsplit(target)
        self._cut_behind = cut_behind
        self._times = times
        self.cut = 0
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        """Take connections until `close`."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            assert self._target.hostname is not None
            server = socket.create_connection((self._target.hostname, self._target.port or 80))
            self._ends += (client, server)
            for source, sink in ((client, server), (server, client)):
                back = source is server
                threading.Thread(target=self._pass, args=(source, sink, back), daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _pass(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        with contextlib.suppress(OSError), source, sink:
            seen = b""
            while data := source.recv(65_536):
                sink.sendall(data)
                seen += data
                if back and self.cut < self._times and self._cut_behind in seen:
                    self.cut += 1
                    break
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxied(
    target: str, *, cut_behind: bytes = b"", times: int = 0, port: int = 0
) -> Iterator[Proxy]:
    """A proxy that breaks connections off once a text has come back over them.

    At the end of the block it breaks all of them off, as a server that is killed.

    Args:
        target: URL of the server.
        times: how often it does so; later connections are left alone.
        port: by default a free one.
    """
    proxy = Proxy(target, cut_behind, times, port)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
