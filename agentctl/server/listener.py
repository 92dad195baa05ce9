"""The listening socket: taken once, shown as a URL, handed from a parent to its workers."""

from __future__ import annotations

import errno
import os
import socket

from agentctl.errors import PortInUse, Unavailable, UsageFailed

__all__ = ["base_url", "bind", "taken_over"]

BACKLOG = 2048
"""Connections that the kernel keeps waiting."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Programs that this process starts do not get it.

    Raises:
        PortInUse: another program listens there.
        UsageFailed: the host is no address of this machine, or the port may not be taken.
    """
    listener = _unbound(host)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        raise _refusal(error, host, port) from error
    return listener


def taken_over(number: int) -> socket.socket:
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


def _unbound(host: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise UsageFailed(
            f"{host} is no address of this machine", hint="see host in [server], or --host"
        ) from error
    return socket.socket(family, socket.SOCK_STREAM)


def _refusal(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(
            f"port {port} on {host} is in use",
            cause="another program listens there",
            hint=f"stop it, or choose another with --port, for example --port {port + 1}"
            if port < 65_535
            else "stop it, or choose another with --port",
        )
    if error.errno == errno.EACCES:
        return UsageFailed(
            f"port {port} on {host} needs more rights", hint="choose a port from 1024 on"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageFailed(
            f"{host} is no address of this machine", hint="see host in [server], or --host"
        )
    return Unavailable(f"cannot listen on {host}, port {port}", cause=os.strerror(error.errno or 0))
