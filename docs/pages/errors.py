"""`errors.md`: the errors and exit codes, from the classes of agentctl/errors.py."""

from __future__ import annotations

import inspect
import re
from typing import Any

from agentctl.cli.commands.help import EXIT_CODES
from pages.cli import commands
from pages.markdown import code, made_from, sentence, table

__all__ = ["page"]

_INTRODUCTION = f"""# Errors and exit codes

{made_from("agentctl/errors.py and agentctl/runtime/failures.py")}

Over HTTP an error is `{{"detail": …, "error_code": …}}` with the status below; a 403 has
`required_scopes` as well. `detail` is a text for people from a fixed catalogue: decide by status
and `error_code`. The server's log has more, under the id of the header `X-Request-ID`. On the
terminal the same error is text on stderr and an exit code.

## Over HTTP
"""

_TERMINAL = """
## On the terminal only
"""

_RUNS = """
## Failures of a run

The response to an accepted run is its record, for any final status. With `status` ERROR, `error` is
`{"code": …, "detail": …}`:
"""

_EXITS = """
## Exit codes

Other exit codes are `0`, done (an empty list too), and `130`, interrupted by Ctrl-C.
"""

_ENGINE = {
    "RUN_TIMEOUT": "The run took longer than `runs.timeout_seconds`",
    "VERSION_CHANGED": "The component changed while the run waited, and `on_change` is `fail`, a"
    " person refused the change, the agent has another kind now, or a workflow has another step in"
    " the place of one that waits",
    "QUEUE_TIMEOUT": "The run waited in the queue for a day",
    "WORKER_LOST": "The process that worked on the run is gone",
    "AGENT_FAILED": "The code of the agent failed, or the run would exceed `limits.run_bytes`, with"
    " data of its code, its tools or its models",
}
"""Codes of runs that the engine ends (agentctl/runs)."""


def page() -> str:
    """Build `errors.md`."""
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
        *table(("exit code", "meaning", "errors"), _exit_rows(kinds)),
    ]
    return "\n".join(lines) + "\n"


def _kinds() -> list[Any]:
    """Return the error classes with a code, those that the commands define included."""
    from agentctl.errors import InternalError, iter_error_classes

    list(commands())
    return [
        kind for kind in iter_error_classes() if "error_code" in vars(kind) or kind is InternalError
    ]


def _has_status(kind: Any) -> bool:
    """Return True if a server responds with the error: it has a status, or is the 500."""
    from agentctl.errors import AgentctlError

    return bool(kind.status != AgentctlError.status or kind.error_code == AgentctlError.error_code)


def _http_row(kind: Any) -> tuple[str, ...]:
    return str(kind.status), *_row(kind)


def _row(kind: Any) -> tuple[str, ...]:
    """Return code, exit code and the first sentence of the docstring, without the status."""
    text = " ".join((inspect.getdoc(kind) or "").split())
    first = re.split(r"(?<=\.) ", re.sub(r" \(\d{3}\b[^)]*\)", "", text))[0]
    return code(kind.error_code), str(kind.exit_code), first


def _exit_rows(kinds: list[Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number in sorted({kind.exit_code for kind in kinds}):
        names = dict.fromkeys(code(kind.error_code) for kind in kinds if kind.exit_code == number)
        if number not in EXIT_CODES:
            raise SystemExit(
                f"docs: exit code {number} has no meaning in agentctl/cli/commands/help.py"
            )
        rows.append((str(number), EXIT_CODES[number], ", ".join(names)))
    return rows
