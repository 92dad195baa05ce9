"""`agentctl approvals get`: show an approval with its arguments."""

from __future__ import annotations

from agentctl.cli.approvals import ApprovalId, find_approval
from agentctl.cli.options import DbId, Fields, Output
from agentctl.cli.show.approvals import APPROVAL, list_fields
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.target import Target, with_target


@with_target()
async def get_approval(
    target: Target,
    approval_id: ApprovalId,
    db: DbId = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """Show an approval, in a table with a line for each argument of its call."""
    output_format = resolve_format(output)
    found = await find_approval(target, approval_id, db)
    document = await target.operations.get_approval(
        found["component_type"], found["component_id"], found["approval_id"]
    )
    is_table = output_format in ("table", "wide") and fields is None
    columns = list_fields(dict(document.value)) if is_table else APPROVAL
    show_record(document, columns, output_format, id_field="approval_id", fields=fields)
