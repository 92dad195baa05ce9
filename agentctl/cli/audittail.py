"""`agentctl audit tail`: the newest rows of the audit, and then those that come.

What is new is known by its number, not by its time: a clock that is set back hides nothing. Numbers
are given out before rows are there to be seen, so that a lower one may come behind a higher one.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.auditrows import COLUMNS, OnlyOperation, OnlyOutcome, OnlyPrincipal, pages
from agentctl.cli.door import Door, with_door
from agentctl.cli.options import Output
from agentctl.cli.output import Format, chosen_format, write_bytes, write_line
from agentctl.cli.table import Column
from agentctl.cli.terminal import note
from agentctl.errors import TooManyRequests, Unavailable
from agentctl.operations import MAXIMUM_LIMIT, AuditFilter

if TYPE_CHECKING:
    from agentctl.cli.auditrows import Row

__all__ = ["tail_audit"]

POLL_SECONDS = 1.0
"""Time between two looks."""

LOOK = 50
"""Rows of a page; where all of them are looked for, the next one is read too."""

LATE = 40
"""How far below the highest number a row may come late."""

PAUSES = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each attempt to reach a server again that did not answer: a restart is over by
then. An answer starts them anew."""

_LINE = [
    Column("at"),
    Column("outcome"),
    Column("principal"),
    Column("operation"),
    Column("resource"),
    Column("reason"),
]


@with_door()
async def tail_audit(
    door: Door,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", metavar="NUMBER", min=0, max=MAXIMUM_LIMIT,
            help="How many of the rows that are there to begin with",
        ),
    ] = 10,
    principal: OnlyPrincipal = None,
    operation: OnlyOperation = None,
    outcome: OnlyOutcome = None,
    output: Output = None,
) -> None:  # fmt: skip
    """Show the newest rows, then what comes, until Ctrl-C.

    Oldest first; -o json is one row a line too. With [audit] reads, its own looks come as well.
    """
    import asyncio

    show = _Lines(chosen_format(output))
    wanted = AuditFilter(principal, operation, outcome)
    last = await _newest(door)
    show.head()
    known = {row["seq"] for row in await _since(door, last - LATE) if row["seq"] <= last}
    if lines:
        there = await _there(door, wanted, lines, last)
        known |= {row["seq"] for row in there}
        show.rows(there)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        rows = await _patiently(door, last - LATE)
        show.rows([row for row in rows if row["seq"] not in known and _matches(row, wanted)])
        if rows:
            last = max(last, rows[-1]["seq"])
            known = {row["seq"] for row in rows}


async def _newest(door: Door) -> int:
    """The number of the newest row; 0: there is none."""
    async with aclosing(pages(door, AuditFilter(limit=1))) as found:
        async for rows in found:
            return int(rows[0]["seq"]) if rows else 0
    return 0


async def _there(door: Door, wanted: AuditFilter, lines: int, last: int) -> list[Row]:
    """The last rows up to a number that a filter leaves, oldest first."""
    found: list[Row] = []
    async with aclosing(pages(door, wanted)) as parts:
        async for rows in parts:
            found += [row for row in rows if row["seq"] <= last]
            if len(found) >= lines:
                break
    return found[:lines][::-1]


async def _since(door: Door, last: int) -> list[Row]:
    """All rows behind a number, oldest first."""
    found: list[Row] = []
    wanted = AuditFilter(limit=LOOK)
    async with aclosing(pages(door, wanted)) as parts:
        async for rows in parts:
            new = [row for row in rows if row["seq"] > last]
            found += new
            if len(new) < len(rows):
                break
    return found[::-1]


async def _patiently(door: Door, last: int) -> list[Row]:
    """The same; a server that does not answer is asked again for a while."""
    import asyncio

    for pause in PAUSES:
        try:
            return await _since(door, last)
        except (Unavailable, TooManyRequests) as failure:
            if door.local is not None:
                raise
            note(f"{failure.detail}; asking again in {pause:g} s")
        await asyncio.sleep(pause)
    return await _since(door, last)


def _matches(row: Row, wanted: AuditFilter) -> bool:
    """Whether a filter leaves a row: all new ones are read, of which there are few."""
    return all(
        asked is None or row[name] == asked
        for name, asked in (
            ("principal", wanted.principal),
            ("operation", wanted.operation),
            ("outcome", wanted.outcome),
        )
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    """Writes rows as they come: nobody knows how wide the next ones are."""

    form: Format

    def head(self) -> None:
        """Begin."""
        if self.form == "tsv":
            write_line("\t".join(column.name for column in COLUMNS.tsv))

    def rows(self, rows: list[Row]) -> None:
        """Write rows, oldest first."""
        for row in rows:
            self._write(row)

    def _write(self, row: Row) -> None:
        if self.form in ("json", "jsonl"):
            import orjson

            write_bytes(orjson.dumps(row))
        elif self.form == "table":
            write_line("  ".join(column.short(row) or "-" for column in _LINE))
        elif self.form == "tsv":
            write_line("\t".join(column.cell(row) for column in COLUMNS.tsv))
        else:
            write_line(str(row["seq"]))
