"""The operations on the audit log (docs/contract.md "Audit")."""

from __future__ import annotations

from typing import cast

from agentctl import errors
from agentctl.interface.requests import MAXIMUM_LIMIT
from agentctl.interface.requests.audit import AuditFilter, AuditHeadFilter
from agentctl.records.audit import AuditHeadPage, AuditHeadRecord, AuditPage, AuditRecord
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import AuditOutcome
from agentctl.records.times import format_rfc3339
from agentctl.records.validation import check_texts
from agentctl.service.family import OperationFamily
from agentctl.service.paging import pack_cursor, unpack_cursor
from agentctl.store.repositories import audit, audit_heads
from agentctl.store.repositories.audit import AuditRow
from agentctl.store.repositories.audit_heads import HeadRow


class AuditOperations(OperationFamily):
    """Reads of the audit log and of its signed heads."""

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        async with self.audit("get_audit"):
            check_texts(principal=filter.principal, operation=filter.operation)
            before = _parse_cursor("audit", filter.limit, filter.cursor)
            work = audit.list_page(filter, before)
            page = await self.hosting.audit_log.database.read(work, size="large")
            return build_document(
                AuditPage(
                    data=[build_entry(row) for row in page.rows],
                    meta={"next_cursor": _build_cursor("audit", page.next)},
                )
            )

    async def get_audit_heads(self, filter: AuditHeadFilter) -> Document[AuditHeadPage]:
        async with self.audit("get_audit_heads"):
            before = _parse_cursor("audit-heads", filter.limit, filter.cursor)
            work = audit_heads.list_page(before or audit.LAST_NUMBER, filter.limit + 1)
            rows = await self.hosting.audit_log.database.read(work, size="large")
            page = rows[: filter.limit]
            following = page[-1].number if len(rows) > len(page) else None
            return build_document(
                AuditHeadPage(
                    data=[_build_head(row) for row in page],
                    meta={"next_cursor": _build_cursor("audit-heads", following)},
                )
            )


def build_entry(row: AuditRow) -> AuditRecord:
    """Return the record of an entry, which its signed head covers."""
    return AuditRecord(
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


def _build_head(row: HeadRow) -> AuditHeadRecord:
    return AuditHeadRecord(
        number=row.number,
        at=format_rfc3339(row.at),
        first_seq=row.first_seq,
        last_seq=row.last_seq,
        entries=row.entries,
        expired_seq=row.expired_seq,
        token=row.token,
    )


def _build_cursor(noun: str, before: int | None) -> str | None:
    return None if before is None else pack_cursor(f"{noun}:{before}")


def _parse_cursor(noun: str, limit: int, cursor: str | None) -> int | None:
    """Return the number before which a page begins; None for the newest rows.

    Raises:
        ValidationFailed: the limit is out of range, or the cursor is not one of this list.
    """
    if not 1 <= limit <= MAXIMUM_LIMIT:
        raise errors.ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_LIMIT}")

    def parse(text: str) -> int:
        digits = text.removeprefix(f"{noun}:")
        if digits == text or not 1 <= len(digits) <= 18:
            raise ValueError
        return int(digits)

    return None if cursor is None else unpack_cursor(cursor, parse)
