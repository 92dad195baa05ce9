"""`agentctl audit list`: one page of the audit log."""

from __future__ import annotations

from agentctl.cli.audit import AUDIT_COLUMNS, show_audit_page
from agentctl.cli.options import Fields, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests import AuditFilter


@with_target()
async def list_audit(
    target: Target, filter: AuditFilter, output: Output = None, fields: Fields = None
) -> None:
    """List audit entries, newest first."""
    output_format = resolve_format(output)
    document = await target.operations.get_audit(filter)
    show_audit_page(
        document, AUDIT_COLUMNS, output_format, id_field="seq", fields=fields, noun="entries"
    )
