"""`agentctl audit verify`: compare the audit log with its signed heads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.audit import read_audit_pages, read_head_pages
from agentctl.cli.io import read_file_or_stdin
from agentctl.cli.options import Output
from agentctl.cli.paging import Row, check_row_count
from agentctl.cli.show.output import Format, resolve_format, show_record
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.requests import MAXIMUM_LIMIT
from agentctl.requests.audit import AuditFilter, AuditHeadFilter

if TYPE_CHECKING:
    from agentctl.auth.audit_chain import Verification

PublicKey = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="Public key of the audit log, in PEM")
]

_COLUMNS = [
    *plain_columns("verified", "heads", "entries", "expired", "unsigned", "last_signed_at"),
    Column("findings", lambda report: len(report["findings"])),
]


@with_target()
async def verify_audit(
    target: Target,
    key: PublicKey,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="Copy of the heads that was kept elsewhere"),
    ] = None,
    output: Output = None,
) -> None:
    """Verify the audit log: every signed head, and the entries that it covers.

    Finds entries that were changed, removed, inserted or reordered, and heads that were changed or
    removed. Only a copy of the heads shows that the newest ones are missing, or that the log is an
    earlier one: give it with --heads. Exit code 1 if anything is wrong. Changes nothing.
    """
    from agentctl.auth.audit_chain import verify_audit_log
    from agentctl.auth.statements import load_verification_keys

    output_format = resolve_format(output)
    keys = load_verification_keys(key)
    known = [] if heads is None else read_heads_file(heads)
    # Entries that expire between the two reads of a large log look removed: the second time not.
    for _ in range(2):
        tokens = await _read_heads(target)
        counter = Counter("entries verified")
        async with showing_progress(counter), aclosing(_read_entries(target, counter)) as entries:
            result = await verify_audit_log(tokens, entries, keys, known)
        if all(finding.code != "ENTRIES_CHANGED" for finding in result.findings):
            break
    report_verification(result, output_format)


async def _read_heads(target: Target) -> list[str]:
    rows: list[Row] = []
    async with aclosing(read_head_pages(target, AuditHeadFilter(limit=MAXIMUM_LIMIT))) as pages:
        async for page in pages:
            rows += page
            check_row_count(rows)
    return [str(row["token"]) for row in reversed(rows)]


async def _read_entries(target: Target, counter: Counter) -> AsyncGenerator[Row]:
    async with aclosing(read_audit_pages(target, AuditFilter(limit=MAXIMUM_LIMIT))) as pages:
        async for page in pages:
            for row in page:
                yield row
            counter.done += len(page)


def read_heads_file(file: Path) -> list[str]:
    """Return the signed heads of a file, one in each line.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return read_file_or_stdin(str(file)).decode("ascii").split()
    except UnicodeDecodeError:
        raise UsageError(f"{file} cannot be read", cause="it is not a file of heads") from None


def report_verification(result: Verification, output_format: Format) -> None:
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
    show_record(report, _COLUMNS, output_format, id_field="verified")
    if output_format != "json":
        for finding in result.findings:
            note(f"{finding.code}: {finding.detail}")
        if not result.heads:
            note("the audit log has no signed heads: set [audit] key_file")
    if not report["verified"]:
        raise typer.Exit(1)
