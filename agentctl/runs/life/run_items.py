"""The store of the user of a run, as `runtime.context.ItemStore`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentctl.records.store_items import ItemPut, ItemSearch, Namespace, StoreItem
from agentctl.records.times import now
from agentctl.store.database import Work
from agentctl.store.repositories import store_items
from agentctl.store.repositories.store_items import FoundItems, Space

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
