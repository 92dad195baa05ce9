"""Markdown for the generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["code", "made_from", "sentence", "table"]


def made_from(*sources: str) -> str:
    """Return the note at the top of a page that names its sources."""
    return f"<!-- Generated from {', '.join(sources)} by docs/generate.py; do not edit. -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; a cell is Markdown of one line."""
    lines = [_row(heads), _row(["---"] * len(heads))]
    return [*lines, *map(_row, rows)]


def code(text: str) -> str:
    """Return `text` as code, or an empty text unchanged."""
    return f"`{text}`" if text else ""


def sentence(text: str) -> str:
    """Return `text` with a capital letter and a period."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "]")) else ".")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
