"""The modules and the files that docs/internals/own-parts.md names exist."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import pytest

from tests.architecture.sources import PACKAGE

PAGE = PACKAGE.parent / "docs" / "internals" / "own-parts.md"


class Part(NamedTuple):
    """A row of the page: its cells as text, and the paths of its modules."""

    name: str
    modules: tuple[str, ...]
    library: str
    decision: str
    test: str


@cache
def read_parts() -> list[Part]:
    """Return the rows of the section "Kept"."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Kept\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return [
        Part(name, tuple(re.findall(r"`([^`]+)`", paths)), *other_cells)
        for name, paths, *other_cells in rows[2:]
    ]


def list_differential_tests() -> list[str]:
    """Return the files of all differential tests, relative to the project."""
    tests = {link for part in read_parts() for link in find_links(part.test)}
    return sorted(link.removeprefix("../") for link in tests)


def find_links(cell: str) -> list[str]:
    """Return the targets of the Markdown links of a cell, relative to the folder `docs`."""
    return re.findall(r"\]\(([^)]+)\)", cell)


@pytest.mark.parametrize("part", read_parts(), ids=lambda part: part.name)
def test_modules_and_links_of_a_part_exist(part: Part) -> None:
    assert part.modules
    assert [path for path in part.modules if not (PACKAGE / path).is_file()] == []

    links = find_links(part.decision) + find_links(part.test)
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []
