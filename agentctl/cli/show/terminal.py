"""Notes and questions on stderr, and the width of text on a terminal."""

from __future__ import annotations

import signal
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from agentctl.cli.io import current_io
from agentctl.errors import ConfirmationDeclined, UsageError
from agentctl.records.text import escape_controls


def display_width(text: str) -> int:
    """Return the columns of `text` on a terminal: two for a wide character, none for a mark."""
    if text.isascii():
        return len(text)
    return sum(map(_count_columns, text))


def _count_columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def note(text: str) -> None:
    """Write a line to stderr: anything that is not data."""
    current_io().note(escape_controls(text))


def note_detail(text: str) -> None:
    """Write a line to stderr if the command has `--verbose`; the text has no secret in it."""
    if current_io().verbose:
        note_dim(text)


def note_dim(text: str, *, in_line: bool = False) -> None:
    """Write a line of minor importance to stderr, dim on a terminal with styles.

    Args:
        in_line: the data that was written last has not ended its line.
    """
    io = current_io()
    if in_line and io.err_is_terminal and io.out_is_terminal:
        io.note("")
    io.note(escape_controls(text), style="dim")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change that cannot be undone (docs/contract.md "Command line").

    Raises:
        UsageError: no terminal, or no question may be asked.
        ConfirmationDeclined: the answer was not yes, or the input ended.
    """
    if yes:
        return
    check_confirmable(yes=yes)
    answer = ask(f"{question} [y/N] ")
    if answer is None or answer.lower() not in ("y", "yes"):
        raise ConfirmationDeclined("not confirmed, nothing was changed")


def ask(question: str) -> str | None:
    """Ask for one line of text and return it without surrounding white space.

    Args:
        question: it ends with a space. The caller has checked `may_ask`.

    Returns:
        None if the input has ended.

    Raises:
        KeyboardInterrupt: Ctrl-C was typed.
    """
    io = current_io()
    # Before the question: who sees it may type Ctrl-C at once.
    with _interrupting():
        io.err.write(escape_controls(question))
        io.err.flush()
        answer = io.stdin.readline()
    if not answer.endswith("\n"):
        io.err.write("\n")
    return answer.strip() if answer else None


@contextmanager
def _interrupting() -> Iterator[None]:
    """Let Ctrl-C end a read at once; the handler of an event loop would wait for its result."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def may_ask() -> bool:
    """Return True if a person can be asked: at a terminal, unless no question is allowed."""
    io = current_io()
    return io.stdin_is_terminal and io.err_is_terminal and not io.no_input


def check_confirmable(
    *, yes: bool, what: str = "confirmation", hint: str = "pass --yes to skip the question"
) -> None:
    """Fail before the work that leads up to a question if no one could be asked.

    Args:
        what: the required thing, a noun for the error.

    Raises:
        UsageError: no terminal, or no question may be asked, and not `yes`.
    """
    if yes or may_ask():
        return
    io = current_io()
    reason = "stdin or stderr is not a terminal"
    if io.no_input:
        reason = "AGENTCTL_NO_INPUT is set" if io.asks else "--no-input is given"
    raise UsageError(f"{what} required, but {reason}", hint=hint)
