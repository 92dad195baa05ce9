"""Sessions of MCP, for protocols before 2026-07-28: an id that every worker and server can read.

Nothing is stored for a session. Its id names the owner and the beginning of the ids of its runs,
and the id of a request names the rest. So every process finds the run of a call where runs are, in
the database, and a cancel of the call is a cancel of that run. The id is not a credential: each
request is authenticated, and reaches only what its caller can see.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Self

from agentctl.errors import NotFound
from agentctl.light_dataclass import dataclass
from agentctl.records.ids import new_id

SESSION_HEADER = "Mcp-Session-Id"

_PREFIX_LENGTH = 24
"""Characters of an id of a run before its last group of 12 hexadecimal digits."""

_FORM = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-)([aq])([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class McpSession:
    """An open session: the beginning of the ids of its runs, and if its client can ask its user."""

    prefix: str
    owner: str
    asks: bool

    @classmethod
    def open(cls, owner: str, *, asks: bool) -> Self:
        """Return a new session of a caller."""
        return cls(new_id()[:_PREFIX_LENGTH], owner, asks)

    @classmethod
    def read(cls, session_id: str, owner: str) -> Self:
        """Return the session with an id; NotFound if it is not that of a session of this caller."""
        match = _FORM.fullmatch(session_id)
        if match is not None:
            session = cls(match[1], owner, match[2] == "a")
            if session.id == session_id:
                return session
        raise NotFound("Session not found")

    @property
    def id(self) -> str:
        kind = "a" if self.asks else "q"
        return f"{self.prefix}{kind}{_hash(self.prefix, self.owner)[:32]}"

    def find_run_id(self, request_id: int | str) -> str:
        """Return the id of the run of a request."""
        return f"{self.prefix}{_hash(self.prefix, request_id)[:12]}"


def _hash(*values: int | str) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
