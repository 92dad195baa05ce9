"""The memory operations (docs/contract.md "Memories")."""

from __future__ import annotations

import orjson

from agentctl import errors
from agentctl.config.quotas import Quotas
from agentctl.interface.operations.memories import MemoriesFamily
from agentctl.interface.requests.memories import (
    MAXIMUM_MEMORIES_DELETED,
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.records.document import Document, build_document
from agentctl.records.memories import MemoryPage, MemoryRecord, split_words
from agentctl.records.text import check_text, check_texts
from agentctl.records.times import now
from agentctl.service.documents import documents, paging
from agentctl.service.documents.documents import RecordWriter
from agentctl.service.family import OperationFamily
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import memories
from agentctl.store.repositories.memories import MemoryRow
from agentctl.store.repositories.quotas import check_added
from agentctl.store.visibility import Visibility

_MEMORY = RecordWriter(MemoryRecord, MemoryRow, computed=["topics"])


class MemoryOperations(OperationFamily, MemoriesFamily):
    """Operations on the memories of users, which are in the system database."""

    async def create(self, memory: NewMemory) -> Document[MemoryRecord]:
        async with self.audit("create_memory") as call:
            owner = self.lookups.require_owner(memory.user_id)
            if owner is None:
                raise errors.BadRequest(
                    "A memory belongs to a user, and the caller has no subject",
                    hint="use a token with a subject, or name the user as an administrator",
                )

            check_texts(agent_id=memory.agent_id, team_id=memory.team_id)
            row = memories.build_memory(
                owner,
                memory.memory,
                memory.topics,
                now=now(),
                agent_id=memory.agent_id,
                team_id=memory.team_id,
            )

            call.add_created("memory", row.memory_id)
            work = _create(row, self.hosting.settings.quotas)
            await call.write(self.hosting.databases.system, work)
            return build_document(build_memory_record(row))

    async def get(self, memory_id: str) -> Document[MemoryRecord]:
        async with self.audit("get_memory", memory_id=memory_id):
            work = _find(memory_id, self.lookups.visibility)
            row = await self.hosting.databases.system.read(work)
            return build_document(build_memory_record(row))

    async def require(self, memory_id: str) -> None:
        """Raise NotFound unless the memory is found."""
        await self.hosting.databases.system.read(_find(memory_id, self.lookups.visibility))

    async def update(self, memory_id: str, patch: MemoryPatch) -> Document[MemoryRecord]:
        async with self.audit("update_memory", memory_id=memory_id) as call:
            work = _update(memory_id, self.lookups.visibility, patch)
            row = await call.write(self.hosting.databases.system, work)
            return build_document(build_memory_record(row))

    async def delete(self, memory_id: str) -> None:
        async with self.audit("delete_memory", memory_id=memory_id) as call:
            work = _delete([memory_id], None, self.lookups.visibility)
            await call.write(self.hosting.databases.system, work)

    async def delete_several(self, deletion: MemoryDeletion) -> None:
        async with self.audit("delete_memories") as call:
            database = self.hosting.databases.system
            visibility = self.lookups.visibility

            check_texts(user_id=deletion.user_id)
            if bool(deletion.memory_ids) == deletion.all:
                raise errors.ValidationFailed("give either memory_ids or all")

            if deletion.all:
                user_id = deletion.user_id
                if user_id is None and not visibility.everyone:
                    user_id = visibility.user_id
                if user_id is None:
                    raise errors.ValidationFailed("user_id is required with all")

                call.add_resource("user", user_id)
                if not visibility.sees(user_id):
                    # An erasure that deletes nothing must not look like one that did.
                    self.lookups.require_owner(user_id)
                await call.write(database, memories.delete_all_of_user(user_id))
                return

            if len(deletion.memory_ids) > MAXIMUM_MEMORIES_DELETED:
                raise errors.ValidationFailed(
                    f"memory_ids must have 1 to {MAXIMUM_MEMORIES_DELETED} ids"
                )

            memory_ids = list(dict.fromkeys(deletion.memory_ids))
            for index, memory_id in enumerate(deletion.memory_ids):
                check_text(f"memory_ids[{index}]", memory_id)

            call.add_resource("memory", *memory_ids)
            await call.write(database, _delete(memory_ids, deletion.user_id, visibility))

    async def list_topics(self, *, user_id: str | None = None) -> Document[list[str]]:
        async with self.audit("get_memory_topics"):
            check_texts(user_id=user_id)
            work = memories.list_topics(self.lookups.visibility, user_id)
            topics = await self.hosting.databases.system.read(work, size="unknown")
            return build_document(topics)

    async def list(self, filter: MemoryFilter) -> Document[MemoryPage]:
        async with self.audit("get_memories"):
            paging.check_filter(filter)
            for topic in filter.topics:
                check_text("topics", topic)
            if filter.search_content is not None and not split_words(filter.search_content):
                raise errors.ValidationFailed("search_content must contain a letter or a digit")
            page = paging.build_slice("memories", filter.page)
            database = self.hosting.databases.system
            work = memories.list_page(filter, self.lookups.visibility, page, database.totals)
            rows = await database.read(work, size="unknown")
            items = (orjson.dumps(build_memory_record(row)) for row in rows.rows)
            return Document(documents.build_page_document("memories", items, filter.page, rows))


def build_memory_record(row: MemoryRow) -> MemoryRecord:
    """Build the record of a stored memory."""
    record: MemoryRecord = _MEMORY.build(row, {"topics": orjson.loads(row.topics)})
    return record


@unit
def _create(row: MemoryRow, quotas: Quotas) -> Steps[None]:
    yield from memories.create(row)
    yield from check_added(quotas, row.user_id, "memories")


@unit
def _find(memory_id: str, visibility: Visibility) -> Steps[MemoryRow]:
    row = yield from memories.get(memory_id, visibility)
    if row is None:
        raise errors.NotFound("Memory not found")
    return row


@unit
def _update(memory_id: str, visibility: Visibility, patch: MemoryPatch) -> Steps[MemoryRow]:
    row = yield from _find(memory_id, visibility)
    memory = row.memory if patch.memory is None else patch.memory
    topics = orjson.loads(row.topics) if patch.topics is None else patch.topics
    updated_row = yield from memories.update(memory_id, visibility, memory, topics, now())
    if updated_row is None:
        raise errors.NotFound("Memory not found")
    return updated_row


@unit
def _delete(memory_ids: list[str], user_id: str | None, visibility: Visibility) -> Steps[None]:
    # In one order, so that two callers cannot deadlock.
    for memory_id in sorted(memory_ids):
        row = yield from _find(memory_id, visibility)
        if user_id is not None and row.user_id != user_id:
            raise errors.NotFound("Memory not found")
        if not (yield from memories.delete(memory_id, visibility)):
            raise errors.NotFound("Memory not found")
