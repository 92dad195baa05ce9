"""`agentctl sessions list`: list sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.lists import ListView, show_filtered, watch_filtered
from agentctl.cli.options import (
    AllPages,
    Every,
    Fields,
    Idle,
    NewerThan,
    OlderThan,
    Output,
    UsedWithin,
    Watch,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_page
from agentctl.cli.show.terminal import note
from agentctl.cli.show.watched_list import check_watch
from agentctl.cli.target import Target, with_target
from agentctl.requests import Page, SessionFilter

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.sessions import SessionPage

LAST_USED = SessionFilter(page=Page(sort_by="updated_at"))


@with_target(
    reads_databases=True,
    order=(
        "type", "component_id", "user_id", "session_name", "search", "status",
        "older_than", "newer_than", "idle", "used_within", "metadata", "tag", "error",
        "limit", "page", "cursor", "sort_by", "sort_order", "all_pages", "db_id", "table", ...,
    ),
)  # fmt: skip
async def list_sessions(
    target: Target,
    filter: SessionFilter = LAST_USED,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    idle: Idle = None,
    used_within: UsedWithin = None,
    all_pages: AllPages = False,
    watch: Watch = False,
    every: Every = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List sessions, most recently used first.

    With --search those whose messages, answers or name have all words, newest first; `refu*` finds
    words that begin with refu.
    """
    output_format = resolve_format(output)
    check_watch(watch, every, output_format)

    async def read(filter: SessionFilter) -> Document[SessionPage]:
        # With --watch an age is that of each read.
        dated = replace(
            filter,
            created_after=microseconds_ago("--newer-than", newer_than),
            created_before=microseconds_ago("--older-than", older_than),
            updated_after=microseconds_ago("--used-within", used_within),
            updated_before=microseconds_ago("--idle", idle),
        )
        return await target.operations.get_sessions(dated)

    def show(document: Document[Any], *args: Any, **options: Any) -> None:
        show_page(document, *args, **options)
        meta = document.value["meta"]
        if meta.get("searched") == "page" and meta["total_pages"] > 1:
            pages = f"page {meta['page']} of {meta['total_pages']}"
            note(f"only {pages} was searched for the name; --all searches every page")
        if filter.search is not None and not document.value["data"]:
            # Only `doctor` counts sessions that are not indexed: the count is slow.
            place = "" if target.local is not None else " on the server"
            note(
                "no session matches; runs that ended before search was enabled are found after"
                f" `agentctl db index`{place}"
            )
        if target.product is not None:
            for session in document.value["data"]:
                if session.get("problem"):
                    note(f"session {session['session_id']} cannot be read: {session['problem']}")

    listed, shown = filter, columns.SESSIONS
    if filter.search is not None:
        listed = replace(filter, page=replace(filter.page, sort_by="created_at"))
        shown = columns.FOUND_SESSIONS
    view = ListView(shown, output_format, "session_id", fields)
    if watch:
        await watch_filtered(target, read, listed, view, every)
        return
    await show_filtered(target, read, listed, view, all_pages=all_pages, show=show)
