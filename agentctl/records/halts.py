"""Records of halts: work that must not begin until an operator ends them (docs/halts.md)."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.sessions import PageMeta
from agentctl.records.times import Timestamp

HaltScope = Literal["agent", "team", "workflow", "tool", "model", "user", "all"]

HaltState = Literal["active", "ended"]


class HaltRecord(TypedDict):
    """A halt: nothing in its scope begins while it is active."""

    halt_id: str

    scope: HaltScope
    """The kind of work that it stops."""

    scope_id: str | None
    """The id of the agent, team, workflow or model, the name of the tool, or the user.

    Null for the scope `all`.
    """

    reason: str

    stop_running: bool
    """True if the runs in its scope were cancelled when it was created."""

    state: HaltState

    created_by: str | None
    """The principal that created it; `system:breaker` for a halt that a breaker has written."""

    created_at: Timestamp

    until: Timestamp | None
    """The time at which it ends by itself; null if an operator has to end it."""

    ended_at: Timestamp | None

    ended_by: str | None
    """The principal that ended it; `system:until` if its time had come."""


class NewHaltRecord(HaltRecord):
    """A new halt, which all servers obey."""

    cancelled_runs: int
    """The runs whose cancel `stop_running` has requested."""


class HaltPage(TypedDict):
    """A page of halts."""

    data: list[HaltRecord]
    meta: PageMeta


class HaltNotice(TypedDict):
    """A halt that concerns the runs of a caller."""

    halt_id: str
    scope: HaltScope
    scope_id: str | None
    reason: str
    created_by: str | None
    created_at: Timestamp
    until: Timestamp | None
