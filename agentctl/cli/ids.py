"""Short ids: any prefix of a UUID with 8 or more characters is accepted in the place of the id."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from agentctl.cli.show.terminal import note
from agentctl.errors import NotFound, UsageError
from agentctl.requests import MAXIMUM_LIMIT, Page, RunFilter, RunView, SessionFilter, SessionLocator

if TYPE_CHECKING:
    from agentctl.cli.target import Target

__all__ = ["resolve_run_id", "resolve_run_ids", "resolve_session_id", "resolve_session_ids"]

MAXIMUM_CANDIDATES = 10
"""Ids that the error about an ambiguous prefix lists."""

MAXIMUM_PAGES = 20
"""Pages of a list that are searched for a prefix."""

_PREFIX = re.compile(
    "[0-9a-f]{8}(?:-[0-9a-f]{0,4}(?:-[0-9a-f]{0,4}(?:-[0-9a-f]{0,4}(?:-[0-9a-f]{0,11})?)?)?)?"
)

Row = dict[str, Any]


async def resolve_run_id(target: Target, text: str, db: str | None = None) -> str:
    """Return the id of the run that `text` names: an id, or the beginning of one.

    A text that is no beginning of a known id is returned unchanged: the operation reports it.

    Raises:
        UsageError: several runs begin with it.
    """
    if not _PREFIX.fullmatch(text):
        return text
    found = []

    async def read(cursor: str | None) -> Any:
        part = Page(limit=MAXIMUM_LIMIT, cursor=cursor)
        wanted = RunFilter(db_id=db, page=part, id_prefix=text, form=RunView("summary"))
        return (await target.operations.get_runs(wanted)).value

    async for row in _read_rows(read):
        if str(row["run_id"]).startswith(text):
            found.append(f"{row['run_id']}  {row['status']}  {row['created_at']}")
    return _choose("runs", text, found)


async def resolve_run_ids(target: Target, texts: Iterable[str], db: str | None) -> list[str]:
    """Return the ids of runs, each once."""
    ids = [await resolve_run_id(target, text, db) for text in texts]
    return list(dict.fromkeys(ids))


async def resolve_session_id(target: Target, text: str, db: str | None = None) -> str:
    """Return the id of the session that `text` names: an id, or the beginning of one.

    Raises:
        UsageError: several sessions begin with it.
    """
    if not _PREFIX.fullmatch(text):
        return text
    where = SessionLocator(db_id=db)
    try:
        await target.operations.get_session_by_id(text, where)
        return text
    except NotFound:
        pass
    found = []

    async def read(cursor: str | None) -> Any:
        part = Page(limit=MAXIMUM_LIMIT, cursor=cursor, sort_by="updated_at")
        return (
            await target.operations.get_sessions(SessionFilter(where, page=part, id_prefix=text))
        ).value

    async for row in _read_rows(read):
        if str(row["session_id"]).startswith(text):
            found.append(f"{row['session_id']}  {row['session_name']}")
    return _choose("sessions", text, found)


async def resolve_session_ids(target: Target, texts: Iterable[str], db: str | None) -> list[str]:
    """Return the ids of sessions, each once."""
    ids = [await resolve_session_id(target, text, db) for text in texts]
    return list(dict.fromkeys(ids))


async def _read_rows(read: Any) -> AsyncIterator[Row]:
    cursor = None
    for _ in range(MAXIMUM_PAGES):
        page = await read(cursor)
        for row in page["data"]:
            yield row
        cursor = page["meta"].get("next_cursor")
        if not cursor:
            return


def _choose(noun: str, text: str, found: list[str]) -> str:
    """Return the id of the only row that was found, or the text if there is none."""
    if not found:
        return text
    if len(found) == 1:
        return found[0].partition("  ")[0]
    more = len(found) - MAXIMUM_CANDIDATES
    for line in found[:MAXIMUM_CANDIDATES] + ([f"and {more} more"] if more > 0 else []):
        note(line)
    hint = "give more characters of the id"
    raise UsageError(f"the ids of {len(found)} {noun} begin with {text}", hint=hint)
