"""The pages of the audit log, for the commands of `agentctl audit`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from agentctl.cli.paging import Row, read_pages
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target
from agentctl.requests import AuditFilter, AuditHeadFilter

COUNT = Column("count", read=lambda entry: entry["count"] if entry.get("count", 1) > 1 else None)
"""The count of an entry that represents several requests."""

AUDIT_COLUMNS = Columns(
    tsv=[
        *plain_columns("seq", "at", "principal", "via", "operation", "resource"),
        *plain_columns("outcome", "status", "reason", "request_id", "count"),
    ],
    table=[
        *plain_columns("at", "principal", "outcome", "operation"),
        Column("resource", look="text"),
        Column("reason", look="text"),
        Column("status"),
        COUNT,
        Column("via"),
        Column("seq"),
        Column("request_id"),
    ],
)


def read_audit_pages(target: Target, filter: AuditFilter) -> AsyncGenerator[list[Row]]:
    """Yield the entries of each page, newest first."""
    return read_pages(
        lambda cursor: target.operations.get_audit(
            filter if cursor is None else replace(filter, cursor=cursor)
        )
    )


def read_head_pages(target: Target, filter: AuditHeadFilter) -> AsyncGenerator[list[Row]]:
    """Yield the signed heads of each page, newest first."""
    return read_pages(
        lambda cursor: target.operations.get_audit_heads(
            filter if cursor is None else replace(filter, cursor=cursor)
        )
    )
