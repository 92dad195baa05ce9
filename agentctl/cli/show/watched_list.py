"""Lists that are read again and again: redrawn at a terminal, or each change as a line of JSON."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from agentctl.cli.io import current_io, using_io
from agentctl.cli.show import output
from agentctl.cli.show.terminal import note
from agentctl.errors import AgentctlError, InvalidResponse, TooManyRequests, Unavailable, UsageError
from agentctl.records.kinds import Record
from agentctl.records.text import escape_controls

if TYPE_CHECKING:
    from agentctl.cli.target import Target
    from agentctl.records.document import Document

T = TypeVar("T")

DEFAULT_SECONDS = 2.0
"""Seconds between two reads of a list."""


@dataclass(frozen=True, slots=True)
class WatchedList:
    """A list that is read again and again."""

    target: Target
    read: Callable[[], Awaitable[Document[Any]]]
    out: output.FieldsOutput
    columns: output.ColumnChoice
    id_field: str
    seconds: float

    def select(self, document: Document[Any]) -> dict[str, Record]:
        """Return the records of a page by id, with the fields of `--fields`."""
        records = document.value["data"]
        chosen: Sequence[Record] = records
        if self.out.fields is not None:
            columns = output.choose_columns(
                records, output.to_columns(self.columns), self.out.fields
            )
            chosen = [output.pick_values(record, columns.tsv) for record in records]
        ids = [str(record[self.id_field]) for record in records]
        return dict(zip(ids, chosen, strict=True))


def check_watch(watch: bool, every: float | None, form: output.Format) -> None:
    """Check the options `--watch` and `--every` before anything is read.

    Raises:
        UsageError: `every` without `watch`, or stdout cannot show a watched list in this format.
    """
    if every is not None and not watch:
        raise UsageError("--every needs --watch")
    if not watch or form == "jsonl":
        return

    streams = current_io()
    if form not in ("table", "wide"):
        reason = f"it has no meaning with -o {form}"
    elif not (streams.out_is_terminal and streams.moves_cursor):
        reason = "stdout is not a terminal that can be redrawn"
    else:
        return

    raise UsageError(
        f"--watch cannot show the list: {reason}",
        hint="pass -o jsonl for one line of JSON for each change",
    )


async def watch_list(watched: WatchedList) -> None:
    """Show the list until the command is interrupted."""
    if watched.out.format == "jsonl":
        await _print_changes(watched)
    else:
        await _redraw(watched)


async def read_again(
    target: Target, read: Callable[[], Awaitable[Document[T]]], seconds: float
) -> AsyncIterator[Document[T] | AgentctlError]:
    """Read again and again, and yield each result, or the failure of a read that may succeed later.

    Raises:
        AgentctlError: the first read fails, or a later one for a reason that stays.
    """
    import asyncio

    yield await read()
    while True:
        await asyncio.sleep(seconds)
        try:
            document = await read()
        except (Unavailable, TooManyRequests) as failure:
            if target.local is not None or isinstance(failure, InvalidResponse):
                raise
            yield failure
        else:
            yield document


async def _print_changes(watched: WatchedList) -> None:
    """Write a line of JSON for each change of the rows, until Ctrl-C."""
    known_records: dict[str, Record] = {}
    is_lost = False
    async for document in read_again(watched.target, watched.read, watched.seconds):
        if isinstance(document, AgentctlError):
            if not is_lost:
                note(f"{document.detail}; retrying every {watched.seconds:g} s")
            is_lost = True
            continue

        if is_lost:
            note("the server is available again")
        is_lost = False
        records = watched.select(document)
        for change in find_changes(known_records, records):
            output.write_value(change)
        known_records = records


def find_changes(
    before: Mapping[str, Record], after: Mapping[str, Record]
) -> list[dict[str, object]]:
    """Return the changes from one list to the next: those that are gone first."""
    changes: list[dict[str, object]] = [
        {"change": "removed", "record": record}
        for record_id, record in before.items()
        if record_id not in after
    ]
    for record_id, record in after.items():
        if before.get(record_id) != record:
            change = "changed" if record_id in before else "added"
            changes.append({"change": change, "record": record})
    return changes


async def _redraw(watched: WatchedList) -> None:
    from rich.live import Live
    from rich.text import Text

    out = current_io()
    console = out.console(out.out)
    lines: list[str] = []
    live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with live:
        async for document in read_again(watched.target, watched.read, watched.seconds):
            problem = ""
            if isinstance(document, AgentctlError):
                problem = f"! {document.detail}; retrying"
            else:
                lines = _draw(watched, document)

            width = out.width(out.out) or 80
            height = out.height(out.out)
            console.size = (width, height)

            moment = datetime.now(UTC).strftime("%H:%M:%SZ")
            parts = [problem, moment, f"every {watched.seconds:g} s", watched.target.place]
            head = escape_controls(" · ".join(filter(None, [*parts, "Ctrl-C ends"])))

            frame = Text.from_ansi("\n".join(cut_lines([head, *lines], height - 1)))
            frame.no_wrap = True
            frame.overflow = "crop"
            live.update(frame, refresh=True)


def cut_lines(lines: list[str], height: int) -> list[str]:
    """Return the lines that fit a screen; the last line has the number of hidden lines."""
    if len(lines) <= height:
        return lines
    shown = max(height - 1, 1)
    return [*lines[:shown], f"… {len(lines) - shown} more lines"][: max(height, 1)]


class _Frame(io.TextIOWrapper):
    """A buffer with the properties of the terminal that it is drawn for."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(io.BytesIO(), terminal.encoding or "utf-8", "backslashreplace")
        self._terminal = terminal

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal.fileno()


def _draw(watched: WatchedList, document: Document[Any]) -> list[str]:
    outer = current_io()
    frame = _Frame(outer.out)
    with using_io(replace(outer, out=frame, err=frame)):
        watched.out.show_page(document, watched.columns, watched.id_field)
    frame.flush()
    drawn = frame.buffer.getvalue()  # type: ignore[attr-defined]
    return str(drawn.decode(frame.encoding)).splitlines()
