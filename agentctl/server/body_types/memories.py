"""Bodies of the operations on memories."""

from __future__ import annotations

from typing import Annotated, Required

from typing_extensions import TypedDict

from agentctl.interface.requests.memories import MAXIMUM_MEMORIES_DELETED
from agentctl.records.memories import MAXIMUM_MEMORY_LENGTH, MAXIMUM_TOPIC_LENGTH, MAXIMUM_TOPICS
from agentctl.server.bodies import Field

Topic = Annotated[str, Field(min_length=1, max_length=MAXIMUM_TOPIC_LENGTH, pattern="^[^,]+$")]
MemoryText = Annotated[
    str, Field(min_length=1, max_length=MAXIMUM_MEMORY_LENGTH, description="Text of the memory")
]


class NewMemoryBody(TypedDict, total=False):
    """A memory to store."""

    memory: Required[MemoryText]
    topics: Annotated[
        list[Topic] | None, Field(max_length=MAXIMUM_TOPICS, description="Topics of the memory")
    ]
    user_id: Annotated[
        str | None, Field(min_length=1, description="Owner of the memory; administrators only")
    ]
    agent_id: Annotated[str | None, Field(description="Id of the agent that it is from")]
    team_id: Annotated[str | None, Field(description="Id of the team that it is from")]


class UpdateMemoryBody(TypedDict, total=False):
    """New values for a memory. Each given value replaces the whole stored value."""

    memory: MemoryText
    topics: Annotated[
        list[Topic], Field(max_length=MAXIMUM_TOPICS, description="Topics of the memory")
    ]


class DeleteMemoriesBody(TypedDict, total=False):
    """Memories to delete: those with the ids, all or none; or every memory of a user."""

    memory_ids: Annotated[
        list[str] | None,
        Field(
            min_length=1,
            max_length=MAXIMUM_MEMORIES_DELETED,
            description="Ids of the memories; not with `all`",
        ),
    ]
    user_id: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Only memories of this user; required with `all` for administrators",
        ),
    ]
    all: Annotated[bool, Field(description="Delete every memory of the user", default=False)]
