"""`agentctl audit`: who did what, and what was refused to whom."""

from __future__ import annotations

from typing import Any

from agentctl.cli.auditexport import export_audit
from agentctl.cli.auditrows import COLUMNS, OnlyOperation, OnlyOutcome, OnlyPrincipal, Since
from agentctl.cli.audittail import tail_audit
from agentctl.cli.door import Door, with_door
from agentctl.cli.durations import microseconds_ago
from agentctl.cli.help import Branch
from agentctl.cli.options import Cursor, Limit, Output
from agentctl.cli.output import chosen_format, show_list, write_bytes
from agentctl.cli.terminal import note
from agentctl.operations import DEFAULT_LIMIT, AuditFilter

__all__ = ["app"]

app = Branch(
    help="Look up who did what, and what was refused to whom.",
    epilog="Example: agentctl audit list --outcome denied --since 1d",
)


@app.command("list", epilog="Example: agentctl audit list --outcome denied --since 1d")
@with_door()
async def list_audit(
    door: Door,
    principal: OnlyPrincipal = None,
    operation: OnlyOperation = None,
    outcome: OnlyOutcome = None,
    since: Since = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    output: Output = None,
) -> None:
    """List what was done and refused, newest first."""
    form = chosen_format(output)
    wanted = AuditFilter(principal, operation, outcome, microseconds_ago(since), limit, cursor)
    document = await door.operations.get_audit(wanted)
    if form == "json":
        write_bytes(document.raw)
        return
    from agentctl.records.document import document_of

    page: Any = document.value
    show_list(document_of(page["data"]), COLUMNS, form, id_field="seq")
    if following := page["meta"].get("next_cursor"):
        note(f"there are more; the next ones: --cursor {following}")


app.command("tail", epilog="Example: agentctl audit tail --outcome denied")(tail_audit)
app.command("export", epilog="Example: agentctl audit export --since 30d --to-file audit.jsonl")(
    export_audit
)
