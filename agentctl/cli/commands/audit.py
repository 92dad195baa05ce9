"""`agentctl audit`: search, follow, export and verify the audit log.

`tail` recognizes new entries by their number, not by their time, so a clock that is set back hides
none. A transaction gets its number before its commit, so a lower number can appear after a higher
one. `export` writes pages as it reads them, newest first: it needs little memory, and an
interrupted export lacks only the oldest entries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from agentctl.cli.files import creating_file
from agentctl.cli.follow import Retries
from agentctl.cli.help import CommandApp
from agentctl.cli.io import current_io, read_file_or_stdin
from agentctl.cli.lists import ListOutput, check_row_count
from agentctl.cli.options import ToFile
from agentctl.cli.parameters import option
from agentctl.cli.show.output import CommandOutput, write_json, write_line, write_value
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns, wrap_with_indent
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, TargetOptions, adding_config, open_target, with_target
from agentctl.errors import InvalidResponse, TooManyRequests, Unavailable, UsageError
from agentctl.interface.requests import MAXIMUM_LIMIT
from agentctl.interface.requests.administration import AuditFilter, AuditHeadFilter
from agentctl.interface.requests.lists import Row, read_pages, read_rows
from agentctl.records.text import format_count

if TYPE_CHECKING:
    from agentctl.auth.audit_chain import Verification
    from agentctl.auth.keys.material import VerificationKey

app = CommandApp(
    help="Search, follow, export and verify the audit log.",
    epilog="Example: agentctl audit list --outcome denied --since 1d",
)

_COUNT = Column("count", read=lambda entry: entry["count"] if entry.get("count", 1) > 1 else None)
"""The count of an entry that represents several requests."""

_ENTRIES = Columns(
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

POLL_SECONDS = 1.0
"""Time between two polls of `tail`."""

PAGE_SIZE = 50
"""Entries of a page of `tail`, which reads further pages while all entries of a page are new."""

LATE_ROWS = 40
"""The distance from the highest number within which a lower number can appear later."""

_TAIL = [*plain_columns("at", "outcome", "principal", "operation", "resource", "reason"), _COUNT]

_NUMBERS = plain_columns("number", "at", "first_seq", "last_seq", "entries", "expired_seq")

_HEADS = Columns(tsv=[*_NUMBERS, *plain_columns("token")], table=[*_NUMBERS, Column("token")])

PublicKey = Annotated[Path, option("--key", "FILE", "Public key of the audit log, in PEM")]

_VERIFICATION = [
    *plain_columns("verified", "heads", "entries", "expired", "unsigned", "last_signed_at"),
    Column("findings", lambda report: len(report["findings"])),
]


@app.command("list", epilog="Example: agentctl audit list --outcome denied --since 1d")
@with_target()
async def list_audit(target: Target, out: ListOutput, filter: AuditFilter) -> None:
    """List audit entries, newest first."""
    await out.show(target, target.operations.audit.list, filter, _ENTRIES, "seq", noun="entries")


@app.command("tail", epilog="Example: agentctl audit tail --outcome denied")
@with_target(without=("since", "limit", "cursor"))
async def tail_audit(
    target: Target,
    out: CommandOutput,
    lines: int = option(
        "--lines -n",
        "NUMBER",
        "Number of recent entries to start with",
        min=0,
        max=MAXIMUM_LIMIT,
        default=10,
    ),
    *,
    filter: AuditFilter,
) -> None:
    """Show recent audit entries and follow new ones.

    Runs until Ctrl-C. Shows the oldest entry first; -o json prints one entry per line. If the
    setting [audit] reads is on, the requests of this command are also shown.
    """
    import asyncio

    newest_rows = (await target.operations.audit.list(AuditFilter(limit=1))).value["data"]
    last = int(newest_rows[0]["seq"]) if newest_rows else 0
    if out.format == "tsv":
        write_line("\t".join(column.name for column in _ENTRIES.tsv))

    # The numbers that need not be shown again.
    earlier_rows = await _read_after(target, last - LATE_ROWS)
    known_numbers = {row["seq"] for row in earlier_rows if row["seq"] <= last}
    if lines:
        recent_rows = await _read_last(target, filter, lines, last)
        known_numbers |= {row["seq"] for row in recent_rows}
        _write_rows(recent_rows, out)

    while True:
        await asyncio.sleep(POLL_SECONDS)
        rows = await _read_after_retries(target, last - LATE_ROWS)
        new_rows = [row for row in rows if row["seq"] not in known_numbers]
        _write_rows([row for row in new_rows if _matches(row, filter)], out)
        if rows:
            last = max(last, rows[-1]["seq"])
            known_numbers = {row["seq"] for row in rows}


def _matches(row: Row, filter: AuditFilter) -> bool:
    names = ("principal", "operation", "outcome")
    return all(getattr(filter, name) in (None, row[name]) for name in names)


async def _read_last(target: Target, filter: AuditFilter, count: int, last: int) -> list[Row]:
    """Return the newest entries that a filter selects up to the number `last`, oldest first."""
    entries: list[Row] = []
    async with aclosing(read_rows(target.operations.audit.list, filter)) as rows:
        async for row in rows:
            if row["seq"] <= last:
                entries.append(row)
            if len(entries) >= count:
                break
    return entries[::-1]


async def _read_after(target: Target, number: int) -> list[Row]:
    """Return the entries after a number, oldest first."""
    entries: list[Row] = []
    newest_first = AuditFilter(limit=PAGE_SIZE)
    async with aclosing(read_pages(target.operations.audit.list, newest_first)) as pages:
        async for rows in pages:
            new_rows = [row for row in rows if row["seq"] > number]
            entries += new_rows
            check_row_count(entries)
            if len(new_rows) < len(rows):
                break
    return entries[::-1]


async def _read_after_retries(target: Target, number: int) -> list[Row]:
    retries = Retries(target)
    while True:
        try:
            return await _read_after(target, number)
        except InvalidResponse:
            raise
        except (Unavailable, TooManyRequests) as failure:
            await retries.wait(failure, "retrying")


def _write_rows(rows: list[Row], out: CommandOutput) -> None:
    """Write entries as they arrive: a table has no headings, and no columns to align."""
    io = current_io()
    width = io.width(io.out) if io.out_is_terminal else None

    for row in rows:
        if out.format in ("json", "jsonl"):
            write_value(row)
        elif out.is_table:
            at, *others = (column.short(row) or "-" for column in _TAIL)
            for line in wrap_with_indent(f"{at}  ", "  ".join(others), width):
                write_line(line)
        elif out.format == "tsv":
            write_line("\t".join(column.cell(row) for column in _ENTRIES.tsv))
        else:
            write_line(str(row["seq"]))


@app.command("export", epilog="Example: agentctl audit export --since 30d --to-file audit.jsonl")
@with_target(without=("limit", "cursor"))
async def export_audit(target: Target, to_file: ToFile = None, *, filter: AuditFilter) -> None:
    """Export audit entries as JSON Lines, newest first.

    A file is written completely or not at all. An existing file is never overwritten.
    """
    counter = Counter("entries exported")
    large_pages = replace(filter, limit=MAXIMUM_LIMIT)
    async with aclosing(_dump_entries(target, large_pages, counter)) as parts:
        if to_file is not None and str(to_file) != "-":
            with creating_file(to_file) as file:
                async with showing_progress(counter):
                    async for part in parts:
                        file.write(part + b"\n")
            note(f"wrote {format_count(counter.done, 'entry', 'entries')} to {to_file}")
            return

        # On a terminal the entries themselves show the progress.
        at_terminal = current_io().out_is_terminal
        async with nullcontext() if at_terminal else showing_progress(counter):
            async for part in parts:
                write_json(part)


async def _dump_entries(
    target: Target, filter: AuditFilter, counter: Counter
) -> AsyncGenerator[bytes]:
    async for rows in read_pages(target.operations.audit.list, filter):
        if rows:
            yield b"\n".join(map(orjson.dumps, rows))
        counter.done += len(rows)


@app.command("heads", epilog="Example: agentctl audit heads --limit 5")
@with_target()
async def list_heads(target: Target, out: ListOutput, filter: AuditHeadFilter) -> None:
    """List the signed heads of the audit log, newest first.

    `-o jsonl` and the field `token` print the signed heads themselves, so that you can keep a copy
    elsewhere.
    """
    await out.show(
        target, target.operations.audit.list_heads, filter, _HEADS, "number", noun="heads"
    )


@app.command("verify", epilog="Example: agentctl audit verify --key keys/audit.pub.pem")
async def verify_audit(
    out: CommandOutput,
    key: PublicKey,
    heads: Path | None = option("--heads", "FILE", "Copy of the heads that was kept elsewhere"),
    export: Path | None = option(
        "--export", "FILE", "Verify this file of `audit export`, without the service"
    ),
    *,
    options: TargetOptions,
) -> None:
    """Verify the audit log: every signed head, and the entries that it covers.

    Finds entries that were changed, removed, inserted or reordered, and heads that were changed or
    removed. Missing newest heads, or a log that was replaced by an earlier one, can be found only
    with a copy of the heads: pass it with --heads. Exit code 1 if anything is wrong. Changes
    nothing.

    --export verifies a file instead, and needs a copy of the heads. The file must contain the whole
    audit log, because a filter leaves out signed entries.
    """
    from agentctl.auth.audit_chain import load_verification_keys, verify_audit_log

    if export is not None and heads is None:
        raise UsageError("--export needs --heads, a copy of the heads of the audit log")
    if export is not None and options.flags():
        raise UsageError(f"--export reads a file: remove{options.flags()}")

    keys = load_verification_keys(key)
    known_heads = [] if heads is None else _read_heads_file(heads)
    if export is None:
        with adding_config(options.config):
            async with open_target(options) as target:
                result = await _verify_service(target, keys, known_heads)
    else:
        result = await verify_audit_log(known_heads, _read_export(export), keys)
    _report_verification(result, out)


async def _verify_service(
    target: Target, keys: list[VerificationKey], known_heads: Sequence[str]
) -> Verification:
    """Verify the log of the target.

    Args:
        known_heads: a copy of the heads; empty without one.
    """
    from agentctl.auth.audit_chain import verify_audit_log

    # Entries that expire between the two reads of a large log look removed: the second time not.
    for _ in range(2):
        tokens = await _read_heads(target)

        counter = Counter("entries verified")
        async with showing_progress(counter), aclosing(_read_entries(target, counter)) as entries:
            result = await verify_audit_log(tokens, entries, keys, known_heads)

        if all(finding.code != "ENTRIES_CHANGED" for finding in result.findings):
            break
    return result


async def _read_heads(target: Target) -> list[str]:
    rows: list[Row] = []
    newest = AuditHeadFilter(limit=MAXIMUM_LIMIT)
    async with aclosing(read_pages(target.operations.audit.list_heads, newest)) as pages:
        async for page in pages:
            rows += page
            check_row_count(rows)
    return [str(row["token"]) for row in reversed(rows)]


async def _read_entries(target: Target, counter: Counter) -> AsyncGenerator[Row]:
    every = AuditFilter(limit=MAXIMUM_LIMIT)
    async with aclosing(read_rows(target.operations.audit.list, every)) as rows:
        async for row in rows:
            yield row
            counter.done += 1


def _read_heads_file(file: Path) -> list[str]:
    """Return the signed heads of a file, one in each line."""
    try:
        return read_file_or_stdin(str(file)).decode("ascii").split()
    except UnicodeDecodeError:
        raise UsageError(f"{file} cannot be read", cause="it is not a file of heads") from None


def _report_verification(result: Verification, out: CommandOutput) -> None:
    """Show a verification, and its findings as notes; exit with 1 if there are any."""
    report = {
        "verified": result.heads > 0 and not result.findings,
        "heads": result.heads,
        "entries": result.entries,
        "expired": result.expired,
        "unsigned": result.unsigned,
        "last_signed_at": result.last_signed_at,
        "findings": [finding._asdict() for finding in result.findings],
    }

    out.show_record(report, _VERIFICATION, "verified")
    if out.format != "json":
        for finding in result.findings:
            note(f"{finding.code}: {finding.detail}")
        if not result.heads:
            note("the audit log has no signed heads: set [audit] key_file")

    if not report["verified"]:
        raise typer.Exit(1)


async def _read_export(file: Path) -> AsyncGenerator[Row]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                entry = orjson.loads(line)
                if not isinstance(entry, dict) or type(entry.get("seq")) is not int:
                    raise UsageError(f"Line {number} of {file} is not an audit entry")
                yield entry
    except OSError as failure:
        cause = (failure.strerror or "").lower()
        raise UsageError(f"{file} cannot be read", cause=cause) from None
    except orjson.JSONDecodeError:
        raise UsageError(f"Line {number} of {file} is not an audit entry") from None
