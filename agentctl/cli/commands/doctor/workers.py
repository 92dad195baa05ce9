"""`agentctl doctor --workers`: the processes that execute runs, of all servers of a deployment."""

from __future__ import annotations

from agentctl.cli.show.columns import format_distance
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import TargetOptions, adding_config, open_target

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


async def list_workers(out: CommandOutput, options: TargetOptions) -> None:
    """List the workers of the deployment, the oldest first, of a server or of the databases.

    Raises:
        Forbidden: the caller is no administrator of the server.
    """
    with adding_config(options.config):
        async with open_target(options) as target:
            document = await target.operations.system.get_deployment()
    out.show_list(document.value["workers"], _WORKERS, "worker_id")
