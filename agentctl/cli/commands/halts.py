"""`agentctl halts`: the halts of the instance, active and ended ones."""

from __future__ import annotations

from typing import Annotated

from agentctl.cli.help import CommandApp
from agentctl.cli.lists import ListOutput
from agentctl.cli.parameters import argument
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target, with_target
from agentctl.errors import NotFound
from agentctl.interface.requests.halts import HaltFilter
from agentctl.records.kinds import Record

app = CommandApp(
    help="List and show halts of agents, tools, models, users or everything.",
    epilog="Example: agentctl halts list --state active",
)

HaltId = Annotated[str, argument("HALT_ID", "Id of the halt")]

HALT_FIELDS = plain_columns(
    "halt_id", "scope", "scope_id", "state", "reason", "stop_running", "created_by", "created_at",
    "until", "ended_at", "ended_by",
)  # fmt: skip


def _format_scope(row: Record) -> str:
    if row.get("scope_id") is None:
        return str(row.get("scope"))
    return f"{row.get('scope')} {row.get('scope_id')}"


_HALTS = Columns(
    tsv=HALT_FIELDS,
    table=[
        Column("halt_id", heading="id", look="id"),
        Column("scope", _format_scope, look="text"),
        Column("state", style=lambda row: "red" if row.get("state") == "active" else ""),
        Column("reason", look="text"),
        Column("created_by", heading="by"),
        Column("created_at", heading="created"),
        Column("until"),
        Column("ended_at", heading="ended"),
    ],
)


@app.command("list", epilog="Example: agentctl halts list --state active")
@with_target(without=("sort_by",), reads="stored")
async def list_halts(target: Target, out: ListOutput, filter: HaltFilter) -> None:
    """List halts, newest first, including ended ones."""
    await out.show(target, target.operations.halts.list, filter, _HALTS, "halt_id")


@app.command("get", epilog="Example: agentctl halts get 019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d21")
@with_target(reads="stored")
async def show_halt(target: Target, out: CommandOutput, halt_id: HaltId) -> None:
    """Show a halt."""
    try:
        document = await target.operations.halts.get(halt_id)
    except NotFound as failure:
        failure.hint = f"list them with: {target.command('halts list')}"
        raise
    out.show_record(document, HALT_FIELDS, "halt_id")
