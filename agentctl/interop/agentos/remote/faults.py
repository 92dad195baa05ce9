"""Known faults of AgentOS servers that matter to their operators, for `agentctl doctor --url`.

They are those of the recognised release. What depends on the setup of the server and cannot be seen
from outside is a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.interface.operations.partial import Fault
from agentctl.interop.agentos.remote.server import AgentOS

_SCOPES_FIXED = (3, 1)
"""The release from which scopes are checked below a root path."""

_RUNS_ARE_ROWS = (3,)
_SESSIONS_KEPT = (2, 7, 4)


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
