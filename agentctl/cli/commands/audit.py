"""`agentctl audit`: search, follow and export the audit log.

`tail` recognizes new entries by their number, not by their time, so a clock that is set back hides
none. A transaction gets its number before its commit, so a lower number can appear after a higher
one. `export` writes pages as it reads them, newest first: it needs little memory, and an
interrupted export lacks only the oldest entries.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.files import check_absent
from agentctl.cli.help import CommandApp, join_alternatives
from agentctl.cli.io import current_io
from agentctl.cli.options import Cursor, Limit, Output
from agentctl.cli.show.output import Format, resolve_format, show_list, write_bytes, write_line
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import TooManyRequests, Unavailable, UsageError
from agentctl.operations import DEFAULT_LIMIT, MAXIMUM_LIMIT, AuditFilter
from agentctl.records.audit import AuditOutcome

__all__ = [
    "AUDIT_COLUMNS",
    "AuditRow",
    "OperationOption",
    "OutcomeOption",
    "PrincipalOption",
    "SinceOption",
    "app",
    "export_audit",
    "read_pages",
    "tail_audit",
]

AuditRow = dict[str, Any]

PrincipalOption = Annotated[
    str | None,
    typer.Option("--principal", metavar="NAME", help="Only what this one called, as rows say it"),
]
OperationOption = Annotated[
    str | None,
    typer.Option("--operation", metavar="ID", help="Only this operation, such as cancel_agent_run"),
]
OutcomeOption = Annotated[
    AuditOutcome | None,
    typer.Option(
        "--outcome",
        metavar="OUTCOME",
        help=f"Only with this outcome: {join_alternatives(('allowed', 'denied', 'failed'))}",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="AGE", help="Only rows since then: 10m, 2h, 7d, or a moment"),
]

_TSV_NAMES = (
    "seq", "at", "principal", "via", "operation", "resource", "outcome", "status", "reason",
    "request_id",
)  # fmt: skip

AUDIT_COLUMNS = Columns(
    tsv=[Column(name) for name in _TSV_NAMES],
    table=[
        Column("at"),
        Column("principal"),
        Column("outcome"),
        Column("operation"),
        Column("resource", look="text"),
        Column("reason", look="text"),
        Column("status"),
        Column("via"),
        Column("seq"),
        Column("request_id"),
    ],
)


async def read_pages(target: Target, wanted: AuditFilter) -> AsyncGenerator[list[AuditRow]]:
    """Page after page, newest first. Rows that come meanwhile stand before the first one."""
    while True:
        page: Any = (await target.operations.get_audit(wanted)).value
        yield page["data"]
        following = page["meta"].get("next_cursor")
        if not following or following == wanted.cursor:
            return
        wanted = replace(wanted, cursor=following)


@with_target()
async def export_audit(
    target: Target,
    to_file: Annotated[
        Path | None,
        typer.Option(
            "--to-file", metavar="FILE", help="Write it to this new file, for its owner alone"
        ),
    ] = None,
    principal: PrincipalOption = None,
    operation: OperationOption = None,
    outcome: OutcomeOption = None,
    since: SinceOption = None,
) -> None:
    """Write all of it as JSON lines, newest first.

    A file is written whole or not at all, and none is overwritten.
    """
    start = microseconds_ago(since)
    wanted = AuditFilter(principal, operation, outcome, start, limit=MAXIMUM_LIMIT)
    counter = Counter("rows exported")
    async with aclosing(_read_lines(target, wanted, counter)) as texts:
        if to_file is None:
            await _print(texts, counter)
            return
        with _creating_file(to_file) as file:
            async with showing_progress(counter):
                async for text in texts:
                    file.write(text + b"\n")
    note(f"wrote {counter.done} rows to {to_file}")


async def _print(texts: AsyncIterator[bytes], counter: Counter) -> None:
    """Write to stdout. How far it is, is seen where stdout is the terminal."""
    async with nullcontext() if current_io().out_is_terminal else showing_progress(counter):
        async for text in texts:
            write_bytes(text)


async def _read_lines(
    target: Target, wanted: AuditFilter, counter: Counter
) -> AsyncGenerator[bytes]:
    """The lines of a page at a time."""
    import orjson

    rows: list[AuditRow]
    async for rows in read_pages(target, wanted):
        if rows:
            yield b"\n".join(map(orjson.dumps, rows))
        counter.done += len(rows)


@contextmanager
def _creating_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to. What ends the block early takes it away again: half of an audit must not
    pass for all of it.

    Raises:
        Conflict: it is there already.
        UsageFailed: it cannot be written.
    """
    try:
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        check_absent(path)
        raise
    except OSError as failure:
        raise _unwritable_file(path, failure) from None
    try:
        with open(place, "wb") as file:  # noqa: PTH123 - it is open already
            yield file
            file.flush()
            os.fsync(place)
    except BaseException as failure:
        with suppress(OSError):
            path.unlink()
        if isinstance(failure, OSError):
            raise _unwritable_file(path, failure) from None
        raise


def _unwritable_file(path: Path, failure: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written", cause=(failure.strerror or "writing failed").lower()
    )


POLL_SECONDS = 1.0
"""Time between two looks."""

PAGE_SIZE = 50
"""Rows of a page; where all of them are looked for, the next one is read too."""

LATE_ROWS = 40
"""How far below the highest number a row may come late."""

