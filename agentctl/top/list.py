"""The list of a view: a table that fits the screen, and that changes only where records do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from agentctl.top.views import ListColumn, TableRow

LEAST_LAST = 8
"""Least width of the last column, which has the rest of the screen."""


class RecordTable(DataTable[Text]):
    """A table with the cursor on a row, which stays with its record when rows come and go."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor_type="row")
        self._row_ids: list[str] = []
        self._widths: dict[str, int] = {}
        self._columns_shown: list[str] = []
        self._latest: dict[str, list[Text]] = {}
        self._shown_cells: dict[str, list[Text]] = {}
        self._fitted: tuple[int, tuple[str, ...]] = (0, ())

    @property
    def selected_key(self) -> str | None:
        """The key of the row under the cursor; None without one."""
        at = self.cursor_row
        return self._row_ids[at] if 0 <= at < len(self._row_ids) else None

    def show_rows(
        self, columns: Sequence[ListColumn], rows: Sequence[TableRow], width: int
    ) -> None:
        """Show rows in columns; one that is too wide for the screen is left out."""
        visible = [at for at, column in enumerate(columns) if width >= column.least]
        layout = self._measure([columns[at] for at in visible], rows, visible, width)
        selected = self.selected_key
        row_at = self.cursor_row
        offset = self.scroll_y
        if layout != self._widths:
            self._widths = layout
            self._row_ids = []
            self.clear(columns=True)
            for at in visible:
                column = columns[at]
                label = Text(column.name, justify="right" if column.is_right else "left")
                self.add_column(label, width=layout[column.name], key=column.name)
        self._columns_shown = [columns[at].name for at in visible]
        self._latest = {
            row.key: [_cut(row.cells[at], columns[at], layout) for at in visible] for row in rows
        }
        keys = [row.key for row in rows]
        if keys != self._row_ids:
            self._row_ids = []
            self.clear()
            for key in keys:
                self.add_row(*self._latest[key], key=key)
            self._row_ids = keys
            self._shown_cells = dict(self._latest)
            at = keys.index(selected) if selected in keys else min(row_at, len(keys) - 1)
            self.move_cursor(row=max(at, 0), animate=False, scroll=False)
            self.scroll_to(y=offset, animate=False, immediate=True)
            self.call_after_refresh(self._show_cursor)
        self._change_cells()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._change_cells()

    def _change_cells(self) -> None:
        first = int(self.scroll_y)
        for key in self._row_ids[first : first + self.size.height]:
            texts = self._latest[key]
            before = self._shown_cells[key]
            if texts is before:
                continue
            for name, text, last in zip(self._columns_shown, texts, before, strict=True):
                if text != last or text.style != last.style:
                    self.update_cell(key, name, text)
            self._shown_cells[key] = texts

    def _measure(
        self,
        columns: Sequence[ListColumn],
        rows: Sequence[TableRow],
        visible: list[int],
        width: int,
    ) -> dict[str, int]:
        screen = (width, tuple(column.name for column in columns))
        known = self._widths if screen == self._fitted else {}
        self._fitted = screen
        layout: dict[str, int] = {}
        for at, column in zip(visible, columns, strict=True):
            longest = max((row.cells[at].cell_len for row in rows), default=0)
            needed = max(len(column.name), min(longest, column.most))
            layout[column.name] = max(needed, known.get(column.name, 0))
        last = columns[-1].name
        taken = sum(layout.values()) - layout[last] + 2 * self.cell_padding * len(columns)
        layout[last] = max(LEAST_LAST, width - taken - 2)  # 2 for the scrollbar
        return layout

    def _show_cursor(self) -> None:
        if self._row_ids:
            self.move_cursor(row=self.cursor_row, animate=False)


def _cut(text: Text, column: ListColumn, layout: dict[str, int]) -> Text:
    text = text.copy()
    text.truncate(layout[column.name], overflow="ellipsis")
    text.no_wrap = True
    if column.is_right:
        text.justify = "right"
    return text
