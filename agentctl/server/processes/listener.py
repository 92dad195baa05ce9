"""The listening socket: taken once, shown as a URL, handed from a parent to its workers."""

from __future__ import annotations

import errno
import os
import socket

from agentctl.errors import PortInUse, Unavailable, UsageError

__all__ = ["adopt_socket", "base_url", "bind_socket"]

BACKLOG = 2048
"""Connections that the kernel keeps waiting."""


def bind_socket(host: str, port: int, *, key: str | None = None) -> socket.socket:
    """A listening socket. Programs that this process starts do not get it.

    Args:
        host, port: where; port 0 takes any that is free.
        key: of the configuration, that says so; None: those that have options as well.

    Raises:
        PortInUse: another program listens there.
        UsageFailed: the host is no address of this machine, or the port may not be taken.
    """
    listener = _create_socket(host, key)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        raise _bind_error(error, host, port, key) from error
    return listener


def adopt_socket(number: int) -> socket.socket:
    """The socket behind a file descriptor that the parent process left open for this one.

    Programs that this process starts do not get it.
    """
    handed = socket.socket(fileno=number)
    handed.set_inheritable(False)
    return handed


def base_url(listener: socket.socket) -> str:
    """The URL of what listens there, with the port that it really has."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"http://{shown}:{port}"


def _create_socket(host: str, key: str | None) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise _unknown_host_error(host, key) from error
    return socket.socket(family, socket.SOCK_STREAM)


def _unknown_host_error(host: str, key: str | None) -> Exception:
    hint = f"see {key}" if key else "see host in [server], or --host"
    return UsageError(f"{host} is no address of this machine", hint=hint)


def _bind_error(error: OSError, host: str, port: int, key: str | None) -> Exception:
    if error.errno == errno.EADDRINUSE:
        another = f"with {key}" if key else "with --port"
        if key is None and port < 65_535:
            another += f", for example --port {port + 1}"
        return PortInUse(
            f"port {port} on {host} is in use",
            cause="another program listens there",
            hint=f"stop it, or choose another {another}",
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"port {port} on {host} needs more rights", hint="choose a port from 1024 on"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return _unknown_host_error(host, key)
    return Unavailable(f"cannot listen on {host}, port {port}", cause=os.strerror(error.errno or 0))
