"""`agentctl sessions list`: list sessions."""

from __future__ import annotations

from functools import partial
from typing import Any

from agentctl.cli.options import Every, Fields, Output, Watch
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_page
from agentctl.cli.show.terminal import note
from agentctl.cli.show.watch import DEFAULT_SECONDS, WatchedList, check_watch, watch_list
from agentctl.cli.target import Target, with_target
from agentctl.requests import Page, SessionFilter

LAST_USED = SessionFilter(page=Page(sort_by="updated_at"))

_PAGE = ("limit", "page", "cursor", "sort_by", "sort_order")


@with_target(
    reads_databases=True,
    order=("type", "component_id", "user_id", "session_name", *_PAGE, "db_id", "table", ...),
)
async def list_sessions(
    target: Target,
    filter: SessionFilter = LAST_USED,
    watch: Watch = False,
    every: Every = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List sessions, most recently used first."""
    output_format = resolve_format(output)
    check_watch(watch, every, output_format)
    read = partial(target.operations.get_sessions, filter)
    if watch:
        seconds = every or DEFAULT_SECONDS
        await watch_list(
            WatchedList(
                target, read, columns.SESSIONS, output_format, "session_id", fields, seconds
            )
        )
        return
    document = await read()
    show_page(document, columns.SESSIONS, output_format, id_field="session_id", fields=fields)
    meta: Any = document.value["meta"]
    if meta.get("searched") == "page" and meta["total_pages"] > 1:
        note(f"only page {meta['page']} of {meta['total_pages']} was searched for the name")
    if target.product is not None:
        sessions: Any = document.value["data"]
        for session in sessions:
            if session.get("problem"):
                note(f"session {session['session_id']} cannot be read: {session['problem']}")
