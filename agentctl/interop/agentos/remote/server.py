"""The AgentOS server at a URL: its recognition, and the errors that name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentctl import errors
from agentctl.light_dataclass import dataclass
from agentctl.remote.connection import Connection

_VERSION = re.compile(r"\d+(\.\d+)*")


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
    address = connection.address
    mode = info.get("auth_mode")
    known_mode = mode if isinstance(mode, str) else "unknown"
    return AgentOS(address.base, address.prefix, version[:40], known_mode)
