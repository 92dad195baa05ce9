"""`agentctl audit`: search, follow and export the audit log.

`tail` recognizes new entries by their number, not by their time, so a clock that is set back hides
none. A transaction gets its number before its commit, so a lower number can appear after a higher
one. `export` writes pages as it reads them, newest first: it needs little memory, and an
interrupted export lacks only the oldest entries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import Annotated, Any

import typer

from agentctl.cli.files import creating_file
from agentctl.cli.help import CommandApp
from agentctl.cli.io import current_io
from agentctl.cli.options import Fields, Output, ToFile
from agentctl.cli.paging import check_row_count, read_pages
from agentctl.cli.show.output import (
    Format,
    resolve_format,
    show_list,
    show_page,
    write_json,
    write_line,
)
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns, wrap_with_indent
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import InvalidResponse, TooManyRequests, Unavailable
from agentctl.requests import MAXIMUM_LIMIT, AuditFilter

app = CommandApp(
    help="Search the audit log.", epilog="Example: agentctl audit list --outcome denied --since 1d"
)

POLL_SECONDS = 1.0
"""Time between two polls of `tail`."""

PAGE_SIZE = 50
"""Entries of a page of `tail`, which reads further pages while all entries of a page are new."""

LATE_ROWS = 40
"""The distance from the highest number within which a lower number can appear later."""

RETRY_DELAYS = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each retry of a server that is not available: enough time for a restart."""

AuditRow = dict[str, Any]

_COUNT = Column("count", read=lambda entry: entry["count"] if entry.get("count", 1) > 1 else None)
"""The count of an entry that represents several requests."""

AUDIT_COLUMNS = Columns(
    tsv=[
        *plain_columns("seq", "at", "principal", "via", "operation", "resource"),
        *plain_columns("outcome", "status", "reason", "request_id", "count"),
    ],
    table=[
        *plain_columns("at", "principal", "outcome", "operation"),
        Column("resource", look="text"),
        Column("reason", look="text"),
        Column("status"),
        _COUNT,
        Column("via"),
        Column("seq"),
        Column("request_id"),
    ],
)
_TAIL_COLUMNS = [
    *plain_columns("at", "outcome", "principal", "operation", "resource", "reason"),
    _COUNT,
]


@app.command("list", epilog="Example: agentctl audit list --outcome denied --since 1d")
@with_target()
async def list_audit(
    target: Target, filter: AuditFilter, output: Output = None, fields: Fields = None
) -> None:
    """List audit entries, newest first."""
    from agentctl.records.document import build_document

    output_format = resolve_format(output)
    document = await target.operations.get_audit(filter)
    if output_format == "json":
        show_page(document, AUDIT_COLUMNS, output_format, id_field="seq", fields=fields)
        return
    page: Any = document.value
    show_list(
        build_document(page["data"]), AUDIT_COLUMNS, output_format, id_field="seq", fields=fields
    )
    if next_cursor := page["meta"].get("next_cursor"):
        note(f"more entries exist; next page: --cursor {next_cursor}")


@app.command("tail", epilog="Example: agentctl audit tail --outcome denied")
@with_target(without=("since", "limit", "cursor"))
async def tail_audit(
    target: Target,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", metavar="NUMBER", min=0, max=MAXIMUM_LIMIT,
            help="Number of recent entries to start with",
        ),
    ] = 10,
    *,
    filter: AuditFilter,
    output: Output = None,
) -> None:  # fmt: skip
    """Show recent audit entries and follow new ones.

    Runs until Ctrl-C. Shows the oldest entry first; -o json writes one entry in each line. If the
    setting [audit] reads is on, the requests of this command are shown too.
    """
    import asyncio

    output_format = resolve_format(output)
    last = await _newest_number(target)
    if output_format == "tsv":
        write_line("\t".join(column.name for column in AUDIT_COLUMNS.tsv))
    known = {
        row["seq"] for row in await _rows_after(target, last - LATE_ROWS) if row["seq"] <= last
    }
    if lines:
        recent = await _last_rows(target, filter, lines, last)
        known |= {row["seq"] for row in recent}
        _write_rows(recent, output_format)
    names = ("principal", "operation", "outcome")
    while True:
        await asyncio.sleep(POLL_SECONDS)
        rows = await _rows_after_with_retry(target, last - LATE_ROWS)
        new = [
            row
            for row in rows
            if row["seq"] not in known
            and all(getattr(filter, name) in (None, row[name]) for name in names)
        ]
        _write_rows(new, output_format)
        if rows:
            last = max(last, rows[-1]["seq"])
            known = {row["seq"] for row in rows}


