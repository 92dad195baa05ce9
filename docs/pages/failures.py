"""Failures and exit codes, from the tree of agentctl/errors.py."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pages.cli import commands
from pages.markdown import code, made_from, sentence, table

__all__ = ["page"]

_INTRODUCTION = f"""# Failures and exit codes

{made_from("agentctl/errors.py and agentctl/runtime/failures.py")}

Over HTTP a failure is `{{"detail": …, "error_code": …}}` with the status below; a 403 has
`required_scopes` beside them. `detail` is a text for people out of a fixed catalogue: decide by
status and `error_code`. The log has the rest, under the id in the header `X-Request-ID`. On the
terminal the same failure is text on stderr and an exit code.

## Over HTTP
"""

_TERMINAL = """
## On the terminal only
"""

_RUNS = """
## How a run fails

A run that was accepted answers with its record, whatever becomes of it. With `status` ERROR,
`error` is `{"code": …, "detail": …}`:
"""

_EXITS = """
## Exit codes

Beside these, `0` says that it is done (an empty list too), and `130` that Ctrl-C interrupted it.
"""

_EXIT_MEANINGS = {
    1: "failed, or the answer is no; a run that ended as ERROR or was cancelled, part of several "
    "failed, the port is taken, a database of another version",
    2: "the command line, the configuration or a key is refused; not confirmed",
    4: "not authenticated, or not allowed",
    5: "not found",
    6: "in conflict with what is there",
    7: "the database or the server is not available",
    8: "asked for, and not done within `--wait`",
}
_ENGINE = {
    "RUN_TIMEOUT": "It took longer than `runs.timeout_seconds`",
    "WORKER_LOST": "The process that worked on it ended without its end, or was taken for dead",
}
"""What ends a run from outside of its work (agentctl/runs)."""


def page() -> str:
    """`errors.md`."""
    from agentctl.runtime.failures import DETAILS

    kinds = _kinds()
    http = sorted((kind for kind in kinds if _has_status(kind)), key=lambda kind: kind.status)
    terminal = [kind for kind in kinds if not _has_status(kind)]
    runs: dict[str, str] = {**DETAILS, **_ENGINE}
    lines = [
        _INTRODUCTION,
        *table(("status", "error_code", "exit code", "meaning"), map(_http_row, http)),
        _TERMINAL,
        *table(("error_code", "exit code", "meaning"), map(_row, terminal)),
        _RUNS,
        *table(("code", "meaning"), [(code(name), sentence(text)) for name, text in runs.items()]),
        _EXITS,
        *table(("exit code", "meaning", "failures"), _exit_rows(kinds)),
    ]
    return "\n".join(lines) + "\n"


def _kinds() -> list[Any]:
    """The classes that a user can tell apart; the commands have one of their own."""
    from agentctl.errors import InternalError, iter_error_classes

    list(commands())
    return [
        kind for kind in iter_error_classes() if "error_code" in vars(kind) or kind is InternalError
    ]


def _has_status(kind: Any) -> bool:
    """Whether HTTP can answer it: a status of its own, or the 500 of the root."""
    from agentctl.errors import AgentctlError

    return bool(kind.status != AgentctlError.status or kind.error_code == AgentctlError.error_code)


def _http_row(kind: Any) -> tuple[str, ...]:
    return str(kind.status), *_row(kind)


def _row(kind: Any) -> tuple[str, ...]:
    """The first sentence of the docstring, without the status: the table has a column for it."""
    text = " ".join((inspect.getdoc(kind) or "").split())
    first = re.split(r"(?<=\.) ", re.sub(r" \(\d{3}\b[^)]*\)", "", text))[0]
    return code(kind.error_code), str(kind.exit_code), first


def _exit_rows(kinds: list[Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number in sorted({kind.exit_code for kind in kinds}):
        names = dict.fromkeys(code(kind.error_code) for kind in kinds if kind.exit_code == number)
        if number not in _EXIT_MEANINGS:
            raise SystemExit(f"docs: exit code {number} has no meaning in docs/pages/failures.py")
        rows.append((str(number), _EXIT_MEANINGS[number], ", ".join(names)))
    return rows
