"""Requests of the operations on memories: filter, new memory, changes and deletion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import Page, UserId

MAXIMUM_MEMORIES_DELETED = 100
"""Memories of one deletion by id."""


@dataclass(frozen=True, slots=True)
class MemoryFilter:
    """The filter of a list of memories."""

    user_id: UserId = None
    agent_id: Annotated[
        str | None,
        Query("Only memories that this agent stored"),
        Option("--agent", "ID", "Filter by agent"),
    ] = None
    team_id: Annotated[
        str | None,
        Query("Only memories that this team stored"),
        Option("--team", "ID", "Filter by team"),
    ] = None
    topics: Annotated[
        tuple[str, ...],
        Query("Only memories with each of these topics, separated by commas"),
        Option("--topic", "TOPIC", "Filter by topic (repeatable: all of them)"),
    ] = ()
    search_content: Annotated[
        str | None,
        Query("Only memories with each of these words, or with words that begin so"),
        Option("--search", "TEXT", "Filter by words, or beginnings of words"),
    ] = None
    page: Page = field(default_factory=lambda: Page(sort_by="updated_at"))


@dataclass(frozen=True, slots=True)
class NewMemory:
    """A memory to store. `user_id` None: the caller's own."""

    memory: str
    topics: tuple[str, ...] = ()
    user_id: str | None = None
    agent_id: str | None = None
    team_id: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPatch:
    """New values of a memory; None: unchanged. The topics replace all topics."""

    memory: str | None = None
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class MemoryDeletion:
    """Memories to delete: those with the ids, all or none; or with `all` every one of a user.

    Attributes:
        memory_ids: at most `MAXIMUM_MEMORIES_DELETED` ids; not together with `all`.
        user_id: limits the deletion to the memories of this user. An administrator must name the
            user with `all`; for other callers it is the caller.
    """

    memory_ids: tuple[str, ...] = ()
    user_id: str | None = None
    all: bool = False
