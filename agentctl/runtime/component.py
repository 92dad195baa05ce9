"""A configured agent, team or workflow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from agentctl.config.settings import Agent, Team, Workflow
    from agentctl.records.kinds import ComponentKind, OnBusy


class ComponentVersion(NamedTuple):
    """The version of a component (docs/versions.md), with the JSON from which it is made."""

    version: str
    configuration: str


@dataclass(frozen=True)
class Component:
    """One agent, team or workflow."""

    kind: ComponentKind
    id: str
    name: str
    description: str

    database: str
    """Id of the database with its sessions."""

    on_busy: OnBusy
    """The response to a second run in a session that has a live run."""

    history_runs: int
    """Number of earlier runs of the session that the model receives."""

    spec: Agent | Team | Workflow
    """Its table of the configuration, or the table of its `next`, which answers in its place."""

    @property
    def queues_when_busy(self) -> bool:
        """True if a run of a busy session waits in the queue, unless it becomes a message."""
        return self.on_busy in ("enqueue", "steer")

    @property
    def label(self) -> str:
        """Its kind and id, as in errors: `agent writer`."""
        return f"{self.kind} {self.id}"

    @cached_property
    def key(self) -> str:
        """The kind, and the id of its table: what its runs share in this process."""
        return f"{self.kind} {self.spec.id}"

    @property
    def agent(self) -> Agent:
        return cast("Agent", self.spec)

    @property
    def team(self) -> Team:
        return cast("Team", self.spec)

    @property
    def workflow(self) -> Workflow:
        return cast("Workflow", self.spec)

    @property
    def worker(self) -> Agent | Team:
        """The table of an agent, or of a team, whose leader works as an agent does."""
        return cast("Agent | Team", self.spec)
