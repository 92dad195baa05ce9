"""The tables of docs/agentos.md, of the operations and of the tokens.

python -m compat.page    write them
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from compat.cells import Cell
from compat.operations import ROWS
from compat.tokens import DIFFERENCES

__all__ = ["PAGE", "render", "wrap"]

PAGE = Path(__file__).parents[1] / "docs" / "agentos.md"


def build_operations_table() -> str:
    """Return the table of operations and the numbered notes below it."""
    notes: dict[str, int] = {}
    lines = ["| operation | clients of AgentOS here | agent-ui here |", "| --- | --- | --- |"]
    for row in ROWS:
        cells = [_format_cell(cell, notes) for cell in (row.client, row.page)]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    lines.append("")
    for reason, number in notes.items():
        text = f"{number}. {reason[0].upper()}{reason[1:]}."
        lines += wrap(text, 3 if number < 10 else 4)
    return "\n".join(lines)


def build_tokens_table() -> str:
    """Return the table of tokens that have other answers here."""
    lines = ["| token | AgentOS 2 | AgentOS 3 | this server | reason |", "| --- " * 5 + "|"]
    for name, difference in DIFFERENCES.items():
        shown = [
            _describe_statuses(statuses)
            for statuses in (difference.release_2, difference.release_3, difference.here)
        ]
        lines.append(f"| {name} | {' | '.join(shown)} | {difference.reason} |")
    return "\n".join(lines)


def _describe_statuses(statuses: tuple[int, ...]) -> str:
    """Return `accepted`, or the status, for the statuses of three requests."""
    if len(set(statuses)) == 1:
        return "accepted" if statuses[0] == 200 else str(statuses[0])
    return "accepted, with its valid scopes"


def _format_cell(cell: Cell, notes: dict[str, int]) -> str:
    if not cell.file:
        return cell.text
    shown = f"[{cell.text}](../compat/{cell.file})"
    if not cell.reason:
        return shown
    return f"{shown} ({notes.setdefault(cell.reason, len(notes) + 1)})"


def wrap(text: str, indent: int) -> Iterator[str]:
    """Yield the lines of a list item, with at most 100 columns."""
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 100:
            yield line
            line = " " * indent + word
        else:
            line = f"{line} {word}" if line else word
    yield line


def render(page: str) -> str:
    """Return the text of the page with current tables, between the comments that mark them."""
    for name, build in (("operations", build_operations_table), ("tokens", build_tokens_table)):
        begin = f"<!-- {name}: compat/page.py -->"
        end = f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        assert pattern.search(page), f"{PAGE} has no place for the table of {name}"
        text = f"{begin}\n\n{build()}\n\n{end}"
        page = pattern.sub(lambda _, text=text: text, page)
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
