"""The operations on memories; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from agentctl.interface.bodies import DeleteMemoriesBody, NewMemoryBody, UpdateMemoryBody
from agentctl.interface.declarations import Body, Family, Path, operation
from agentctl.interface.requests import UserId
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.interface.requirements import NeedsScope
from agentctl.records.document import Document
from agentctl.records.memories import MemoryPage, MemoryRecord

MemoryId = Annotated[str, Path("Id of the memory", "memory")]

# A method of the family is named `list`.
TopicNames = list[str]

_MEMORY = "/memories/{memory_id}"


class MemoriesFamily(Family):
    """The operations on memories."""

    @operation(
        "get_memory",
        "GET",
        _MEMORY,
        needs=NeedsScope("memories", "read", "memory_id"),
        tag="Memories",
    )
    async def get(self, memory_id: MemoryId) -> Document[MemoryRecord]:
        """Get a memory."""

    @operation(
        "get_memories", "GET", "/memories", needs=NeedsScope("memories", "read"), tag="Memories"
    )
    async def list(self, filter: MemoryFilter) -> Document[MemoryPage]:
        """List memories.

        One page of the memories that the caller can see.
        """

    @operation(
        "create_memory",
        "POST",
        "/memories",
        needs=NeedsScope("memories", "write"),
        tag="Memories",
        body=Body(NewMemoryBody),
        status=201,
        errors=(429,),
    )
    async def create(self, memory: NewMemory) -> Document[MemoryRecord]:
        """Create a memory.

        Stores a fact about the caller, or about another user if the caller is an administrator.
        """

    @operation(
        "update_memory",
        "PATCH",
        _MEMORY,
        needs=NeedsScope("memories", "write", "memory_id"),
        tag="Memories",
        body=Body(UpdateMemoryBody),
    )
    async def update(self, memory_id: MemoryId, patch: MemoryPatch) -> Document[MemoryRecord]:
        """Update a memory.

        Replaces the text or the topics. The given topics replace all topics.
        """

    @operation(
        "delete_memory",
        "DELETE",
        _MEMORY,
        needs=NeedsScope("memories", "delete", "memory_id"),
        tag="Memories",
    )
    async def delete(self, memory_id: MemoryId) -> None:
        """Delete a memory."""

    @operation(
        "delete_memories",
        "DELETE",
        "/memories",
        needs=NeedsScope("memories", "delete"),
        tag="Memories",
        body=Body(DeleteMemoriesBody),
    )
    async def delete_several(self, deletion: MemoryDeletion) -> None:
        """Delete several memories.

        Deletes all of the given memories, or none if one of them cannot be deleted. With `all`,
        deletes every memory of one user.
        """

    @operation(
        "get_memory_topics",
        "GET",
        "/memory_topics",
        needs=NeedsScope("memories", "read"),
        tag="Memories",
    )
    async def list_topics(self, *, user_id: UserId = None) -> Document[TopicNames]:
        """List the topics of memories.

        Each topic of the memories that the caller can see, once, in alphabetical order.
        """
