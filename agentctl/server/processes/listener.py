"""Listening sockets: bound once, shown as a URL, inherited by worker processes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from agentctl.config.extras import build_extra_command
from agentctl.config.settings import Settings
from agentctl.errors import PortInUse, Unavailable, UsageError
from agentctl.records.hosts import split_address
from agentctl.server.processes.service_manager import take_socket

METRICS_PATH = "/metrics"

_server_ports: set[int] = set()
"""The ports of the listening sockets of this process."""

_channels = weakref.WeakSet[socket.socket]()
"""The sockets to the supervisor."""

_PEER_OPTIONS = {
    "TCP_KEEPIDLE": 60,  # seconds without data until the first probe
    "TCP_KEEPINTVL": 10,  # seconds between probes
    "TCP_KEEPCNT": 6,  # probes without a response
    "TCP_USER_TIMEOUT": 120_000,  # milliseconds that sent data may stay unacknowledged
}
"""A client that vanished, such as a laptop that was closed, is disconnected after two minutes."""

BACKLOG = 2048
"""Connections that wait in the kernel until a process accepts them."""


class Announcements(NamedTuple):
    """Receivers of what a server announces."""

    start: Callable[[str], None]
    """Receives the base URL when every process accepts requests."""

    stop: Callable[[int | None], None]
    """Receives the number of live runs after the first signal.

    None if a worker did not report in time. Its OSError is ignored: the reader of stdout may be
    gone, such as `tee` after a Ctrl-C for both.
    """

    metrics: Callable[[str], None]
    """Receives the URL of the metrics before the start, if they are configured."""


@contextlib.contextmanager
def open_listeners(
    settings: Settings, announcements: Announcements
) -> Iterator[tuple[socket.socket, socket.socket | None]]:
    """Bind the socket for requests, and the one for metrics if it is configured.

    A socket for requests that a service manager has bound is used instead of `settings.server`.

    Raises:
        UsageError: the package for metrics is missing, a host is not an address of this machine,
            or the process may not bind a port.
        PortInUse: another program listens on a port.
    """
    with contextlib.ExitStack() as stack:
        metrics = None
        if settings.metrics.listen:
            if find_spec("prometheus_client") is None:
                raise UsageError(
                    "[metrics] needs a package that is not installed: prometheus-client",
                    hint=f'{build_extra_command("metrics")}, or listen = "" in [metrics]',
                )
            address = split_address(settings.metrics.listen)
            metrics = stack.enter_context(bind_socket(*address, key="metrics.listen"))

        passed_socket = take_socket()
        if passed_socket is None:
            listener = bind_socket(settings.server.host, settings.server.port)
        else:
            listener = _prepare_listener(passed_socket)
        requests = stack.enter_context(listener)

        if metrics is not None:
            announcements.metrics(base_url(metrics) + METRICS_PATH)
        yield requests, metrics


def bind_socket(host: str, port: int, *, key: str | None = None) -> socket.socket:
    """Return a listening socket that child processes do not inherit.

    Args:
        host: a name or address of this machine.
        port: 0 selects a free port.
        key: the configuration key of the address, for error messages; None for `server.host` and
            `server.port`, which have command line options too.

    Raises:
        PortInUse: another program listens on the port.
        UsageError: the host is not an address of this machine, or the process may not bind the
            port.
    """
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise _unknown_host_error(host, key) from error

    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        return _prepare_listener(listener)
    except OSError as error:
        listener.close()
        raise _bind_error(error, host, port, key) from error


def _prepare_listener(listener: socket.socket) -> socket.socket:
    """Set the options of a bound socket, and let it listen; return it."""
    # Accepted connections inherit these options. A system without one of them uses its default.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PEER_OPTIONS.items():
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)

    listener.listen(BACKLOG)
    listener.set_inheritable(False)
    _server_ports.add(listener.getsockname()[1])
    return listener


def adopt_socket(number: int) -> socket.socket:
    """Return the socket of an inherited file descriptor. Child processes do not inherit it."""
    inherited = socket.socket(fileno=number)
    inherited.set_inheritable(False)
    if inherited.family == socket.AF_UNIX:
        _channels.add(inherited)
    else:
        _server_ports.add(inherited.getsockname()[1])
    return inherited


def _release_sockets() -> None:
    """Release the sockets of the server in a forked child, such as one of a process pool of a tool.

    A child that outlives a killed server would keep the port and the connections open. The
    descriptors keep their numbers, because objects of the parent's event loop refer to them.
    """
    if not _server_ports:
        return

    null_device = os.open(os.devnull, os.O_RDWR)
    channel_numbers = {channel.fileno() for channel in _channels}
    for path in list(Path("/dev/fd").iterdir()):
        # The folder itself was open while it was listed.
        with contextlib.suppress(OSError):
            number = int(path.name)
            if number in channel_numbers or _is_server_socket(number):
                os.dup2(null_device, number, inheritable=False)
    os.close(null_device)


def _is_server_socket(number: int) -> bool:
    """Return True for a listening socket of the server, and for a connection to one."""
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return False
    candidate = socket.socket(fileno=number)
    try:
        is_inet = candidate.family in (socket.AF_INET, socket.AF_INET6)
        return is_inet and candidate.getsockname()[1] in _server_ports
    finally:
        # It must not close the descriptor.
        candidate.detach()


os.register_at_fork(after_in_child=_release_sockets)


def base_url(listener: socket.socket) -> str:
    """Return the URL of a listening socket, with its actual port."""
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"http://{name}:{port}"


def _unknown_host_error(host: str, key: str | None) -> Exception:
    hint = f"see {key}" if key else "see host in [server], or --host"
    return UsageError(f"{host} is not an address of this machine", hint=hint)


def _bind_error(error: OSError, host: str, port: int, key: str | None) -> Exception:
    """Return the error of a failed bind, with the way to another address."""
    if error.errno == errno.EADDRINUSE:
        way = f"with {key}" if key else "with --port"
        if key is None and port < 65_535:
            # The variable works for commands that start the server, such as `make demo`, too.
            way += f", for example --port {port + 1}, or with AGENTCTL_SERVER__PORT={port + 1}"
        return PortInUse(
            f"port {port} on {host} is in use",
            cause="another program listens there",
            hint=f"stop it, or choose another {way}",
        )

    if error.errno == errno.EACCES:
        return UsageError(
            f"port {port} on {host} needs more privileges", hint="choose a port from 1024 on"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return _unknown_host_error(host, key)
    return Unavailable(
        f"cannot listen on {host}, port {port}", cause=os.strerror(error.errno or 0).lower()
    )
