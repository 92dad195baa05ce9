"""`agentctl sessions runs`: list the runs of a session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentctl.cli.lists import ListView, show_every_page
from agentctl.cli.options import AllPages, Fields, Output, SessionId
from agentctl.cli.show import columns
from agentctl.cli.show.output import choose_view, resolve_format, show_list
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.requests import FIRST_RUNS, MAXIMUM_LIMIT, SessionRunsQuery

if TYPE_CHECKING:
    from agentctl.records.document import Document


@with_target(
    reads_databases=True,
    without=("order",),
    order=("session_id", "limit", "after", "all_pages", ...),
)
async def list_session_runs(
    target: Target,
    session_id: SessionId,
    query: SessionRunsQuery = FIRST_RUNS,
    all_pages: AllPages = False,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List the runs of a session, oldest first."""
    output_format = resolve_format(output)
    query = replace(query, form=choose_view(output_format, fields))
    if all_pages:
        from agentctl.records.document import build_document

        async def read(after: str | None) -> Document[Any]:
            part = replace(query, limit=MAXIMUM_LIMIT, after=after)
            runs: Any = (await target.operations.get_session_runs(session_id, part)).value
            following = runs[-1]["run_id"] if len(runs) == MAXIMUM_LIMIT else None
            return build_document({"data": runs, "meta": {"next_cursor": following}})

        view = ListView(columns.RUNS_OF_SESSION, output_format, "run_id", fields)
        await show_every_page(target, read, view, start=query.after, flag="--after", is_array=True)
        return
    document = await target.operations.get_session_runs(session_id, query)
    show_list(document, columns.RUNS_OF_SESSION, output_format, id_field="run_id", fields=fields)
    if output_format != "json" and len(document.value) == query.limit:
        note(f"showing {query.limit} runs; next page: --after {document.value[-1]['run_id']}")
