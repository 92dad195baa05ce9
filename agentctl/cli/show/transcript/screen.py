"""An answer that grows at a terminal: its complete blocks, and the rest in a line that disappears.

Only `runs start` and `runs watch` load this module, at a terminal that can erase a line.
"""

from __future__ import annotations

from agentctl.cli.io import current_io
from agentctl.cli.show.terminal import display_width
from agentctl.cli.show.transcript.draw import Printer, create_console, find_width
from agentctl.cli.show.transcript.live import LiveAnswer
from agentctl.transcripts.model import clean_line
from agentctl.transcripts.texts import Look

TAIL = 400
"""Characters at the end of an incomplete block that may be in the draft."""

MARGIN = 3
"""Columns at the right of a draft that stay empty: an echoed `^C` would otherwise wrap there."""


class ScreenAnswer(LiveAnswer):
    """Draws an answer at a terminal. The end of the incomplete block is the draft of the screen."""

    def __init__(self) -> None:
        self._io = current_io()
        self._lines: list[str] = []
        self._console = create_console(styled=True)
        super().__init__(Printer(self._console, Look(full=True), self._lines.append))

    @property
    def is_partial(self) -> bool:
        """True while a draft is on the screen."""
        return bool(self._io.draft)

    def add(self, text: str) -> None:
        """Add a text, and show the blocks that are complete with it, and the rest as a draft."""
        super().add(text)
        self._update()

    def end(self) -> None:
        """Draw the text so far although its last block is not complete."""
        super().end()
        self._update()

    def _draw(self, text: str) -> None:
        self._console.width = find_width()  # the window may have another size now
        super()._draw(text)

    def _update(self) -> None:
        """Write the new lines and the draft at once: a person never sees one without the other."""
        lines, draft = "".join(self._lines), self._format_draft()
        self._lines.clear()
        if lines or draft != self._io.draft:
            self._io.write_above(lines, draft)

    def _format_draft(self) -> str:
        """Return the end of the incomplete block as one line that fits the terminal."""
        text = clean_line("".join(self._rest[-TAIL:])[-TAIL:])
        encoding = self._io.out.encoding or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        room = (self._io.width(self._io.out) or 80) - MARGIN
        width = display_width(text)
        start = 0
        while width > room:
            width -= display_width(text[start])
            start += 1
        return text[start:]
