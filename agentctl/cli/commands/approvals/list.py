"""`agentctl approvals list`: list approvals."""

from __future__ import annotations

from agentctl.approval_requests import ApprovalFilter
from agentctl.cli.options import Fields, Output
from agentctl.cli.show.approvals import APPROVALS
from agentctl.cli.show.output import resolve_format, show_page
from agentctl.cli.target import Target, with_target


@with_target(
    without=("sort_by",),
    order=(
        "status", "execution", "kind", "policy", "component_type", "component_id", "tool_name",
        "run_id", "session_id", "user_id", "limit", "page", "cursor", "sort_order", "db_id", ...,
    ),
)  # fmt: skip
async def list_approvals(
    target: Target, filter: ApprovalFilter, output: Output = None, fields: Fields = None
) -> None:
    """List approvals, newest first."""
    output_format = resolve_format(output)
    document = await target.operations.get_approvals(filter)
    show_page(document, APPROVALS, output_format, id_field="approval_id", fields=fields)
