"""Values that a shell completes: ids, names of contexts and scopes.

A completion never fails, writes nothing and takes `SECONDS` at most.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentctl.cli import contexts
from agentctl.cli.io import IO, current_io, using_io
from agentctl.cli.options import resolve_admin_scope
from agentctl.cli.target import TargetOptions, open_target
from agentctl.interface.requests import MAXIMUM_LIMIT, Page, RunFilter, SessionFilter
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.interface.requests.memories import MemoryFilter

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

SECONDS = 1.5
"""Time limit of a completion."""

Subject = Literal[
    "agent", "team", "workflow", "session", "run", "approval", "memory", "context", "scope"
]

_BREAK = re.compile("[^:=]*$")
"""The last part of a word: bash replaces this."""


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

    with redirect_stdout(StringIO()) as output:
        try:
            run()
        finally:
            # Typer ends with an exception.
            start = _BREAK.sub("", words[number]) if number < len(words) else ""
            for line in output.getvalue().splitlines():
                ending = line.removeprefix(start) if divided else line
                if ending:
                    current_io().out.write(f"{ending}\n")


def _join_words(words: list[str], number: int) -> tuple[list[str], int, bool]:
    """Join the parts of words that bash has divided at `:` and `=`.

    Args:
        number: the index of the part that is completed.

    Returns:
        The whole words, the index of the word that is completed, and True if any was divided.
    """
    joined_words: list[str] = []
    current = 0
    is_open = False
    for at, word in enumerate(words):
        is_break = bool(word) and not word.strip(":=")
        if joined_words and (is_break or is_open):
            joined_words[-1] += word
        else:
            joined_words.append(word)
        is_open = is_break

        if at == number:
            current = len(joined_words) - 1

    return joined_words, current, len(joined_words) < len(words)


def complete(subject: Subject, parameters: Mapping[str, Any], incomplete: str) -> list[str]:
    """Return the values that begin with a text."""
    with Path(os.devnull).open("r+", encoding="utf-8") as null, using_io(IO(null, null, null)):
        try:
            values = list(_list_values(subject, parameters))
        except (Exception, SystemExit):
            # A message would destroy the line that the user types.
            values = []
    return [value for value in dict.fromkeys(values) if value.startswith(incomplete)]


def _list_values(subject: Subject, parameters: Mapping[str, Any]) -> Iterable[str]:
    if subject == "context":
        return list(contexts.load_contexts().by_name)
    if subject == "scope":
        from agentctl.cli.commands.token import USER_SCOPES_NAME
        from agentctl.records.authorization import KNOWN_SCOPES

        return [USER_SCOPES_NAME, *KNOWN_SCOPES, resolve_admin_scope(None)]

    import asyncio

    from agentctl.work.event_loop import run_event_loop

    names = [option.name for option in fields(TargetOptions) if parameters.get(option.name)]
    options = TargetOptions(**{name: parameters[name] for name in names})
    ids: list[str] = []

    async def read() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS), open_target(options) as target:
                ids.extend(await _read_ids(subject, target.operations))

    run_event_loop(read())
    return ids


async def _read_ids(subject: Subject, operations: Operations) -> list[str]:
    """Return the ids of the newest records of a kind."""
    page = Page(limit=MAXIMUM_LIMIT, sort_by="updated_at")
    rows: Any
    if subject == "run":
        runs = RunFilter(page=Page(limit=MAXIMUM_LIMIT))
        rows = (await operations.runs.list(runs)).value["data"]
    elif subject == "approval":
        pending = ApprovalFilter(status="pending", page=Page(limit=MAXIMUM_LIMIT))
        rows = (await operations.approvals.list(pending)).value["data"]
    elif subject == "session":
        rows = (await operations.sessions.list(SessionFilter(page=page))).value["data"]
    elif subject == "memory":
        rows = (await operations.memories.list(MemoryFilter(page=page))).value["data"]
    else:
        assert subject in ("agent", "team", "workflow")
        rows = (await operations.components.list(subject)).value

    return [str(row[f"{subject}_id"]) for row in rows]
