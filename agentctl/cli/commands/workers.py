"""`agentctl workers`: the processes that execute runs, of all servers of a deployment."""

from __future__ import annotations

from agentctl.cli.help import CommandApp
from agentctl.cli.show.columns import format_distance
from agentctl.cli.show.output import FieldsOutput
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target, with_target

app = CommandApp(
    help="List the processes that execute runs.", epilog="Example: agentctl workers list"
)

_STYLES = {"dead": "red", "working": "blue", "idle": "green"}
_FIELDS = plain_columns(
    "worker_id", "host", "pid", "schema_version", "started_at", "heartbeat_at", "state", "reason",
    "live_runs",
)  # fmt: skip

_WORKERS = Columns(
    tsv=_FIELDS,
    table=[
        Column("worker_id", heading="worker", look="id"),
        Column("state", style=lambda row: _STYLES.get(str(row.get("state")), "")),
        Column("live_runs", heading="live", right=True),
        Column("host", look="text"),
        Column("pid", heading="process", right=True),
        Column("uptime", lambda row: format_distance(row["started_at"]), right=True),
        Column("heartbeat", lambda row: row["reason"] or format_distance(row["heartbeat_at"])),
    ],
)


@app.command("list", epilog="Example: agentctl workers list --url https://agents.example.org")
@with_target()
async def list_workers(target: Target, out: FieldsOutput) -> None:
    """List the workers of the deployment, the oldest first; for administrators."""
    document = await target.operations.system.get_deployment()
    out.show_list(document.value["workers"], _WORKERS, "worker_id")
