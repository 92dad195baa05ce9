"""`agentctl approvals list`: list approvals."""

from __future__ import annotations

from agentctl.cli.lists import ListView, show_filtered
from agentctl.cli.options import AllPages, Fields, Output
from agentctl.cli.show.approvals import APPROVALS
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests.approvals import ApprovalFilter


@with_target(
    without=("sort_by",),
    order=(
        "status", "execution", "kind", "policy", "component_type", "component_id", "tool_name",
        "run_id", "session_id", "user_id", "limit", "page", "cursor", "sort_order", "all_pages",
        "db_id", ...,
    ),
)  # fmt: skip
async def list_approvals(
    target: Target,
    filter: ApprovalFilter,
    all_pages: AllPages = False,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List approvals, newest first."""
    view = ListView(APPROVALS, resolve_format(output), "approval_id", fields)
    read = target.operations.get_approvals
    await show_filtered(target, read, filter, view, all_pages=all_pages)
