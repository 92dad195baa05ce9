"""Records of idle sessions and of their removal (docs/contract.md "Retention")."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.audit import CursorMeta
from agentctl.records.kinds import ComponentKind
from agentctl.records.times import Timestamp

IdleState = Literal["idle", "held", "busy"]
"""`idle`: it can be removed; `held`: by an administrator; `busy`: it has a live or paused run."""


class IdleSession(TypedDict):
    """A session that was not used for a time.

    The one of `agent_id`, `team_id` and `workflow_id` that `session_type` names is filled.
    `run_count` counts all runs, `bytes` the texts of the session and of its runs.
    """

    session_id: str
    session_type: ComponentKind
    agent_id: str | None
    team_id: str | None
    workflow_id: str | None
    user_id: str | None
    run_count: int
    bytes: int
    updated_at: Timestamp
    state: IdleState


class IdlePage(TypedDict):
    """A page of idle sessions, those that were not used for longest first."""

    data: list[IdleSession]
    meta: CursorMeta


class PruneRecord(TypedDict):
    """The end of a removal: each of the requested ids is in one of the lists.

    `removed` do not exist any more, `held` are held, `busy` have a live or paused run, `used` were
    used in the meantime, and `missing` did not exist.
    """

    removed: list[str]
    held: list[str]
    busy: list[str]
    used: list[str]
    missing: list[str]


def hash_ids(ids: Sequence[str]) -> str:
    """Return `sha256:` and the hash of some ids: sorted, each in UTF-8 with a line feed."""
    text = "".join(f"{each}\n" for each in sorted(ids))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
