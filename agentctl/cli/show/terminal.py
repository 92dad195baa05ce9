"""What is special about a terminal: safe text, widths, notes, lines that pass, questions."""

from __future__ import annotations

import contextlib
import unicodedata

from agentctl.cli.io import current_io
from agentctl.errors import ConfirmationDeclined, UsageError
from agentctl.records.text import escape_controls

__all__ = [
    "check_confirmable",
    "confirm",
    "display_width",
    "escape_controls",
    "note",
    "note_dim",
    "show_status_line",
    "truncate",
]


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


def show_status_line(text: str) -> None:
    """Show a line on stderr that does not stay: the next one, a note or `""` takes its place."""
    io = current_io()
    room = (io.width(io.err) or 80) - 1
    shown = escape_controls(text)[:room]
    # Behind the line there may be a ^C. And the terminal may be gone.
    blank = " " * min(io.status_width + 4, room)
    line = f"\r{shown:{io.status_width}}" if shown else f"\r{blank}\r"
    with contextlib.suppress(OSError):
        io.err.write(line)
        io.err.flush()
    io.status_width = len(shown)


def note(text: str) -> None:
    """Say something that is not data: one line on stderr."""
    io = current_io()
    if io.status_width:
        show_status_line("")
    io.err.write(escape_controls(text) + "\n")
    io.err.flush()


def note_dim(text: str, *, in_line: bool = False) -> None:
    """Say something beside the data, on a line of stderr; dim where the terminal can.

    Args:
        in_line: data that was written last has not ended its line.
    """
    io = current_io()
    line = escape_controls(text)
    if io.err_is_terminal:
        line = f"\x1b[2m{line}\x1b[0m" if io.styled else line
        if in_line and io.out_is_terminal:
            line = f"\n{line}"
    io.err.write(line + "\n")
    io.err.flush()


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
    io = current_io()
    io.err.write(f"{escape_controls(question)} [y/N] ")
    io.err.flush()
    answer = io.stdin.readline()
    if not answer.endswith("\n"):
        io.err.write("\n")
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfirmationDeclined("not confirmed, nothing was changed")


def check_confirmable(*, yes: bool) -> None:
    """Refuse what `confirm` would, before the work that leads up to the question.

    Raises:
        UsageFailed: it is not confirmed, and nobody can be asked.
    """
    io = current_io()
    can_ask = io.stdin_is_terminal and io.err_is_terminal and not io.no_input
    if not yes and not can_ask:
        raise UsageError(
            "this needs a confirmation, and there is nobody to ask",
            hint="pass --yes to go ahead without being asked",
        )
