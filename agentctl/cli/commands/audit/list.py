"""`agentctl audit list`: one page of the audit log."""

from __future__ import annotations

from typing import Any

from agentctl.cli.audit import AUDIT_COLUMNS
from agentctl.cli.options import Fields, Output
from agentctl.cli.show.output import resolve_format, show_list, show_page
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.requests import AuditFilter


@with_target()
async def list_audit(
    target: Target, filter: AuditFilter, output: Output = None, fields: Fields = None
) -> None:
    """List audit entries, newest first."""
    from agentctl.records.document import build_document

    output_format = resolve_format(output)
    document = await target.operations.get_audit(filter)
    if output_format == "json":
        show_page(document, AUDIT_COLUMNS, output_format, id_field="seq", fields=fields)
        return
    page: Any = document.value
    show_list(
        build_document(page["data"]), AUDIT_COLUMNS, output_format, id_field="seq", fields=fields
    )
    if next_cursor := page["meta"].get("next_cursor"):
        note(f"more entries exist; next page: --cursor {next_cursor}")
