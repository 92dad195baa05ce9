"""`agentctl audit export`: entries as JSON Lines.

It writes pages as it reads them, newest first: it needs little memory, and an interrupted export
lacks only the oldest entries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from dataclasses import replace

from agentctl.cli.audit import read_audit_pages
from agentctl.cli.files import creating_file
from agentctl.cli.io import current_io
from agentctl.cli.options import ToFile
from agentctl.cli.show.output import write_json
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.requests import MAXIMUM_LIMIT
from agentctl.requests.audit import AuditFilter


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


async def _read_lines(
    target: Target, filter: AuditFilter, counter: Counter
) -> AsyncGenerator[bytes]:
    import orjson

    async for rows in read_audit_pages(target, filter):
        if rows:
            yield b"\n".join(map(orjson.dumps, rows))
        counter.done += len(rows)
