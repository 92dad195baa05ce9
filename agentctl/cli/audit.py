"""The pages of the audit log, for the commands of `agentctl audit`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from agentctl.cli.paging import Row, read_pages
from agentctl.cli.show.output import Format, show_list, show_page
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target
from agentctl.requests.audit import AuditFilter, AuditHeadFilter

if TYPE_CHECKING:
    from agentctl.records.document import Document

F = TypeVar("F", AuditFilter, AuditHeadFilter)

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
    return _read_all(target.operations.get_audit, filter)


def read_head_pages(target: Target, filter: AuditHeadFilter) -> AsyncGenerator[list[Row]]:
    """Yield the signed heads of each page, newest first."""
    return _read_all(target.operations.get_audit_heads, filter)


def _read_all(
    read: Callable[[F], Awaitable[Document[Any]]], filter: F
) -> AsyncGenerator[list[Row]]:
    return read_pages(
        lambda cursor: read(filter if cursor is None else replace(filter, cursor=cursor))
    )


def show_audit_page(
    document: Document[Any],
    columns: Columns,
    format: Format,
    *,
    id_field: str,
    fields: str | None,
    noun: str,
) -> None:
    """Write a page, which has no total, and note the cursor of the next page.

    Args:
        format: the output format.
        noun: the rows of the page, such as `entries`.

    Raises:
        UsageError: `fields` has a name that is no field.
    """
    if format == "json":
        show_page(document, columns, format, id_field=id_field, fields=fields)
        return
    page = document.value
    show_list(page["data"], columns, format, id_field=id_field, fields=fields)
    if next_cursor := page["meta"].get("next_cursor"):
        note(f"more {noun} exist; next page: --cursor {next_cursor}")
