"""The pages of the project: code blocks, commands, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

__all__ = ["ROOT", "Block", "Command", "Page", "page", "pages"]

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
_PICTURE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+\.svg)\)")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A code block: language, text, and its first line in the page."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A command, the output that the page shows for it, and its line in the page."""

    text: str
    output: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Page:
    """A page. `name` is its path relative to the project."""

    name: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[Block]:
        return [
            Block(language, match["text"], self.text.count("\n", 0, match.start()) + 2)
            for match in _BLOCK.finditer(self.text)
            if match["language"] == language
        ]

    def commands(self) -> list[Command]:
        """Return the lines of `console` blocks that begin with a dollar sign."""
        return [command for block in self.blocks("console") for command in _commands(block)]

    def terminal_pictures(self) -> list[tuple[Path, list[int]]]:
        """Return each picture of a terminal, and the lines of the commands in the block before."""
        found = []
        for match in _PICTURE.finditer(self.text):
            line = self.text.count("\n", 0, match.start()) + 1
            before = [block for block in self.blocks("console") if block.line < line]
            lines = [command.line for block in before[-1:] for command in _commands(block)]
            found.append((self.path.parent / match["target"], lines))
        return found

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of the headings."""
        prose = _BLOCK.sub("", self.text)
        return {_anchor(match["title"]) for match in _HEADING.finditer(prose)}

    def links(self) -> list[str]:
        """Return the targets of the links within the project."""
        prose = _BLOCK.sub("", self.text)
        targets = (match["target"] for match in _LINK.finditer(prose))
        return [target for target in targets if not re.match(r"[a-z]+:", target)]


@cache
def page(name: str) -> Page:
    """Return the page with this path."""
    return Page(name)


def pages() -> list[Page]:
    """Return every page of the project."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [page(str(path.relative_to(ROOT))) for path in sorted(found)]


def _commands(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = tuple(line for line in lines[start + 1 : end] if line.strip())
        yield Command(lines[start].removeprefix("$ "), output, block.line + start)


def _anchor(title: str) -> str:
    """Return the anchor of a heading: lower case, dashes for spaces, no punctuation."""
    kept = re.sub(r"[^\w\- ]", "", title.strip().lower())
    return kept.replace(" ", "-")
