"""`agentctl sessions runs`: list the runs of a session."""

from __future__ import annotations

from dataclasses import replace

from agentctl.cli.options import Fields, Output, SessionId
from agentctl.cli.show import columns
from agentctl.cli.show.output import choose_view, resolve_format, show_list
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.requests import FIRST_RUNS, SessionRunsQuery


@with_target(reads_databases=True, without=("order",), order=("session_id", "limit", "after", ...))
async def list_session_runs(
    target: Target,
    session_id: SessionId,
    query: SessionRunsQuery = FIRST_RUNS,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List the runs of a session, oldest first."""
    output_format = resolve_format(output)
    query = replace(query, form=choose_view(output_format, fields))
    document = await target.operations.get_session_runs(session_id, query)
    show_list(document, columns.RUNS_OF_SESSION, output_format, id_field="run_id", fields=fields)
    if output_format != "json" and len(document.value) == query.limit:
        note(f"showing {query.limit} runs; next page: --after {document.value[-1]['run_id']}")
