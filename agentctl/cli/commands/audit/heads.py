"""`agentctl audit heads`: list the signed heads of the audit log."""

from __future__ import annotations

from functools import partial

from agentctl.cli.audit import show_audit_page
from agentctl.cli.lists import ListView, show_filtered
from agentctl.cli.options import AllPages, Fields, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target, with_target
from agentctl.requests.audit import AuditHeadFilter

_NUMBERS = plain_columns("number", "at", "first_seq", "last_seq", "entries", "expired_seq")

HEAD_COLUMNS = Columns(tsv=[*_NUMBERS, *plain_columns("token")], table=[*_NUMBERS, Column("token")])


@with_target()
async def list_heads(
    target: Target,
    filter: AuditHeadFilter,
    all_pages: AllPages = False,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List the signed heads of the audit log, newest first.

    `-o jsonl` and the field `token` give the signed heads themselves, for a copy elsewhere.
    """
    view = ListView(HEAD_COLUMNS, resolve_format(output), "number", fields)
    show = partial(show_audit_page, noun="heads")
    read = target.operations.get_audit_heads
    await show_filtered(target, read, filter, view, all_pages=all_pages, show=show)
