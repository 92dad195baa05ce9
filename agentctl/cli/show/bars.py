"""Bars of characters: pictures of numbers that need no color."""

from __future__ import annotations

from agentctl.cli.io import current_io

BAR_COLUMNS = 20
_BLOCKS = " ▏▎▍▌▋▊▉█"


def draw_bar(value: int, most: int) -> str:
    """Return a bar of at most 20 columns for a value, whose longest is that of `most`."""
    if most <= 0 or value <= 0:
        return ""
    if not _is_unicode():
        return "#" * max(1, round(value / most * BAR_COLUMNS))
    eighths = max(1, round(value / most * BAR_COLUMNS * 8))
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).strip()


def draw_parts(parts: list[tuple[int, str, str]], most: int) -> str:
    """Return a bar of at most 20 columns of several parts; a part that is not 0 has a column.

    Args:
        parts: the value, the character, and the one for a terminal that has only ASCII.
        most: the sum of the parts of the longest bar.
    """
    total = sum(value for value, _, _ in parts)
    if most <= 0 or total <= 0:
        return ""
    is_unicode = _is_unicode()
    columns = [max(1, round(value / most * BAR_COLUMNS)) if value else 0 for value, _, _ in parts]
    while sum(columns) > BAR_COLUMNS:
        columns[columns.index(max(columns))] -= 1
    characters = (block if is_unicode else plain for _, block, plain in parts)
    return "".join(character * count for character, count in zip(characters, columns, strict=True))


def _is_unicode() -> bool:
    return (current_io().out.encoding or "").lower().startswith("utf")
