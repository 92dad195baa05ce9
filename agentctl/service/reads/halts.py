"""The reads of halts (docs/halts.md)."""

from __future__ import annotations

import orjson

from agentctl import errors
from agentctl.interface.requests.halts import HaltFilter
from agentctl.records.document import Document, build_document
from agentctl.records.halts import HaltPage, HaltRecord, HaltState
from agentctl.records.times import now
from agentctl.service.documents import documents, paging
from agentctl.service.documents.documents import RecordWriter
from agentctl.service.reads.family import ReadFamily
from agentctl.store.repositories import halts
from agentctl.store.repositories.halts import HaltRow

_HALT = RecordWriter(HaltRecord, HaltRow, computed=["stop_running"])


class HaltReads(ReadFamily):
    """Reads of halts."""

    async def get(self, halt_id: str) -> Document[HaltRecord]:
        async with self.audit("get_halt", halt_id=halt_id):
            row = await self.hosting.databases.system.read(halts.get(halt_id))
            if row is None:
                raise errors.NotFound("Halt not found")
            return build_document(build_halt_record(row))

    async def list(self, filter: HaltFilter) -> Document[HaltPage]:
        async with self.audit("get_halts"):
            paging.check_filter(filter)
            part = paging.build_slice("halts", filter.page)
            page = await self.hosting.databases.system.read(
                halts.list_page(filter, part), size="large"
            )
            items = (orjson.dumps(build_halt_record(row)) for row in page.rows)
            return Document(documents.build_page_document("halts", items, filter.page, page))


def build_halt_record(row: HaltRow) -> HaltRecord:
    """Return the record of a halt as it is now: after its time it has ended."""
    state: HaltState = "active" if row.is_active_at(now()) else "ended"
    computed = {"state": state, "stop_running": bool(row.stop_running)}
    record: HaltRecord = _HALT.build(row, computed)
    return record
