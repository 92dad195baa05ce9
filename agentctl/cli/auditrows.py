"""Rows of the audit: the options that choose them, their columns, and reading them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.help import any_of
from agentctl.cli.table import Column, Columns
from agentctl.operations import AuditFilter
from agentctl.records.audit import AuditOutcome

if TYPE_CHECKING:
    from agentctl.cli.door import Door

__all__ = ["COLUMNS", "OnlyOperation", "OnlyOutcome", "OnlyPrincipal", "Row", "Since", "pages"]

Row = dict[str, Any]

OnlyPrincipal = Annotated[
    str | None,
    typer.Option("--principal", metavar="NAME", help="Only what this one called, as rows say it"),
]
OnlyOperation = Annotated[
    str | None,
    typer.Option("--operation", metavar="ID", help="Only this operation, such as cancel_agent_run"),
]
OnlyOutcome = Annotated[
    AuditOutcome | None,
    typer.Option(
        "--outcome",
        metavar="OUTCOME",
        help=f"Only with this outcome: {any_of(('allowed', 'denied', 'failed'))}",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="AGE", help="Only rows since then: 10m, 2h, 7d, or a moment"),
]

_NAMES = (
    "seq", "at", "principal", "via", "operation", "resource", "outcome", "status", "reason",
    "request_id",
)  # fmt: skip

COLUMNS = Columns(
    tsv=[Column(name) for name in _NAMES],
    table=[
        Column("at"),
        Column("principal"),
        Column("outcome"),
        Column("operation"),
        Column("resource", look="text"),
        Column("reason", look="text"),
        Column("status"),
        Column("via"),
        Column("seq"),
        Column("request_id"),
    ],
)


async def pages(door: Door, wanted: AuditFilter) -> AsyncGenerator[list[Row]]:
    """Page after page, newest first. Rows that come meanwhile stand before the first one."""
    while True:
        page: Any = (await door.operations.get_audit(wanted)).value
        yield page["data"]
        following = page["meta"].get("next_cursor")
        if not following or following == wanted.cursor:
            return
        wanted = replace(wanted, cursor=following)
