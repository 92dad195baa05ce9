"""Values that a shell completes: ids, names of contexts and scopes.

A completion never fails, writes nothing and takes `SECONDS` at most.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentctl.cli.io import IO, current_io, using_io
from agentctl.cli.target import TargetOptions, open_target
from agentctl.requests import MAXIMUM_LIMIT, MemoryFilter, Page, RunFilter, SessionFilter

if TYPE_CHECKING:
    from agentctl.cli.target import Target

SECONDS = 1.5
"""Time limit of a completion."""

Subject = Literal["agent", "team", "workflow", "session", "run", "memory", "context", "scope"]


def complete_in_bash(run: Callable[[], object]) -> None:
    """Run a completion for bash, which divides words at `:` and `=` and replaces the last part.

    Args:
        run: writes the completions of COMP_WORDS to stdout.
    """
    words, number, divided = _join_words(
        os.environ.get("COMP_WORDS", "").split("\n"), int(os.environ.get("COMP_CWORD") or 0)
    )
    if divided:
        os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(number)}
    with redirect_stdout(StringIO()) as found:
        try:
            run()
        finally:
            start = _BREAK.sub("", words[number]) if number < len(words) else ""
            lines = found.getvalue().splitlines()
            shown = [line.removeprefix(start) if divided else line for line in lines]
            current_io().out.write("".join(f"{line}\n" for line in shown if line))


_BREAK = re.compile("[^:=]*$")
"""The last part of a word: bash replaces this."""


def _join_words(words: list[str], number: int) -> tuple[list[str], int, bool]:
    joined: list[str] = []
    current, open_ends = 0, False
    for at, word in enumerate(words):
        is_break = bool(word) and not word.strip(":=")
        if joined and (is_break or open_ends):
            joined[-1] += word
        else:
            joined.append(word)
        open_ends = is_break
        if at == number:
            current = len(joined) - 1
    return joined, current, len(joined) < len(words)


def complete(subject: Subject, parameters: Mapping[str, Any], incomplete: str) -> list[str]:
    """Return the values that begin with a text.

    Args:
        subject: the kind of value.
        parameters: the options of the command line so far, which select the target.
        incomplete: the text.
    """
    with Path(os.devnull).open("r+", encoding="utf-8") as null, using_io(IO(null, null, null)):
        try:
            values = list(_list_values(subject, parameters))
        except (Exception, SystemExit):
            values = []  # a message would destroy the line that the user types
    return [value for value in dict.fromkeys(values) if value.startswith(incomplete)]


def _list_values(subject: Subject, parameters: Mapping[str, Any]) -> Iterable[str]:
    if subject == "context":
        from agentctl.cli import contexts

        return list(contexts.load_contexts().by_name)
    if subject == "scope":
        from agentctl.auth.scopes import KNOWN_SCOPES
        from agentctl.cli.options import resolve_admin_scope

        return [*KNOWN_SCOPES, resolve_admin_scope(None)]
    from agentctl.event_loop import run_event_loop

    given: dict[str, Any] = {
        each.name: parameters[each.name]
        for each in fields(TargetOptions)
        if parameters.get(each.name)
    }
    options = TargetOptions(**given)
    found: list[str] = []
    run_event_loop(_read(subject, options, found))
    return found


async def _read(subject: Subject, options: TargetOptions, found: list[str]) -> None:
    import asyncio
    from contextlib import suppress

    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS), open_target(options) as target:
            found += await _read_ids(subject, target)


async def _read_ids(subject: Subject, target: Target) -> list[str]:
    operations = target.operations
    if subject == "run":
        runs = (await operations.get_runs(RunFilter(page=Page(limit=MAXIMUM_LIMIT)))).value
        return [row["run_id"] for row in runs["data"]]
    if subject == "session":
        part = Page(limit=MAXIMUM_LIMIT, sort_by="updated_at")
        sessions = (await operations.get_sessions(SessionFilter(page=part))).value
        return [row["session_id"] for row in sessions["data"]]
    if subject == "memory":
        part = Page(limit=MAXIMUM_LIMIT, sort_by="updated_at")
        memories = (await operations.get_memories(MemoryFilter(page=part))).value
        return [row["memory_id"] for row in memories["data"]]
    assert subject in ("agent", "team", "workflow")
    components = (await operations.get_components(subject)).value
    return [str(row[f"{subject}_id"]) for row in components]
