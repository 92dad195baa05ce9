"""Short ids: any prefix of a UUID with 8 or more characters is accepted in the place of the id.

A parameter with `ShortId` in its annotation is resolved before its command runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentctl.cli.show.terminal import note
from agentctl.errors import Forbidden, NotFound, UsageError
from agentctl.interface.requests import (
    MAXIMUM_LIMIT,
    MINIMUM_ID_PREFIX,
    Page,
    RunFilter,
    RunView,
    SessionFilter,
    SessionLocator,
)

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

MAXIMUM_CANDIDATES = 10
"""Ids that the error about an ambiguous prefix lists."""

DESCRIPTION_LENGTH = 60
"""Characters of the name or text of a candidate."""

MAXIMUM_PAGES = 20
"""Pages of a list that are searched for a prefix."""

_PREFIX = re.compile(
    "[0-9a-f]{8}(?:-[0-9a-f]{0,4}(?:-[0-9a-f]{0,4}(?:-[0-9a-f]{0,4}(?:-[0-9a-f]{0,11})?)?)?)?"
)

Noun = Literal["run", "session", "memory", "file"]


class ShortId(NamedTuple):
    """The mark of a parameter whose value is the id of a record, or a list of ids."""

    noun: Noun


def find_short_ids(parameters: Iterable[Parameter]) -> dict[str, Noun]:
    """Return the kind of record of each parameter with the mark, by name."""
    return {
        parameter.name: mark.noun
        for parameter in parameters
        for mark in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(mark, ShortId)
    }


def is_id_prefix(text: str) -> bool:
    """Return True if the text can be the beginning of a UUID, and is not a whole one."""
    return _PREFIX.fullmatch(text) is not None


def is_short(text: str) -> bool:
    """Return True if the text can be the beginning of a UUID, and is too short to find it."""
    return len(text) < MINIMUM_ID_PREFIX and set(text) <= set("0123456789abcdef")


async def resolve_short_ids(
    operations: Operations, nouns: Mapping[str, Noun], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a command with whole ids; an id in a list only once.

    A text that is no beginning of a known id is unchanged: the operation reports it. So is each
    text if the caller may not read the list.

    Args:
        values: of the command; `db` and `table` select where sessions and runs are.

    Raises:
        UsageError: several ids begin with a text.
    """
    resolved = dict(values)
    for name, noun in nouns.items():
        value = values[name]
        if isinstance(value, str):
            resolved[name] = await _resolve(operations, noun, value, values)
        elif value is not None:
            ids = [await _resolve(operations, noun, text, values) for text in value]
            resolved[name] = list(dict.fromkeys(ids))
    return resolved


async def _resolve(operations: Operations, noun: Noun, text: str, values: Mapping[str, Any]) -> str:
    """Return the whole id that a text is the beginning of; the text if it is no short id.

    Args:
        values: the values of the parameters, which may name a database.
    """
    if not is_id_prefix(text):
        return text

    where = SessionLocator(db_id=values.get("db"), table=values.get("table"))
    candidates: dict[str, str] = {}
    cursor = None
    try:
        if noun == "session":
            # Callers choose ids of sessions: a whole id may be short.
            with suppress(NotFound):
                await operations.sessions.get(text, where, view="summary")
                return text

        for _ in range(MAXIMUM_PAGES):
            page = await _read_page(operations, noun, text, where, cursor)
            for row in page["data"]:
                record_id = str(row[f"{noun}_id"])
                if record_id.startswith(text):
                    candidates[record_id] = _describe(noun, row)
            cursor = page["meta"].get("next_cursor")
            if not cursor:
                break
    except Forbidden:
        # The command itself may be allowed: it gets the text.
        return text

    return choose_id("memories" if noun == "memory" else f"{noun}s", text, candidates)


async def _read_page(
    operations: Operations, noun: Noun, text: str, where: SessionLocator, cursor: str | None
) -> Any:
    """Return a page of the resources whose ids may begin with a text."""
    if noun == "run":
        page = Page(limit=MAXIMUM_LIMIT, cursor=cursor)
        runs = RunFilter(db_id=where.db_id, page=page, id_prefix=text, form=RunView("summary"))
        return (await operations.runs.list(runs)).value
    if noun == "file":
        from agentctl.interface.requests.files import FileFilter

        files = FileFilter(db_id=where.db_id, page=Page(limit=MAXIMUM_LIMIT, cursor=cursor))
        return (await operations.files.list(files)).value

    page = Page(limit=MAXIMUM_LIMIT, cursor=cursor, sort_by="updated_at")
    if noun == "memory":
        from agentctl.interface.requests.memories import MemoryFilter

        return (await operations.memories.list(MemoryFilter(page=page))).value
    sessions = SessionFilter(where, page=page, id_prefix=text)
    return (await operations.sessions.list(sessions)).value


def _describe(noun: Noun, row: Mapping[str, Any]) -> str:
    if noun == "run":
        return f"{row['status']}  {row['created_at']}"
    return str(row[{"session": "session_name", "file": "name"}.get(noun, noun)])


def choose_id(noun: str, text: str, candidates: Mapping[str, str]) -> str:
    """Return the only id that was found, or the text if there is none or it is an id itself.

    Args:
        candidates: a description of each record, by id.

    Raises:
        UsageError: several ids were found. A note on stderr lists them.
    """
    if text in candidates or not candidates:
        return text
    if len(candidates) == 1:
        return next(iter(candidates))

    for candidate, description in list(candidates.items())[:MAXIMUM_CANDIDATES]:
        note(f"{candidate}  {description[:DESCRIPTION_LENGTH]}")
    hidden_count = len(candidates) - MAXIMUM_CANDIDATES
    if hidden_count > 0:
        note(f"and {hidden_count} more")

    hint = "give more characters of the id"
    raise UsageError(f"the ids of {len(candidates)} {noun} begin with {text}", hint=hint)
