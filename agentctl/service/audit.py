"""The operation `get_audit` (docs/contract.md "Audit")."""

from __future__ import annotations

from typing import cast

from agentctl import errors
from agentctl.records.audit import AuditPage, AuditRecord
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import AuditOutcome
from agentctl.records.times import format_rfc3339
from agentctl.records.validation import check_texts
from agentctl.requests import MAXIMUM_LIMIT, AuditFilter
from agentctl.service.family import OperationFamily
from agentctl.service.paging import pack_cursor, unpack_cursor
from agentctl.store.repositories import audit

_PREFIX = "audit:"


class AuditOperations(OperationFamily):
    """Reads of the audit log."""

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        async with self.audit("get_audit"):
            if not 1 <= filter.limit <= MAXIMUM_LIMIT:
                raise errors.ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_LIMIT}")
            check_texts(principal=filter.principal, operation=filter.operation)
            cursor = filter.cursor
            before = None if cursor is None else unpack_cursor(cursor, _parse_position)
            work = audit.list_page(filter, before)
            page = await self.hosting.audit_log.database.read(work, size="large")
            following = None if page.next is None else pack_cursor(f"{_PREFIX}{page.next}")
            rows = [
                AuditRecord(
                    seq=row.seq,
                    at=format_rfc3339(row.at),
                    principal=row.principal,
                    via="local" if row.via == "local" else "http",
                    operation=row.operation,
                    resource=row.resource,
                    outcome=cast(AuditOutcome, row.outcome),
                    status=row.status,
                    reason=row.reason,
                    request_id=row.request_id,
                    trace_id=row.trace_id,
                    count=row.count,
                )
                for row in page.rows
            ]
            return build_document(AuditPage(data=rows, meta={"next_cursor": following}))


def _parse_position(text: str) -> int:
    digits = text.removeprefix(_PREFIX)
    if digits == text or not 1 <= len(digits) <= 18:
        raise ValueError
    return int(digits)
