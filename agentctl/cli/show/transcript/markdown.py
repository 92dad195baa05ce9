"""Markdown of an answer, drawn by rich without hyperlinks, raw HTML or syntax highlighting.

The text comes from a model. Control characters are escaped before it is parsed, and again in the
parsed tokens: an entity such as `&#x202e;` becomes a character there. HTML is shown as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, ImageItem, Markdown, MarkdownElement, TableElement, TextElement
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from agentctl.records.text import escape_controls

MAXIMUM_WIDTH = 10_000
"""Columns at which a table is measured: no cell is narrower than its longest word."""

MAXIMUM_MARKDOWN = 100_000
"""Characters of a text that is parsed; a longer one is shown as plain text."""


class _LeftHeading(Heading):
    """A heading at the left margin, whose level is seen without styles."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        text.justify = "left"
        yield text


class _Code(TextElement):
    """A block of code, indented; long lines are folded."""

    style_name = "none"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Text(str(self.text).rstrip("\n"), style="cyan", overflow="fold")
        yield Padding(code, (0, 0, 0, 4))


class _Table(TableElement):
    """A table without empty lines around it; one block for each row if a word would be cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                part.show_edge = False
                wide_options = options.update(width=MAXIMUM_WIDTH)
                if Measurement.get(console, wide_options, part).minimum > options.max_width:
                    # rich would break words to fit the columns.
                    yield from self._draw_rows()
                    continue
            yield part

    def _draw_rows(self) -> Iterator[Text]:
        heads = self.header.row.cells if self.header and self.header.row else []
        for number, row in enumerate(self.body.rows if self.body else ()):
            if number:
                yield Text("")
            for head, cell in zip(heads, row.cells, strict=False):
                name = Text(f"{head.content.plain}: ", style="bold", end="")
                yield Text.assemble(name, cell.content, overflow="fold")


class _Image(ImageItem):
    """A picture as its text and its URL."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title = self.text.plain
        place = f"({self.destination})" if title else self.destination
        yield Text(" ".join(filter(None, (title, place))), end=" ", overflow="fold")


class _Answer(Markdown):
    """Markdown that sends nothing to the terminal but text and our own styles."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "table_open": _Table,
        "image": _Image,
        "heading_open": _LeftHeading,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = text
        self.parsed = _parse(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = iter(super().__rich_console__(console, options))
        first = next(parts, None)
        # A list, a table or a quote at the beginning would start with an empty line.
        if first is not None and not (isinstance(first, Segment) and first.text == "\n"):
            yield first
        yield from parts


def draw_markdown(text: str) -> RenderableType:
    """Return an escaped text as Markdown; as plain text if it is too long to be parsed."""
    return _Answer(text) if len(text) <= MAXIMUM_MARKDOWN else Text(text, overflow="fold")


def split_blocks(text: str) -> tuple[str, str]:
    """Split a text that grows into its complete blocks and the rest.

    A block is complete when another block follows it: only the last one can change.
    """
    if "\n" not in text or len(text) > MAXIMUM_MARKDOWN:
        return "", text
    tops = [token.map for token in _parser().parse(text) if token.level == 0 and token.map]
    if len(tops) < 2:
        return "", text
    # As the parser counts lines: `splitlines` would also split at other separators.
    lines = text.split("\n")
    start = tops[-1][0]
    return "".join(f"{line}\n" for line in lines[:start]), "\n".join(lines[start:])


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")


def _parse(text: str) -> list[Token]:
    tokens = _parser().parse(text)
    _escape(tokens)
    return tokens


def _escape(tokens: Iterable[Token]) -> None:
    for token in tokens:
        token.type = "hardbreak" if token.type == "softbreak" else token.type
        token.content = escape_controls(token.content, lines=True)
        if "href" in token.attrs:
            token.attrs["href"] = escape_controls(str(token.attrs["href"]))
        if "src" in token.attrs:
            token.attrs["src"] = escape_controls(str(token.attrs["src"]))
        _escape(token.children or ())