RETRY_DELAYS = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each attempt to reach a server again that did not answer: a restart is over by
then. An answer starts them anew."""

_TAIL_COLUMNS = [
    Column("at"),
    Column("outcome"),
    Column("principal"),
    Column("operation"),
    Column("resource"),
    Column("reason"),
]


@with_target()
async def tail_audit(
    target: Target,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", metavar="NUMBER", min=0, max=MAXIMUM_LIMIT,
            help="How many of the rows that are there to begin with",
        ),
    ] = 10,
    principal: PrincipalOption = None,
    operation: OperationOption = None,
    outcome: OutcomeOption = None,
    output: Output = None,
) -> None:  # fmt: skip
    """Show the newest rows, then what comes, until Ctrl-C.

    Oldest first; -o json is one row a line too. With [audit] reads, its own looks come as well.
    """
    import asyncio

    show = _RowWriter(resolve_format(output))
    wanted = AuditFilter(principal, operation, outcome)
    last = await _newest_number(target)
    show.head()
    known = {
        row["seq"] for row in await _rows_after(target, last - LATE_ROWS) if row["seq"] <= last
    }
    if lines:
        there = await _last_rows(target, wanted, lines, last)
        known |= {row["seq"] for row in there}
        show.rows(there)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        rows = await _rows_after_with_retry(target, last - LATE_ROWS)
        show.rows([row for row in rows if row["seq"] not in known and _matches_filter(row, wanted)])
        if rows:
            last = max(last, rows[-1]["seq"])
            known = {row["seq"] for row in rows}


async def _newest_number(target: Target) -> int:
    """The number of the newest row; 0: there is none."""
    async with aclosing(read_pages(target, AuditFilter(limit=1))) as found:
        async for rows in found:
            return int(rows[0]["seq"]) if rows else 0
    return 0


async def _last_rows(target: Target, wanted: AuditFilter, lines: int, last: int) -> list[AuditRow]:
    """The last rows up to a number that a filter leaves, oldest first."""
    found: list[AuditRow] = []
    async with aclosing(read_pages(target, wanted)) as parts:
        async for rows in parts:
            found += [row for row in rows if row["seq"] <= last]
            if len(found) >= lines:
                break
    return found[:lines][::-1]


async def _rows_after(target: Target, last: int) -> list[AuditRow]:
    """All rows behind a number, oldest first."""
    found: list[AuditRow] = []
    wanted = AuditFilter(limit=PAGE_SIZE)
    async with aclosing(read_pages(target, wanted)) as parts:
        async for rows in parts:
            new = [row for row in rows if row["seq"] > last]
            found += new
            if len(new) < len(rows):
                break
    return found[::-1]


async def _rows_after_with_retry(target: Target, last: int) -> list[AuditRow]:
    """The same; a server that does not answer is asked again for a while."""
    import asyncio

    for pause in RETRY_DELAYS:
        try:
            return await _rows_after(target, last)
        except (Unavailable, TooManyRequests) as failure:
            if target.local is not None:
                raise
            note(f"{failure.detail}; asking again in {pause:g} s")
        await asyncio.sleep(pause)
    return await _rows_after(target, last)


def _matches_filter(row: AuditRow, wanted: AuditFilter) -> bool:
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
class _RowWriter:
    """Writes rows as they come: nobody knows how wide the next ones are."""

    form: Format

    def head(self) -> None:
        """Begin."""
        if self.form == "tsv":
            write_line("\t".join(column.name for column in AUDIT_COLUMNS.tsv))

    def rows(self, rows: list[AuditRow]) -> None:
        """Write rows, oldest first."""
        for row in rows:
            self._write(row)

    def _write(self, row: AuditRow) -> None:
        if self.form in ("json", "jsonl"):
            import orjson

            write_bytes(orjson.dumps(row))
        elif self.form == "table":
            write_line("  ".join(column.short(row) or "-" for column in _TAIL_COLUMNS))
        elif self.form == "tsv":
            write_line("\t".join(column.cell(row) for column in AUDIT_COLUMNS.tsv))
        else:
            write_line(str(row["seq"]))


app = CommandApp(
    help="Look up who did what, and what was refused to whom.",
    epilog="Example: agentctl audit list --outcome denied --since 1d",
)


@app.command("list", epilog="Example: agentctl audit list --outcome denied --since 1d")
@with_target()
async def list_audit(
    target: Target,
    principal: PrincipalOption = None,
    operation: OperationOption = None,
    outcome: OutcomeOption = None,
    since: SinceOption = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
    output: Output = None,
) -> None:
    """List what was done and refused, newest first."""
    form = resolve_format(output)
    wanted = AuditFilter(principal, operation, outcome, microseconds_ago(since), limit, cursor)
    document = await target.operations.get_audit(wanted)
    if form == "json":
        write_bytes(document.raw)
        return
    from agentctl.records.document import build_document

    page: Any = document.value
    show_list(build_document(page["data"]), AUDIT_COLUMNS, form, id_field="seq")
    if following := page["meta"].get("next_cursor"):
        note(f"there are more; the next ones: --cursor {following}")


app.command("tail", epilog="Example: agentctl audit tail --outcome denied")(tail_audit)
app.command("export", epilog="Example: agentctl audit export --since 30d --to-file audit.jsonl")(
    export_audit
)
