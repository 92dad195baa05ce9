"""`agentctl sessions list`, `get` and `runs`: read sessions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.lists import (
    AgeOptions,
    ListOutput,
    ListWriter,
    WatchedOutput,
    build_age_option,
    note_unindexed,
)
from agentctl.cli.options import SessionId
from agentctl.cli.parameters import flag, option
from agentctl.cli.show import columns
from agentctl.cli.show.terminal import note
from agentctl.cli.show.transcript.pages import (
    Pager,
    TranscriptOutput,
    create_page,
    print_transcript,
    write_at_once,
)
from agentctl.cli.target import Target, with_target
from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    FIRST_RUNS,
    MAXIMUM_LIMIT,
    Page,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.records.document import Document, build_document
from agentctl.records.sessions import SessionView
from agentctl.records.text import format_count

LAST_USED = SessionFilter(page=Page(sort_by="updated_at"))

DEFAULT_LAST_RUNS = 20
"""Runs of a transcript."""


@dataclass(frozen=True, slots=True)
class SessionAges(AgeOptions):
    """The options for the age of sessions."""

    idle: Annotated[str | None, build_age_option("--idle", "last used more")] = None
    used_within: Annotated[str | None, build_age_option("--used-within", "last used less")] = None

    def limit(self, filter: Any) -> Any:
        """Return a filter with the times of the ages, counted from now."""
        return replace(
            AgeOptions.limit(self, filter),
            updated_after=microseconds_ago("--used-within", self.used_within),
            updated_before=microseconds_ago("--idle", self.idle),
        )


NO_SESSION_AGES = SessionAges()


_LIST_ORDER = (
    "type", "component_id", "user_id", "session_name", "search", "status",
    "older_than", "newer_than", "idle", "used_within", "metadata", "tag", "error",
    "limit", "page", "cursor", "sort_by", "sort_order", "all_pages", "db_id", "table", ...,
)  # fmt: skip
"""The options of `sessions list` in the order of its help."""


@with_target(order=_LIST_ORDER, reads="stored")
async def list_sessions(
    target: Target,
    out: WatchedOutput,
    filter: SessionFilter = LAST_USED,
    ages: SessionAges = NO_SESSION_AGES,
) -> None:
    """List sessions, most recently used first.

    --search finds sessions whose messages, answers or name contain all words, newest first; `refu*`
    finds words that begin with refu.
    """
    out.check()
    read = ages.limit_each(target.operations.sessions.list)

    def note_rest(document: Document[Any]) -> None:
        if filter.search is not None:
            note_unindexed(target, document, "session")

    listed = filter
    shown = columns.SESSIONS
    if filter.search is not None:
        listed = replace(filter, page=replace(filter.page, sort_by="created_at"))
        shown = columns.FOUND_SESSIONS
    await out.show(target, read, listed, shown, "session_id", note_rest=note_rest)


_GET_ORDER = (
    "session_id", "last", "all", "full", "members", "follow", "raw", "local_time", "no_pager", ...,
)  # fmt: skip
"""The arguments and options of `sessions get` in the order of its help."""


@with_target(order=_GET_ORDER, reads="stored", service_flags=("follow",))
async def get_session(
    target: Target,
    out: TranscriptOutput,
    session_id: SessionId,
    last: int | None = option(
        "--last",
        "NUMBER",
        f"Number of runs to show, counted from the end (default: {DEFAULT_LAST_RUNS})",
        min=1,
    ),
    all: bool = flag("--all", "Show all runs"),
    follow: bool = flag("--follow", "Continue with live and new runs until Ctrl-C"),
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Show one session as a transcript.

    The formats json, jsonl and tsv print the record of the session. Ctrl-C during --follow does not
    stop the runs.
    """
    form = out.resolve(last=last is not None, all=all, follow=follow)
    view: SessionView = "full" if form is None else "summary"
    document = await target.operations.sessions.get(session_id, where, view=view)
    if form is None:
        out.show_record(document, columns.SESSION, "session_id")
        return

    look = out.create_look(form)
    number = None if all else last or DEFAULT_LAST_RUNS
    if follow:
        # Imported here: most commands show what is stored.
        from agentctl.cli.commands.sessions.follow import SessionFollower

        page = create_page(form, look, write_at_once)
        follower = SessionFollower(target, document.value, where, page, look.run_view)
        await follower.follow(number)
        return

    with Pager(wanted=not out.no_pager) as pager:
        page = create_page(form, look, pager.write)
        await print_transcript(
            target.operations, document.value, where, page, number, look.run_view
        )


@with_target(
    without=("order",), order=("session_id", "limit", "after", "all_pages", ...), reads="stored"
)
async def list_session_runs(
    target: Target, out: ListOutput, session_id: SessionId, query: SessionRunsQuery = FIRST_RUNS
) -> None:
    """List the runs of a session, oldest first."""
    query = replace(query, form=out.run_view)
    if out.all_pages:

        async def read(after: str | None) -> Document[Any]:
            part = replace(query, limit=MAXIMUM_LIMIT, after=after)
            runs: Any = (await target.operations.sessions.list_runs(session_id, part)).value
            following = runs[-1]["run_id"] if len(runs) == MAXIMUM_LIMIT else None
            return build_document({"data": runs, "meta": {"next_cursor": following}})

        writer = ListWriter(out, columns.RUNS_OF_SESSION, "run_id", is_array=True)
        await writer.write_pages(target, read, query.after, "--after")
        return
    document = await target.operations.sessions.list_runs(session_id, query)
    out.show_list(document, columns.RUNS_OF_SESSION, "run_id")
    if out.format != "json" and len(document.value) == query.limit:
        shown = format_count(query.limit, "run")
        note(f"showing {shown}; next page: --after {document.value[-1]['run_id']}")
