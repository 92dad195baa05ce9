"""`agentctl audit heads`: one page of the signed heads of the audit log."""

from __future__ import annotations

from agentctl.cli.audit import show_audit_page
from agentctl.cli.options import Fields, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.show.table import Column, Columns, plain_columns
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
    output_format = resolve_format(output)
    document = await target.operations.get_audit_heads(filter)
    show_audit_page(
        document, HEAD_COLUMNS, output_format, id_field="number", fields=fields, noun="heads"
    )