@app.command("export", epilog="Example: agentctl audit export --since 30d --to-file audit.jsonl")
@with_target(without=("limit", "cursor"))
async def export_audit(target: Target, to_file: ToFile = None, *, filter: AuditFilter) -> None:
    """Export audit entries as JSON Lines, newest first.

    A file is written completely or not at all. An existing file is never overwritten.
    """
    counter = Counter("entries exported")
    large_pages = replace(filter, limit=MAXIMUM_LIMIT)
    async with aclosing(_read_lines(target, large_pages, counter)) as parts:
        if to_file is not None and str(to_file) != "-":
            with creating_file(to_file) as file:
                async with showing_progress(counter):
                    async for part in parts:
                        file.write(part + b"\n")
            note(f"wrote {counter.done} entries to {to_file}")
            return
        # On a terminal the entries themselves show the progress.
        at_terminal = current_io().out_is_terminal
        async with nullcontext() if at_terminal else showing_progress(counter):
            async for part in parts:
                write_json(part)


def _read_pages(target: Target, filter: AuditFilter) -> AsyncGenerator[list[AuditRow]]:
    return read_pages(
        lambda cursor: target.operations.get_audit(
            filter if cursor is None else replace(filter, cursor=cursor)
        )
    )


async def _newest_number(target: Target) -> int:
    async with aclosing(_read_pages(target, AuditFilter(limit=1))) as pages:
        async for rows in pages:
            return int(rows[0]["seq"]) if rows else 0
    return 0


async def _last_rows(target: Target, filter: AuditFilter, lines: int, last: int) -> list[AuditRow]:
    entries: list[AuditRow] = []
    async with aclosing(_read_pages(target, filter)) as pages:
        async for rows in pages:
            entries += [row for row in rows if row["seq"] <= last]
            if len(entries) >= lines:
                break
    return entries[:lines][::-1]


async def _rows_after(target: Target, last: int) -> list[AuditRow]:
    entries: list[AuditRow] = []
    async with aclosing(_read_pages(target, AuditFilter(limit=PAGE_SIZE))) as pages:
        async for rows in pages:
            new = [row for row in rows if row["seq"] > last]
            entries += new
            check_row_count(entries)
            if len(new) < len(rows):
                break
    return entries[::-1]


async def _rows_after_with_retry(target: Target, last: int) -> list[AuditRow]:
    import asyncio

    for delay in RETRY_DELAYS:
        try:
            return await _rows_after(target, last)
        except (Unavailable, TooManyRequests) as failure:
            if target.local is not None or isinstance(failure, InvalidResponse):
                raise
            note(f"{failure.detail}; retrying in {delay:g} s")
        await asyncio.sleep(delay)
    return await _rows_after(target, last)


def _write_rows(rows: list[AuditRow], output_format: Format) -> None:
    import orjson

    io = current_io()
    width = io.width(io.out) if io.out_is_terminal else None
    for row in rows:
        if output_format in ("json", "jsonl"):
            write_json(orjson.dumps(row))
        elif output_format in ("table", "wide"):
            at, *others = (column.short(row) or "-" for column in _TAIL_COLUMNS)
            for line in wrap_with_indent(f"{at}  ", "  ".join(others), width):
                write_line(line)
        elif output_format == "tsv":
            write_line("\t".join(column.cell(row) for column in AUDIT_COLUMNS.tsv))
        else:
            write_line(str(row["seq"]))


async def _read_lines(
    target: Target, filter: AuditFilter, counter: Counter
) -> AsyncGenerator[bytes]:
    import orjson

    rows: list[AuditRow]
    async for rows in _read_pages(target, filter):
        if rows:
            yield b"\n".join(map(orjson.dumps, rows))
        counter.done += len(rows)
