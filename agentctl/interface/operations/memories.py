"""The declarations of the operations on memories; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import Annotated

from agentctl.interface.bodies import DeleteMemoriesBody, NewMemoryBody, UpdateMemoryBody
from agentctl.interface.declarations import Body, Path, operation
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

_MEMORY = "/memories/{memory_id}"


class MemoryDeclarations:
    """The operations on memories."""

    @operation("GET", _MEMORY, needs=NeedsScope("memories", "read", "memory_id"), tag="Memories")
    async def get_memory(self, memory_id: MemoryId) -> Document[MemoryRecord]:
        """Get a memory."""

    @operation("GET", "/memories", needs=NeedsScope("memories", "read"), tag="Memories")
    async def get_memories(self, filter: MemoryFilter) -> Document[MemoryPage]:
        """List memories.

        One page of the memories that the caller can see.
        """

    @operation(
        "POST",
        "/memories",
        needs=NeedsScope("memories", "write"),
        tag="Memories",
        body=Body(NewMemoryBody),
        status=201,
        errors=(429,),
    )
    async def create_memory(self, memory: NewMemory) -> Document[MemoryRecord]:
        """Create a memory.

        Stores a fact about the caller, or about another user if the caller is an administrator.
        """

    @operation(
        "PATCH",
        _MEMORY,
        needs=NeedsScope("memories", "write", "memory_id"),
        tag="Memories",
        body=Body(UpdateMemoryBody),
    )
    async def update_memory(
        self, memory_id: MemoryId, patch: MemoryPatch
    ) -> Document[MemoryRecord]:
        """Update a memory.

        Replaces the text or the topics. The given topics replace all topics.
        """

    @operation(
        "DELETE", _MEMORY, needs=NeedsScope("memories", "delete", "memory_id"), tag="Memories"
    )
    async def delete_memory(self, memory_id: MemoryId) -> None:
        """Delete a memory."""

    @operation(
        "DELETE",
        "/memories",
        needs=NeedsScope("memories", "delete"),
        tag="Memories",
        body=Body(DeleteMemoriesBody),
    )
    async def delete_memories(self, deletion: MemoryDeletion) -> None:
        """Delete several memories.

        Deletes all of the given memories, or none if one of them cannot be deleted. With `all`,
        deletes every memory of one user.
        """

    @operation("GET", "/memory_topics", needs=NeedsScope("memories", "read"), tag="Memories")
    async def get_memory_topics(self, *, user_id: UserId = None) -> Document[list[str]]:
        """List the topics of memories.

        Each topic of the memories that the caller can see, once, in alphabetical order.
        """
