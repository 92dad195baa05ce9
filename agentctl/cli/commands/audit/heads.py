"""`agentctl audit heads`: one page of the signed heads of the audit log."""

from __future__ import annotations

from typing import Any

from agentctl.cli.options import Fields, Output
from agentctl.cli.show.output import resolve_format, show_list, show_page
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.requests import AuditHeadFilter

_NUMBERS = plain_columns("number", "at", "first_seq", "last_seq", "entries", "expired_seq")

HEAD_COLUMNS = Columns(tsv=[*_NUMBERS, *plain_columns("token")], table=[*_NUMBERS, Column("token")])


@with_target()
async def list_heads(
    target: Target, filter: AuditHeadFilter, output: Output = None, fields: Fields = None
) -> None:
    """List the signed heads of the audit log, newest first.

    `-o jsonl` and the field `token` give the signed heads themselves, for a copy elsewhere.
    """
    from agentctl.records.document import build_document

    output_format = resolve_format(output)
    document = await target.operations.get_audit_heads(filter)
    if output_format == "json":
        show_page(document, HEAD_COLUMNS, output_format, id_field="number", fields=fields)
        return
    page: Any = document.value
    heads = build_document(page["data"])
    show_list(heads, HEAD_COLUMNS, output_format, id_field="number", fields=fields)
    if next_cursor := page["meta"].get("next_cursor"):
        note(f"more heads exist; next page: --cursor {next_cursor}")
