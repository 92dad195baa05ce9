"""Lists of any length on stdout: rows are written as their pages arrive.

It needs the memory of some pages only, in every format (docs/cli.md "Long lists").
"""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.cli.show.fields import ColumnChoice, choose_columns, pick_values, to_columns
from agentctl.cli.show.output import Format, check_fields, show_records, write_json
from agentctl.records.kinds import Record

TABLE_ROWS = 1_000
"""Rows of one table: the widths of its columns are those of these rows."""


class ListWriter:
    """Writes a list in parts.

    `json` is an object with `data` and the number of rows in `meta`, as that of a page, one row in
    each line. A table has `TABLE_ROWS` rows; a longer list is several tables with headings.

    Args:
        columns, format, id_field, fields: as for `show_list`.
        is_array: `json` is an array, as of the operations that have no pages.

    Attributes:
        count: the number of rows.
    """

    def __init__(
        self,
        columns: ColumnChoice,
        format: Format,
        *,
        id_field: str,
        fields: str | None = None,
        is_array: bool = False,
    ) -> None:
        check_fields(format, fields)
        self.count = 0
        self._columns = to_columns(columns)
        self._format = format
        self._id_field = id_field
        self._fields = fields
        self._is_array = is_array
        self._waiting: list[Record] = []

    def add(self, rows: Sequence[Record]) -> None:
        """Add rows.

        Raises:
            UsageError: a field to show is none of the first rows.
        """
        if not rows:
            return
        if self._fields is not None and not self.count:
            self._columns = choose_columns(rows, self._columns, self._fields)
        is_first = not self.count
        self.count += len(rows)
        if self._format in ("table", "wide"):
            self._waiting += rows
            if len(self._waiting) >= TABLE_ROWS:
                self.flush()
        elif self._format == "json":
            self._write_array(rows, is_first=is_first)
        else:
            if self._format == "jsonl" and self._fields is not None:
                rows = [pick_values(row, self._columns.tsv) for row in rows]
            show_records(rows, self._columns, self._format, self._id_field, heading=is_first)

    def flush(self) -> None:
        """Write the rows of a table that has not its whole length."""
        if self._waiting:
            show_records(self._waiting, self._columns, self._format, self._id_field)
            self._waiting = []

    def finish(self) -> None:
        """Write the end of the list."""
        self.flush()
        if self._format == "json":
            if not self.count:
                write_json(b"[" if self._is_array else b'{"data":[')
            meta = b'],"meta":{"total_count":%d,"next_cursor":null}}' % self.count
            write_json(b"]" if self._is_array else meta)
        elif not self.count:
            show_records([], self._columns, self._format, self._id_field)

    def _write_array(self, rows: Sequence[Record], *, is_first: bool) -> None:
        import orjson

        if self._fields is not None:
            rows = [pick_values(row, self._columns.tsv) for row in rows]
        if is_first:
            write_json(b"[" if self._is_array else b'{"data":[')
        write_json((b"" if is_first else b",") + b"\n,".join(map(orjson.dumps, rows)))
