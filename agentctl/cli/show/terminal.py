"""What is special about a terminal: safe text, widths, notes, lines that pass, questions."""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from typing import TextIO

from agentctl.errors import ConfirmationDeclined, UsageError
from agentctl.records.text import escape_controls

__all__ = [
    "check_confirmable",
    "confirm",
    "display_width",
    "escape_controls",
    "is_terminal",
    "note",
    "note_dim",
    "show_status_line",
    "terminal_width",
    "truncate",
]

_passing = 0
"""Columns of the passing line that is on the screen."""


def display_width(text: str) -> int:
    """Columns that `text` takes on a terminal: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def truncate(text: str, columns: int) -> str:
    """As much of `text` as takes `columns` on a terminal, three dots at its end included."""
    room = columns - 3
    for at, character in enumerate(text):
        room -= _character_width(character)
        if room < 0:
            return f"{text[:at]}..."
    return text


def _character_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`."""
    return stream.isatty()


def terminal_width(stream: TextIO) -> int | None:
    """How many columns the terminal behind `stream` has (COLUMNS wins); None: it does not say."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def show_status_line(text: str) -> None:
    """Show a line on stderr that does not stay: the next one, a note or `""` takes its place."""
    global _passing
    room = (terminal_width(sys.stderr) or 80) - 1
    shown = escape_controls(text)[:room]
    # Behind the line there may be a ^C. And the terminal may be gone.
    line = f"\r{shown:{_passing}}" if shown else "\r" + " " * min(_passing + 4, room) + "\r"
    with contextlib.suppress(OSError):
        sys.stderr.write(line)
        sys.stderr.flush()
    _passing = len(shown)


def note(text: str) -> None:
    """Say something that is not data: one line on stderr."""
    if _passing:
        show_status_line("")
    sys.stderr.write(escape_controls(text) + "\n")
    sys.stderr.flush()


def note_dim(text: str, *, in_line: bool = False) -> None:
    """Say something beside the data, on a line of stderr; dim where the terminal can.

    Args:
        in_line: data that was written last has not ended its line.
    """
    line = escape_controls(text)
    if is_terminal(sys.stderr):
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        line = line if plain else f"\x1b[2m{line}\x1b[0m"
        if in_line and is_terminal(sys.stdout):
            line = f"\n{line}"
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone (contract.md 8).

    Args:
        question: what is about to happen, as a question without answers.
        yes: the `--yes` option: do not ask.

    Raises:
        UsageFailed: nobody can be asked: no terminal, or AGENTCTL_NO_INPUT is set.
        Refused: the answer was not yes, or the input ended.
    """
    if yes:
        return
    check_confirmable(yes=yes)
    sys.stderr.write(f"{escape_controls(question)} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfirmationDeclined("not confirmed, nothing was changed")


def check_confirmable(*, yes: bool) -> None:
    """Refuse what `confirm` would, before the work that leads up to the question.

    Raises:
        UsageFailed: it is not confirmed, and nobody can be asked.
    """
    if not yes and not _is_interactive():
        raise UsageError(
            "this needs a confirmation, and there is nobody to ask",
            hint="pass --yes to go ahead without being asked",
        )


def _is_interactive() -> bool:
    silent = os.environ.get("AGENTCTL_NO_INPUT", "") not in ("", "0")
    return not silent and is_terminal(sys.stdin) and is_terminal(sys.stderr)
