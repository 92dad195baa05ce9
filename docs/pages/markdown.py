"""The little Markdown that the pages need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["code", "made_from", "sentence", "table"]


def made_from(*sources: str) -> str:
    """The note at the top of a page: what it is made from."""
    return f"<!-- Made from {', '.join(sources)} by docs/generate.py; do not edit. -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; a cell is Markdown of one line."""
    lines = [_row(heads), _row(["---"] * len(heads))]
    return [*lines, *map(_row, rows)]


def code(text: str) -> str:
    """`text` as code; nothing for nothing."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "]")) else ".")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
