"""The service manager that started the server: its socket, and the states that it receives.

systemd and compatible managers pass a listening socket (`LISTEN_FDS`, sd_listen_fds(3)) and a
datagram socket for states (`NOTIFY_SOCKET`, sd_notify(3)). Without their variables nothing here has
an effect. The variables are removed from the environment when they are read, because they are not
for the child processes of the server (decision 87).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from agentctl.errors import UsageError

_FIRST_DESCRIPTOR = 3
"""Number of the first passed descriptor, SD_LISTEN_FDS_START."""

_BEATS_PER_INTERVAL = 2
"""Signs of life in the time after which the manager kills the server."""

LEAVE_SECONDS = 10.0
"""Time for requests on connections that are open when the port is released.

And once more for connections that are open when the runs have ended. A connection ends earlier by
itself: without a first request after `transport.connection.HEADER_SECONDS`, kept alive after five
seconds.
"""

_NUMBER = re.compile(r"[1-9][0-9]{0,18}")
"""A positive number of 64 bits. `isdigit` accepts other digits as well, and any number of them."""

_SEND_SECONDS = 0.2
"""Time to wait for a manager that does not read its states."""


@functools.cache
def take_socket() -> socket.socket | None:
    """Return the listening socket that the service manager passed, always the same one.

    The manager keeps it open. A server that stops closes its descriptor at once: connections then
    wait in the kernel for the next process, or are accepted by another one with the same socket.

    Raises:
        UsageError: it passed several sockets, or one that is not a TCP socket.
    """
    process_id = os.environ.pop("LISTEN_PID", "")
    count = os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    # Of another process: a parent of this one has kept the variables.
    if process_id != str(os.getpid()) or not _NUMBER.fullmatch(count):
        return None

    if int(count) != 1:
        raise UsageError(
            f"the service manager passed {int(count)} sockets, but the server has one",
            hint="keep one ListenStream= in the socket unit",
        )

    listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
    listener.set_inheritable(False)
    is_tcp = listener.type == socket.SOCK_STREAM and listener.family != socket.AF_UNIX
    if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise UsageError(
            "the service manager passed a socket that is not a listening TCP socket",
            hint="set ListenStream=ADDRESS:PORT and Accept=no in the socket unit",
        )
    return listener


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The receiver of the states of this process."""

    address: str | None = None
    """Its datagram socket; None without a service manager."""

    watchdog_seconds: float | None = None
    """Time without a sign of life after which it kills the server, or None."""

    @classmethod
    def from_environment(cls) -> ServiceManager:
        """Return the manager of this process, and remove its variables from the environment."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        process_id = os.environ.pop("WATCHDOG_PID", None)
        if not _NUMBER.fullmatch(microseconds) or process_id not in (None, str(os.getpid())):
            return cls(address)
        return cls(address, int(microseconds) / 1_000_000)

    def notify(self, *states: str) -> None:
        """Send states, such as `READY=1`; a manager that is gone changes nothing."""
        if self.address is None:
            return

        # An address with @ is in the abstract namespace of Linux.
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.settimeout(_SEND_SECONDS)
            sender.sendto("\n".join(states).encode(), name)

    @contextlib.contextmanager
    def show_life(self) -> Iterator[None]:
        """Send signs of life from the running event loop while the block lasts.

        An event loop that does not come to its timers sends none, and the manager replaces the
        process.
        """
        if self.address is None or self.watchdog_seconds is None:
            yield
            return

        loop = asyncio.get_running_loop()
        pause = self.watchdog_seconds / _BEATS_PER_INTERVAL
        timer: asyncio.Handle

        def beat() -> None:
            nonlocal timer
            self.notify("WATCHDOG=1")
            timer = loop.call_later(pause, beat)

        timer = loop.call_soon(beat)
        try:
            yield
        finally:
            timer.cancel()
