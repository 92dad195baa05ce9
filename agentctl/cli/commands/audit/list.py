"""`agentctl audit list`: list entries of the audit log."""

from __future__ import annotations

from functools import partial

from agentctl.cli.audit import AUDIT_COLUMNS, show_audit_page
from agentctl.cli.lists import ListView, show_filtered
from agentctl.cli.options import AllPages, Fields, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests.audit import AuditFilter


@with_target()
async def list_audit(
    target: Target,
    filter: AuditFilter,
    all_pages: AllPages = False,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List audit entries, newest first."""
    view = ListView(AUDIT_COLUMNS, resolve_format(output), "seq", fields)
    show = partial(show_audit_page, noun="entries")
    read = target.operations.get_audit
    await show_filtered(target, read, filter, view, all_pages=all_pages, show=show)
