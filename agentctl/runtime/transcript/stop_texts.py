"""The texts at which the answer of a run ends (`stop` of OpenAI's API)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAXIMUM_TEXTS = 4
MAXIMUM_CHARACTERS = 256
"""Maximum number of the texts of a request, and their length: each piece is compared with all."""

AddText = Callable[[str], None]


class StopTexts:
    """Cuts the text of a run before the first of its stop texts, and completes the run there.

    The end of a piece that may be the beginning of a stop text is held back until the next piece,
    or the end of the answer, decides.

    Args:
        texts: the stop texts; empty for a run without any.
        complete: completes the run; it raises asyncio.CancelledError.
    """

    def __init__(
        self, texts: Sequence[str] = (), complete: Callable[[], None] = lambda: None
    ) -> None:
        self._texts = texts
        self._complete = complete
        self._held = ""
        self._add: AddText | None = None

    def take(self, piece: str, add: AddText) -> None:
        """Give the part of a piece that is surely no stop text to `add`.

        Raises:
            asyncio.CancelledError: the answer has reached a stop text.
        """
        if not self._texts:
            add(piece)
            return
        text, self._held, self._add = self._held + piece, "", add
        before = self.cut(text)
        if before is not None:
            _add_some(before, add)
            self._complete()
            return
        end = len(text) - self._count_held(text)
        # First: the first text of an answer completes an open one, and releases the held text.
        _add_some(text[:end], add)
        self._held = text[end:]

    def release(self) -> None:
        """Add the text that was held back: the answer ends."""
        text, self._held = self._held, ""
        if self._add is not None:
            _add_some(text, self._add)

    def cut(self, text: str) -> str | None:
        """Return the text before the first stop text; None if there is none in it."""
        found = [at for each in self._texts if (at := text.find(each)) >= 0]
        return text[: min(found)] if found else None

    def _count_held(self, text: str) -> int:
        """Return the length of the longest end of a text that begins a stop text."""
        return max(
            (
                size
                for each in self._texts
                for size in range(1, min(len(each), len(text) + 1))
                if text.endswith(each[:size])
            ),
            default=0,
        )


def _add_some(text: str, add: AddText) -> None:
    if text:
        add(text)
