"""`agentctl runs list`: list runs across sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.options import (
    AgentId,
    Every,
    Fields,
    NewerThan,
    OlderThan,
    Output,
    TeamId,
    Watch,
    WorkflowId,
    resolve_component,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import choose_view, resolve_format, show_page
from agentctl.cli.show.watch import DEFAULT_SECONDS, WatchedList, check_watch, watch_list
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.requests import RunFilter

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import RunPage


@with_target(
    without=("sort_by",),
    order=(
        "status", "live", "agent", "team", "workflow", "component_type", "component_id",
        "session_id", "user_id", "older_than", "newer_than", "limit", "page", "cursor",
        "sort_order", "db_id", ...,
    ),
)  # fmt: skip
async def list_runs(
    target: Target,
    filter: RunFilter,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    watch: Watch = False,
    every: Every = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List runs across sessions, newest first."""
    output_format = resolve_format(output)
    check_watch(watch, every, output_format)
    if filter.live and filter.status is not None:
        raise UsageError("--live and --status exclude each other")
    # The record of a run can be large, and tables have none of its texts.
    matching = replace(filter, form=choose_view(output_format, fields))
    if component := resolve_component(agent, team, workflow):
        if filter.component_type is not None or filter.component_id is not None:
            raise UsageError("--agent, --team and --workflow exclude --type and --component")
        matching = replace(matching, component_type=component[0], component_id=component[1])

    async def read() -> Document[RunPage]:
        # With --watch an age is that of each read.
        after, before = microseconds_ago(newer_than), microseconds_ago(older_than)
        return await target.operations.get_runs(
            replace(matching, created_after=after, created_before=before)
        )

    if watch:
        seconds = every or DEFAULT_SECONDS
        await watch_list(
            WatchedList(target, read, columns.RUNS, output_format, "run_id", fields, seconds)
        )
        return
    document = await read()
    show_page(document, columns.RUNS, output_format, id_field="run_id", fields=fields)
