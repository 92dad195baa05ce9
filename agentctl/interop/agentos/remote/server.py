"""The AgentOS server at a URL: its recognition, its known faults, the errors that name it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentctl import errors
from agentctl.interface.operations.partial import Fault
from agentctl.light_dataclass import dataclass
from agentctl.remote.connection import Connection

_VERSION = re.compile(r"\d+(\.\d+)*")


_SCOPES_FIXED = (3, 1)
"""The release from which scopes are checked below a root path."""

_RUNS_ARE_ROWS = (3,)

_SESSIONS_KEPT = (2, 7, 4)


@dataclass(frozen=True, slots=True)
class AgentOS:
    """A recognised server.

    Attributes:
        prefix: the path under which it is mounted; empty at the root of its host.
        version: the version of the package `agno`, such as `3.1.10`.
        auth_mode: `none`, `security_key` or `jwt`.
    """

    url: str
    prefix: str
    version: str
    auth_mode: str

    def __str__(self) -> str:
        return f"AgentOS {self.version}"

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the version, to compare: `(3, 1, 10)`."""
        found = _VERSION.match(self.version)
        return tuple(int(part) for part in found[0].split(".")) if found else ()

    def add_name(self, failure: errors.AgentctlError) -> errors.AgentctlError:
        """Return a failure that names the server in its cause."""
        if failure.cause is None or self.url not in failure.cause:
            place = f"{self.url} is {self}"
            failure.cause = place if failure.cause is None else f"{failure.cause} ({place})"
        return failure


def recognize(connection: Connection, info: Mapping[str, Any]) -> AgentOS | None:
    """Return the AgentOS server of a connection, None for any other server.

    `info` is its answer to `/info`, which is public on every release; empty without one.
    """
    version = info.get("agno_version")
    # A server of agentctl names its own version, too.
    if "interface_version" in info or not isinstance(version, str) or not _VERSION.match(version):
        return None
    address, mode = connection.address, info.get("auth_mode")
    known_mode = mode if isinstance(mode, str) else "unknown"
    return AgentOS(address.base, address.prefix, version[:40], known_mode)


def list_faults(server: AgentOS) -> Iterator[Fault]:
    """Yield the known faults of a server."""
    release = server.release
    if server.auth_mode == "none":
        yield Fault(
            "authorization",
            True,
            "it is off: everyone who reaches the server may read, run and delete",
            "set authorization=True and a verification key, or a security key",
        )
    elif server.auth_mode == "jwt":
        yield Fault(
            "authorization",
            False,
            "a token without exp never expires, and the issuer is not checked",
            "mint tokens with exp only, and set verify_audience",
        )
    if release < _SCOPES_FIXED:
        yield Fault(
            "authorization",
            bool(server.prefix) and server.auth_mode != "none",
            "below a root_path, or mounted in another application, no scopes are checked: any valid"
            " token may read and delete sessions and service accounts",
            "upgrade to agno 3.1 or later, or serve it at the root of a separate host",
        )
    yield Fault(
        "cancel",
        False,
        "cancels are kept in the memory of a process: with several workers a cancel that reaches"
        " another worker is lost, and is answered with 200",
        "serve with one worker, or configure a cancellation manager in Redis",
    )
    yield Fault(
        "cancel",
        False,
        "a cancel of any id is answered with 200, and the stream of a cancelled run ends with"
        " RunCompleted",
        "read the status of the run: agentctl runs get RUN_ID --session ID",
    )
    if release < _RUNS_ARE_ROWS:
        yield Fault(
            "sessions",
            True,
            "runs that work at the same time in one session overwrite each other",
            "upgrade to agno 3, or start one run at a time in a session",
        )
    if release < _SESSIONS_KEPT:
        yield Fault(
            "sessions",
            True,
            "creating a session with an existing id deletes the runs of that session",
            "upgrade to agno 2.7.4 or later",
        )
