"""Requests of the operations that repeat a run; see `agentctl.interface.requests`."""

from __future__ import annotations

from typing import Any

from agentctl.interface.requests.approvals import IdempotencyKey
from agentctl.light_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRequest:
    """The retry of a run that has ended.

    Attributes:
        confirm: `confirm` of the plan that was shown; required if the run repeats effects.
        output_schema, dependencies: as of `RunRequest`; those of the origin are not stored.
    """

    background: bool = False
    confirm: str | None = None
    output_schema: dict[str, Any] | None = None
    dependencies: dict[str, Any] | None = None
    idempotency_key: IdempotencyKey = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest(RetryRequest):
    """The fork of a run that has ended, after its first `at` messages.

    Attributes:
        message: the next message; None repeats that of the run, or goes on after its tool calls.
        agent_id, team_id: another component, which gets the conversation; None for that of the run.
        session_id: the session of the run, or a new one, which None creates.
    """

    at: int
    message: str | None = None
    agent_id: str | None = None
    team_id: str | None = None
    session_id: str | None = None
