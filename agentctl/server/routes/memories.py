"""Operations on memories (docs/contract.md "Memories")."""

from __future__ import annotations

from typing import Annotated, Literal

from starlette.responses import Response

from agentctl.errors import BadRequest, UnsupportedMediaType, ValidationFailed
from agentctl.records.memories import MemoryPage, MemoryRecord
from agentctl.requests import (
    DEFAULT_LIMIT,
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
    Page,
)
from agentctl.server.answers import document_response, no_content_response
from agentctl.server.bodies import RequestBody
from agentctl.server.parameters import Path, Query
from agentctl.server.requests import DeleteMemoriesBody, NewMemoryBody, UpdateMemoryBody
from agentctl.server.routes.declared import AfterCursor, Limit, PageNumber, SortOrder, UserId
from agentctl.server.routing import Operation
from agentctl.server.state import Call

MemoryId = Annotated[str, Path("Id of the memory")]

_NEW = RequestBody(NewMemoryBody)
_UPDATE = RequestBody(UpdateMemoryBody)
_DELETE = RequestBody(DeleteMemoriesBody)


async def get_memories(
    call: Call,
    user_id: UserId = None,
    agent_id: Annotated[str | None, Query("Only memories that this agent stored")] = None,
    team_id: Annotated[str | None, Query("Only memories that this team stored")] = None,
    topics: Annotated[
        str | None, Query("Only memories with each of these topics, separated by commas")
    ] = None,
    search_content: Annotated[
        str | None, Query("Only memories with each of these words, or with words that begin so")
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: AfterCursor = None,
    sort_by: Annotated[
        Literal["created_at", "updated_at"], Query("Field to sort by")
    ] = "updated_at",
    sort_order: SortOrder = "desc",
) -> Response:
    """List memories.

    One page of the memories that the caller can see.
    """
    wanted = tuple(topic for topic in (topics or "").split(",") if topic)
    part = Page(limit, page, cursor, sort_by, sort_order)
    return document_response(
        await call.operations.get_memories(
            MemoryFilter(user_id, agent_id, team_id, wanted, search_content, part)
        )
    )


async def create_memory(call: Call) -> Response:
    """Create a memory.

    Stores a fact about the caller, or about another user if the caller is an administrator.
    """
    body = await _NEW.read(call)
    memory = NewMemory(
        memory=body["memory"],
        topics=tuple(body.get("topics") or ()),
        user_id=body.get("user_id"),
        agent_id=body.get("agent_id"),
        team_id=body.get("team_id"),
    )
    return document_response(await call.operations.create_memory(memory), 201)


async def get_memory(call: Call, memory_id: MemoryId) -> Response:
    """Get a memory."""
    return document_response(await call.operations.get_memory(memory_id))


async def update_memory(call: Call, memory_id: MemoryId) -> Response:
    """Update a memory.

    Replaces the text or the topics. The given topics replace all topics.
    """
    return await change_memory(call, memory_id, _UPDATE)


async def change_memory(call: Call, memory_id: str, form: RequestBody) -> Response:
    """Change a memory as a body requests; report a missing memory before an invalid body.

    Args:
        form: reads the body: an `UpdateMemoryBody`, or one with more fields.
    """
    try:
        body = await form.read(call)
    except (BadRequest, UnsupportedMediaType, ValidationFailed):
        await call.operations.require_memory(memory_id)
        raise
    topics = body.get("topics")
    patch = MemoryPatch(body.get("memory"), None if topics is None else tuple(topics))
    return document_response(await call.operations.update_memory(memory_id, patch))


async def delete_memory(call: Call, memory_id: MemoryId) -> Response:
    """Delete a memory."""
    await call.operations.delete_memory(memory_id)
    return no_content_response()


async def delete_memories(call: Call) -> Response:
    """Delete several memories.

    Deletes all of the given memories, or none if one of them cannot be deleted. With `all`, deletes
    every memory of one user.
    """
    body = await _DELETE.read(call)
    deletion = MemoryDeletion(
        tuple(body.get("memory_ids") or ()), body.get("user_id"), body.get("all", False)
    )
    await call.operations.delete_memories(deletion)
    return no_content_response()


async def get_memory_topics(call: Call, user_id: UserId = None) -> Response:
    """List the topics of memories.

    Each topic of the memories that the caller can see, once, in alphabetical order.
    """
    return document_response(await call.operations.get_memory_topics(user_id=user_id))


def build_operations() -> list[Operation]:
    """Return the operations on memories."""
    tag = "Memories"
    errors = (413, 415)
    return [
        Operation(get_memory, tag=tag, result=MemoryRecord),
        Operation(get_memories, tag=tag, result=MemoryPage),
        Operation(
            create_memory, tag=tag, result=MemoryRecord, status=201, errors=errors, body=_NEW
        ),
        Operation(update_memory, tag=tag, result=MemoryRecord, errors=errors, body=_UPDATE),
        Operation(delete_memory, tag=tag, status=204),
        Operation(delete_memories, tag=tag, status=204, errors=errors, body=_DELETE),
        Operation(get_memory_topics, tag=tag, result=list[str]),
    ]
