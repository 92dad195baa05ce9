"""The operation `get_audit` (docs/contract.md "Audit")."""

from __future__ import annotations

import base64
import binascii
from typing import cast

from agentctl import errors
from agentctl.records.audit import AuditPage, AuditRecord
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import AuditOutcome
from agentctl.records.times import format_rfc3339
from agentctl.records.validation import check_texts
from agentctl.requests import MAXIMUM_LIMIT, AuditFilter
from agentctl.service.family import OperationFamily
from agentctl.store.repositories import audit
from agentctl.store.repositories.audit import AuditRow

_PREFIX = "audit:"


class AuditOperations(OperationFamily):
    """Reads of the audit log."""

    async def get_audit(self, filter: AuditFilter) -> Document[AuditPage]:
        async with self.audit("get_audit"):
            if not 1 <= filter.limit <= MAXIMUM_LIMIT:
                raise errors.ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_LIMIT}")
            check_texts(principal=filter.principal, operation=filter.operation)
            before = None if filter.cursor is None else _decode_cursor(filter.cursor)
            work = audit.list_page(filter, before)
            page = await self.hosting.audit_log.database.read(work, size="large")
            return build_document(
                AuditPage(
                    data=[_build_record(row) for row in page.rows],
                    meta={"next_cursor": None if page.next is None else _encode_cursor(page.next)},
                )
            )


def _build_record(row: AuditRow) -> AuditRecord:
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
        count=row.count,
    )


def _encode_cursor(before: int) -> str:
    text = f"{_PREFIX}{before}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> int:
    """Return the number of the last entry of the previous page.

    Raises:
        ValidationFailed: the cursor is not valid.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        text = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        if not text.startswith(_PREFIX) or not 1 <= len(digits := text[len(_PREFIX) :]) <= 18:
            raise ValueError
        return int(digits)
    except (ValueError, binascii.Error):
        raise errors.ValidationFailed(
            "cursor must be the next_cursor of an earlier response"
        ) from None
