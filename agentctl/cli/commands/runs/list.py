"""`agentctl runs list`: list runs across sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.lists import ListView, show_filtered, watch_filtered
from agentctl.cli.options import (
    AgentId,
    AllPages,
    Every,
    Fields,
    NewerThan,
    OlderThan,
    Output,
    TeamId,
    Watch,
    WorkflowId,
    resolve_component,
    select_component,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import choose_view, resolve_format
from agentctl.cli.show.watched_list import check_watch
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
        "session_id", "user_id", "older_than", "newer_than", "metadata", "tag", "error",
        "error_code", "limit", "page", "cursor", "sort_order", "all_pages", "db_id", ...,
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
    all_pages: AllPages = False,
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
    matching = select_component(matching, resolve_component(agent, team, workflow))

    async def read(filter: RunFilter) -> Document[RunPage]:
        # With --watch an age is that of each read.
        dated = replace(
            filter,
            created_after=microseconds_ago("--newer-than", newer_than),
            created_before=microseconds_ago("--older-than", older_than),
        )
        return await target.operations.get_runs(dated)

    view = ListView(columns.RUNS, output_format, "run_id", fields)
    if watch:
        await watch_filtered(target, read, matching, view, every)
        return
    await show_filtered(target, read, matching, view, all_pages=all_pages)
