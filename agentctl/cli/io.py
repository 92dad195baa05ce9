"""The streams of a command: one object, which tests replace with buffers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

from agentctl.errors import UsageError, build_empty_value_error

if TYPE_CHECKING:
    from rich.console import Console


TOKEN_VARIABLE = "AGENTCTL_TOKEN"

_MAXIMUM_TOKEN_BYTES = 1 << 16
"""Bytes of a token file that are read; no server accepts a longer token."""

_ERASE = "\r\x1b[K"
"""Moves the cursor to the beginning of its line, and erases the line."""

MINIMUM_WIDTH = 10
"""Columns that are drawn for on a terminal with fewer."""

_NO_WRAP = "\x1b[?7l"
"""Makes a terminal cut long lines.

A terminal that draws characters wider than expected must not wrap a draft, which is erased by its
number of lines.
"""

_WRAP = "\x1b[?7h"
"""Makes a terminal wrap long lines again."""

_current: ContextVar[IO] = ContextVar("agentctl_io")


@dataclass(eq=False, slots=True)
class IO:
    """The standard streams of a command, and the properties of the terminals that they are.

    The environment variables COLUMNS, LINES, NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM and
    AGENTCTL_NO_INPUT are read when a property is, so a test that sets them needs no other argument.

    The streams are text streams with a `buffer`. Data goes to `out`, all else to `err`.
    """

    stdin: TextIO
    out: TextIO
    err: TextIO
    color: Literal["auto", "always", "never"] = "auto"

    progress: Console | None = None
    """The console of the progress line that is on the screen; None without one."""

    draft: str = ""
    """The last line on the terminal `out` that is not final; empty without one."""

    verbose: bool = False
    """`--verbose` was given: `detail` writes lines."""

    quiet: bool = False
    """`--quiet` was given: `note` writes none, and no progress is shown."""

    asks: bool = True
    """False with `--no-input`."""

    @classmethod
    def of_process(cls) -> IO:
        return cls(sys.stdin, sys.stdout, sys.stderr)

    @property
    def stdin_is_terminal(self) -> bool:
        return self.stdin.isatty()

    @property
    def out_is_terminal(self) -> bool:
        return self.out.isatty()

    @property
    def err_is_terminal(self) -> bool:
        return self.err.isatty()

    @property
    def no_input(self) -> bool:
        """True if no question may be asked: `--no-input` is given or AGENTCTL_NO_INPUT is set."""
        return not self.asks or os.environ.get("AGENTCTL_NO_INPUT", "") not in ("", "0")

    def styles(self, stream: TextIO) -> bool:
        """Return True if colours and styles may be written to `stream`.

        `--color` wins over NO_COLOR, that over FORCE_COLOR and CLICOLOR_FORCE; without them a
        terminal gets them.
        """
        if self.color != "auto" or os.environ.get("NO_COLOR"):
            return self.color == "always"
        forced = (os.environ.get(name, "") for name in ("FORCE_COLOR", "CLICOLOR_FORCE"))
        if any(value not in ("", "0") for value in forced):
            return True
        return stream.isatty() and self.moves_cursor

    @property
    def moves_cursor(self) -> bool:
        """True if a terminal may be sent control sequences."""
        return os.environ.get("TERM", "dumb") != "dumb"

    def width(self, stream: TextIO) -> int | None:
        """Return the columns of the terminal `stream`; COLUMNS wins. None: unknown.

        At least `MINIMUM_WIDTH`: rich cannot wrap in a few columns, and no one can read it.
        """
        columns = _read_size("COLUMNS", stream, 0)
        return None if columns is None else max(columns, MINIMUM_WIDTH)

    def height(self, stream: TextIO) -> int:
        """Return the lines of the terminal `stream`, by default 25; LINES wins."""
        return _read_size("LINES", stream, 1) or 25

    def console(
        self, stream: TextIO, width: int | None = None, *, styled: bool | None = None
    ) -> Console:
        """Create a rich console; `width` and `styled` replace the properties of `stream`."""
        from io import TextIOWrapper

        from rich.console import Console

        styled = self.styles(stream) if styled is None else styled
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # rich would fail on other characters
        return Console(
            file=stream,
            width=width or self.width(stream) or 80,
            height=25,  # without it rich assumes 80 columns if TERM is dumb
            force_terminal=stream.isatty(),
            color_system="standard" if styled else None,
            no_color=not styled,
            emoji=False,
            highlight=False,
            markup=False,
        )

    def note(self, line: str, *, style: str = "") -> None:
        """Write a line to `err`, above the progress line or the draft if there is one.

        Args:
            line: without control characters.
        """
        if self.quiet:
            return

        # Both streams are the same terminal: the draft is drawn again below the line.
        draft = self.draft if self.err_is_terminal else ""
        if draft:
            self.write_above("", "")

        if self.progress is None and not (style and self.styles(self.err)):
            self.err.write(f"{line}\n")
        else:
            console = self.progress or self.console(self.err)
            console.print(line, style=style, soft_wrap=True)
        self.err.flush()

        if draft:
            self.write_above("", draft)

    def write_above(self, lines: str, draft: str) -> None:
        """Write whole lines to the terminal `out`, then a draft in place of the last one.

        Args:
            lines: text without control characters, but with styles.
            draft: the beginning of a line that is not final, without control characters.
        """
        erase = _ERASE if self.draft else ""
        begin, end = ("\x1b[2m", "\x1b[0m") if self.styles(self.out) else ("", "")
        dimmed = f"{_NO_WRAP}{begin}{draft}{end}{_WRAP}" if draft else ""
        self.draft = draft
        self.out.write(f"{erase}{lines}{dimmed}")
        self.out.flush()


def _read_size(variable: str, stream: TextIO, at: int) -> int | None:
    size = os.environ.get(variable, "")
    if size.isdecimal() and int(size):
        return int(size)
    try:
        return os.get_terminal_size(stream.fileno())[at] or None
    except (OSError, ValueError):
        return None


def current_io() -> IO:
    """Return the streams of the command that runs, by default the streams of the process."""
    return _current.get(None) or IO.of_process()


def read_text_or_stdin(value: str, noun: str) -> str:
    """Return the value of an option or argument, for `-` stdin without its last line feed.

    Raises:
        UsageError: stdin is not UTF-8.
    """
    if value != "-":
        return value
    try:
        return current_io().stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UsageError(f"the {noun} on stdin is not UTF-8 text") from None


def read_file_or_stdin(source: str) -> bytes:
    """Return the content of a file, or of stdin for `-`; UsageError if it cannot be read."""
    if source == "-":
        return current_io().stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as failure:
        cause = (failure.strerror or "reading failed").lower()
        raise UsageError(f"{source} cannot be read", cause=cause) from None


def resolve_token(token_file: str | None) -> str | None:
    """Return the token of `--token-file` (`-` is stdin), else of AGENTCTL_TOKEN, else None.

    Raises:
        UsageError: AGENTCTL_TOKEN is empty: without it, the command would have another identity.
    """
    if token_file is not None:
        return read_token_file(token_file)
    token = os.environ.get(TOKEN_VARIABLE)
    if token is None:
        return None
    if not token.strip():
        raise build_empty_value_error(TOKEN_VARIABLE)
    return token.strip()


def read_token_file(name: str) -> str:
    """Read the token in a file, or on stdin for `-`, without surrounding white space.

    Raises:
        UsageError: the file cannot be read, is not ASCII text or is empty.
    """
    detail = f"no token can be read from {'stdin' if name == '-' else name}"
    try:
        if name == "-":
            data = current_io().stdin.buffer.read(_MAXIMUM_TOKEN_BYTES)
        else:
            with Path(name).open("rb") as file:
                data = file.read(_MAXIMUM_TOKEN_BYTES)
        token = data.decode("ascii").strip()
    except OSError as error:
        cause = (error.strerror or "it cannot be read").lower()
        raise UsageError(detail, cause=cause) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            detail, cause="it is not ASCII text", hint="a token is one line of ASCII text"
        ) from error

    if not token:
        raise UsageError(
            detail,
            cause="it is empty",
            hint="write a token there: agentctl token mint --sub me --scope user > FILE",
        )
    return token


@contextmanager
def using_io(io: IO) -> Iterator[None]:
    """Make `io` the current one within the block."""
    token = _current.set(io)
    try:
        yield
    finally:
        _current.reset(token)
