"""`agentctl audit export`: everything that a filter leaves, as JSON lines.

Newest first, as it is read: so it needs no memory however much there is, and what was interrupted
lacks the oldest rows and none in between.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from agentctl.cli.auditrows import OnlyOperation, OnlyOutcome, OnlyPrincipal, Since, pages
from agentctl.cli.door import Door, with_door
from agentctl.cli.durations import microseconds_ago
from agentctl.cli.files import refuse_existing
from agentctl.cli.output import write_bytes
from agentctl.cli.progress import Counter, waiting
from agentctl.cli.terminal import is_terminal, note
from agentctl.errors import UsageFailed
from agentctl.operations import MAXIMUM_LIMIT, AuditFilter

if TYPE_CHECKING:
    from agentctl.cli.auditrows import Row

__all__ = ["export_audit"]


@with_door()
async def export_audit(
    door: Door,
    to_file: Annotated[
        Path | None,
        typer.Option(
            "--to-file", metavar="FILE", help="Write it to this new file, for its owner alone"
        ),
    ] = None,
    principal: OnlyPrincipal = None,
    operation: OnlyOperation = None,
    outcome: OnlyOutcome = None,
    since: Since = None,
) -> None:
    """Write all of it as JSON lines, newest first.

    A file is written whole or not at all, and none is overwritten.
    """
    start = microseconds_ago(since)
    wanted = AuditFilter(principal, operation, outcome, start, limit=MAXIMUM_LIMIT)
    counter = Counter("rows exported")
    async with aclosing(_texts(door, wanted, counter)) as texts:
        if to_file is None:
            await _print(texts, counter)
            return
        with _new_file(to_file) as file:
            async with waiting(counter):
                async for text in texts:
                    file.write(text + b"\n")
    note(f"wrote {counter.done} rows to {to_file}")


async def _print(texts: AsyncIterator[bytes], counter: Counter) -> None:
    """Write to stdout. How far it is, is seen where stdout is the terminal."""
    async with nullcontext() if is_terminal(sys.stdout) else waiting(counter):
        async for text in texts:
            write_bytes(text)


async def _texts(door: Door, wanted: AuditFilter, counter: Counter) -> AsyncGenerator[bytes]:
    """The lines of a page at a time."""
    import orjson

    rows: list[Row]
    async for rows in pages(door, wanted):
        if rows:
            yield b"\n".join(map(orjson.dumps, rows))
        counter.done += len(rows)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to. What ends the block early takes it away again: half of an audit must not
    pass for all of it.

    Raises:
        Conflict: it is there already.
        UsageFailed: it cannot be written.
    """
    try:
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        refuse_existing(path)
        raise
    except OSError as failure:
        raise _unwritable(path, failure) from None
    try:
        with open(place, "wb") as file:  # noqa: PTH123 - it is open already
            yield file
            file.flush()
            os.fsync(place)
    except BaseException as failure:
        with suppress(OSError):
            path.unlink()
        if isinstance(failure, OSError):
            raise _unwritable(path, failure) from None
        raise


def _unwritable(path: Path, failure: OSError) -> UsageFailed:
    return UsageFailed(
        f"{path} cannot be written", cause=(failure.strerror or "writing failed").lower()
    )
