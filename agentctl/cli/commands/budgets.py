"""`agentctl usage --budgets`: the budgets of the configuration and their usage."""

from __future__ import annotations

from agentctl.cli.show.output import FieldsOutput
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target
from agentctl.records.kinds import Record

_STYLES = {"exceeded": "red", "warning": "yellow"}


def _format_amount(row: Record, name: str) -> str:
    amount = row.get(name) or 0
    return f"${amount:,.2f}" if row.get("unit") == "dollars" else f"{amount:,.0f}"


def _format_subject(row: Record) -> str:
    if row.get("per") == "user":
        return str(row.get("user_id") or "no user")
    return str(row.get("component_id") or "server")


_FIELDS = plain_columns(
    "budget_id", "per", "user_id", "component_id", "period", "unit", "limit", "used", "live",
    "state", "on_exceed", "unpriced_tokens", "since", "resets_at",
)  # fmt: skip

_BUDGETS = Columns(
    tsv=_FIELDS,
    table=[
        Column("budget_id", heading="id", look="id"),
        Column("of", _format_subject, look="text"),
        Column("state", style=lambda row: _STYLES.get(str(row.get("state")), "")),
        Column("used", lambda row: _format_amount(row, "used"), right=True),
        Column("limit", lambda row: _format_amount(row, "limit"), right=True),
        Column("period"),
        Column("on_exceed", heading="then"),
        Column("resets_at", heading="resets at"),
    ],
)


async def list_budgets(target: Target, out: FieldsOutput, user_id: str | None) -> None:
    """List the budgets of the current periods and their usage.

    Args:
        user_id: of the budgets per user, list those of this user; None for all.
    """
    document = await target.operations.usage.list_budgets(user_id=user_id)
    out.show_list(document, _BUDGETS, "budget_id")
