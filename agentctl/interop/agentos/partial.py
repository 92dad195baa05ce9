"""The base of the backends for AgentOS, which implement some of the operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.errors import Unsupported
from agentctl.operations import Operations


class PartialOperations(Operations):
    """The base of backends of another product, which implement some of the `Operations`.

    A call of any other operation raises `Unsupported` with the name of the backend, also of one
    that is added to `Operations` later.

    Args:
        name: the subject of the error: `AgentOS 3.1.10`.
        place: the URL or the file, for the cause of the error.
    """

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place

    def build_missing_error(self, what: str, hint: str | None = None) -> Unsupported:
        """Build the error of an operation that the backend does not have.

        Args:
            what: completes the sentence "AgentOS 3.1.10 does not have …".
        """
        return Unsupported(
            f"{self.name} does not have {what}",
            cause=f"{self.place} is {self.name}, not agentctl",
            hint=hint,
        )

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Refuse an operation that the backend does not override.

        Raises:
            Unsupported: always.
        """
        what, hint = _WITHOUT_COUNTERPART.get(name, (f"the operation {name}", None))
        raise self.build_missing_error(what, hint)


_WITHOUT_COUNTERPART: dict[str, tuple[str, str | None]] = {
    "get_readiness": ("a readiness check", None),
    "get_me": ("a description of the caller", "`agentctl token inspect` reads a JWT"),
    "explain_auth": ("an explanation of its authorization", None),
    "get_audit": ("an audit log", None),
    "get_runs": (
        "a list of runs across sessions",
        "list the runs of a session with: agentctl sessions runs SESSION_ID",
    ),
    "get_run": (
        "a run by its id alone",
        "list the runs of its session with: agentctl sessions runs SESSION_ID",
    ),
    "summarize_session": ("a summary on demand", None),
}
"""Operations without a counterpart: the end of the error, and a hint."""
