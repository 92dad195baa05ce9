"""The store and the memories of the user of a run, as its component sees them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import orjson

from agentctl.agents import Memory
from agentctl.config.upkeep import Quotas
from agentctl.errors import ValidationFailed
from agentctl.records.run_spec import RunSpec
from agentctl.records.store_items import ItemPut, ItemSearch, Namespace, StoreItem
from agentctl.records.times import now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.repositories import memories, store_items
from agentctl.store.repositories.memories import MAXIMUM_FOUND, MemoryRow
from agentctl.store.repositories.quotas import check_added
from agentctl.store.repositories.store_items import FoundItems, Space
from agentctl.store.visibility import Visibility

if TYPE_CHECKING:
    from agentctl.config.upkeep import Quotas
    from agentctl.runtime.context import RunEnvironment
    from agentctl.store.database import Database


class RunItems:
    """The items that a run can reach: those of its user, or those that users share.

    Args:
        database: the system database, which has the items.
    """

    def __init__(
        self, database: Database, run: RunEnvironment, quotas: Quotas, *, is_shared: bool
    ) -> None:
        self._database, self._run, self._quotas = database, run, quotas
        self._space = Space("", "shared") if is_shared else Space(run.spec.user_id or "")

    async def get(self, namespace: Namespace, key: str, *, refresh: bool) -> StoreItem | None:
        items = await self._read(store_items.get(self._space, namespace, key, now()), refresh)
        return items[0] if items else None

    async def search(self, wanted: ItemSearch, *, refresh: bool) -> list[StoreItem]:
        return await self._read(store_items.search(self._space, wanted, now()), refresh)

    async def list_namespaces(self) -> list[Namespace]:
        work = store_items.list_namespaces(self._space, now())
        return await self._database.read(work, size="run")

    async def put(self, puts: Sequence[ItemPut]) -> None:
        # A call in a thread goes on after a cancel: it writes nothing any more.
        self._run.checkpoint()
        await self._database.write(store_items.put(self._space, puts, self._quotas, now()))

    async def _read(self, work: Work[FoundItems], refresh: bool) -> list[StoreItem]:
        found = await self._database.read(work, size="run")
        if refresh and found.limited:
            await self._database.write(store_items.refresh(found.limited, now()))
        return found.items


class RunMemories:
    """The memories of one user, as `agentctl.agents.Memories`.

    Args:
        database: the system database, which has the memories.
    """

    def __init__(self, database: Database, user_id: str, run: RunSpec, *, quotas: Quotas) -> None:
        self._database = database
        self._quotas = quotas
        self._user_id = user_id
        self._run = run
        self._visibility = Visibility(everyone=False, user_id=user_id)

    async def remember(self, memory: str, topics: Sequence[str] = ()) -> Memory:
        """Store a fact; a memory with the same text is returned instead.

        Raises:
            QuotaExceeded: the user has as many memories as the quotas allow.
        """
        run = self._run
        row = memories.build_memory(
            self._user_id,
            memory,
            topics,
            now=now(),
            agent_id=run.component_id if run.component_type == "agent" else None,
            team_id=run.component_id if run.component_type == "team" else None,
            run_id=run.run_id,
        )
        return _to_memory(await self._database.write(_create_once(row, self._quotas)))

    async def recall(self, text: str = "", *, limit: int = 10) -> list[Memory]:
        if not 1 <= limit <= MAXIMUM_FOUND:
            raise ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_FOUND}")
        rows = await self._database.read(memories.search(self._user_id, text, limit))
        if not rows:
            rows = await self._database.read(memories.list_recent(self._user_id, limit))
        return [_to_memory(row) for row in rows]

    async def update(self, memory_id: str, memory: str) -> bool:
        return await self._database.write(_replace_text(memory_id, self._visibility, memory))

    async def forget(self, memory_id: str) -> bool:
        return await self._database.write(memories.delete(memory_id, self._visibility))


@unit
def _create_once(row: MemoryRow, quotas: Quotas) -> Steps[MemoryRow]:
    """Store a memory, unless the user has one with the same text.

    Models repeat themselves, and a tool call that was interrupted may be made again.
    """
    for known in (yield from memories.search(row.user_id, row.memory, MAXIMUM_FOUND)):
        if known.memory == row.memory:
            return known
    yield from memories.create(row)
    yield from check_added(quotas, row.user_id, "memories")
    return row


@unit
def _replace_text(memory_id: str, visibility: Visibility, memory: str) -> Steps[bool]:
    row = yield from memories.get(memory_id, visibility)
    if row is None:
        return False
    topics: list[str] = orjson.loads(row.topics)
    return (yield from memories.update(memory_id, visibility, memory, topics, now())) is not None


def _to_memory(row: MemoryRow) -> Memory:
    return Memory(
        row.memory_id,
        row.memory,
        tuple(orjson.loads(row.topics)),
        datetime.fromtimestamp(row.updated_at / 1_000_000, UTC),
    )
