"""`agentctl audit tail`: recent entries, and new ones as they appear.

It recognizes new entries by their number, not by their time, so a clock that is set back hides
none. A transaction gets its number before its commit, so a lower number can appear after a higher
one.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from agentctl.cli.audit import AUDIT_COLUMNS, COUNT, read_audit_pages
from agentctl.cli.io import current_io
from agentctl.cli.options import Output
from agentctl.cli.paging import Row, check_row_count
from agentctl.cli.show.output import Format, resolve_format, write_json, write_line
from agentctl.cli.show.table import plain_columns, wrap_with_indent
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import InvalidResponse, TooManyRequests, Unavailable
from agentctl.requests import MAXIMUM_LIMIT
from agentctl.requests.audit import AuditFilter

POLL_SECONDS = 1.0
"""Time between two polls of `tail`."""

PAGE_SIZE = 50
"""Entries of a page of `tail`, which reads further pages while all entries of a page are new."""

LATE_ROWS = 40
"""The distance from the highest number within which a lower number can appear later."""

RETRY_DELAYS = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each retry of a server that is not available: enough time for a restart."""

_TAIL_COLUMNS = [
    *plain_columns("at", "outcome", "principal", "operation", "resource", "reason"),
    COUNT,
]


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


async def _newest_number(target: Target) -> int:
    async with aclosing(read_audit_pages(target, AuditFilter(limit=1))) as pages:
        async for rows in pages:
            return int(rows[0]["seq"]) if rows else 0
    return 0


async def _last_rows(target: Target, filter: AuditFilter, lines: int, last: int) -> list[Row]:
    entries: list[Row] = []
    async with aclosing(read_audit_pages(target, filter)) as pages:
        async for rows in pages:
            entries += [row for row in rows if row["seq"] <= last]
            if len(entries) >= lines:
                break
    return entries[:lines][::-1]


async def _rows_after(target: Target, last: int) -> list[Row]:
    entries: list[Row] = []
    async with aclosing(read_audit_pages(target, AuditFilter(limit=PAGE_SIZE))) as pages:
        async for rows in pages:
            new = [row for row in rows if row["seq"] > last]
            entries += new
            check_row_count(entries)
            if len(new) < len(rows):
                break
    return entries[::-1]


async def _rows_after_with_retry(target: Target, last: int) -> list[Row]:
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


def _write_rows(rows: list[Row], output_format: Format) -> None:
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
