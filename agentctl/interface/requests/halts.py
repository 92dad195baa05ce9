"""Requests of the operations on halts; see `agentctl.interface.requests`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import Page
from agentctl.records.halts import HaltScope, HaltState

MAXIMUM_SCOPE_ID_LENGTH = 255
"""Characters of the id of a scope, as of a user id."""

HALT_WAIT = 15.0
"""Seconds that a new halt may wait for the servers, in addition to the time of other requests."""


@dataclass(frozen=True, slots=True)
class NewHalt:
    """A halt to create."""

    scope: HaltScope
    reason: str

    scope_id: str | None = None
    """The id of the agent, team, workflow or model, the name of the tool, or the user."""

    until: str | None = None
    """The time at which it ends by itself, as RFC 3339; None if an operator has to end it."""

    stop_running: bool = False
    """True to cancel the runs in its scope."""


@dataclass(frozen=True, slots=True)
class HaltFilter:
    """The filter of a list of halts, newest first."""

    state: Annotated[
        HaltState | None,
        Query("Only halts with this state"),
        Option("--state", "STATE", "Filter by state: active or ended", any_case=True),
    ] = None
    scope: Annotated[
        HaltScope | None,
        Query("Only halts of this kind of work"),
        Option(
            "--scope",
            "SCOPE",
            "Filter by scope: agent, team, workflow, tool, model, user or all",
            any_case=True,
        ),
    ] = None
    scope_id: Annotated[
        str | None,
        Query("Only halts of this agent, team, workflow, tool, model or user"),
        Option("--id", "ID", "Filter by the agent, team, workflow, tool, model or user"),
    ] = None
    page: Page = field(default_factory=Page)
