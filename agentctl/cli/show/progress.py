"""A progress line on stderr, and operations on several items, each of which may fail."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from agentctl.cli.io import IO, current_io
from agentctl.cli.report import report_error
from agentctl.errors import AgentctlError, PartFailed
from agentctl.records.text import escape_controls, format_count
from agentctl.records.times import format_span

if TYPE_CHECKING:
    from agentctl.admin.imports.store import ImportReport
    from agentctl.cli.show.output import CommandOutput

DELAY_SECONDS = 1.0
"""Shorter work shows no progress."""

REFRESH_SECONDS = 0.2

S = TypeVar("S")
T = TypeVar("T")


@dataclass(slots=True)
class Counter:
    """A number of items that are done, before its text: `25 of 100 runs have stopped`."""

    text: str
    total: int | None = None
    done: int = 0

    def show(self, text: str, done: int, total: int | None) -> None:
        """Set all fields; a total of 0 is unknown."""
        self.text = text
        self.done = done
        self.total = total or None

    def set(self, done: int) -> None:
        """Set the number of items that are done."""
        self.done = done

    def __str__(self) -> str:
        of_total = f" of {self.total}" if self.total else ""
        return f"{self.done}{of_total} {self.text}"


@asynccontextmanager
async def showing_progress(
    work: str | Counter, *, limit: float | None = None
) -> AsyncIterator[None]:
    """Show the work and its duration within the block: on a terminal, in a line that disappears.

    Args:
        work: `waiting for the response`, or a counter.
        limit: the longest duration in seconds, if known.
    """
    io = current_io()
    if io.quiet or not io.err_is_terminal:
        yield
        return
    import asyncio

    task = asyncio.create_task(_show(io, work, limit))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _show(io: IO, work: str | Counter, limit: float | None) -> None:
    import asyncio

    began = time.monotonic()
    await asyncio.sleep(DELAY_SECONDS)
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    symbol = BarColumn(20) if isinstance(work, Counter) else SpinnerColumn("line")
    progress = Progress(
        symbol,
        TextColumn("{task.description}", markup=False),
        console=io.console(io.err),
        auto_refresh=False,  # a thread would write while this one does
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = progress.add_task("", total=None)

    end = "" if limit is None else f" of {format_span(limit)}"
    with suppress(OSError), progress:  # the terminal may be gone
        io.progress = progress.console
        try:
            while True:
                elapsed = format_span(time.monotonic() - began)
                description = escape_controls(f"{work}, {elapsed}{end}")
                progress.update(task, description=description)
                if isinstance(work, Counter):
                    progress.update(task, completed=work.done, total=work.total)
                progress.refresh()
                await asyncio.sleep(REFRESH_SECONDS)
        finally:
            io.progress = None


async def run_all(
    items: Sequence[S], act: Callable[[S], Awaitable[T]], *, at_once: int | None = None
) -> list[T | BaseException]:
    """Return the result or the exception of `act` for each item, in the order of the items.

    Args:
        at_once: the number of items at the same time; None: all of them.
    """
    import asyncio

    semaphore = asyncio.Semaphore(at_once or max(len(items), 1))

    async def act_in_turn(item: S) -> T:
        async with semaphore:
            return await act(item)

    return await asyncio.gather(*map(act_in_turn, items), return_exceptions=True)


def successes(results: Sequence[T | BaseException]) -> list[T]:
    """Return the results without the exceptions."""
    return [result for result in results if not isinstance(result, BaseException)]


def report_failures(ids: Sequence[str], results: Sequence[object]) -> None:
    """Report every exception among the results, which are in the order of the ids.

    Raises:
        AgentctlError: the exception itself if there is one id; else `PartFailed`, after each
            exception was reported on stderr with its id.
    """
    failures = [
        (name, result)
        for name, result in zip(ids, results, strict=True)
        if isinstance(result, Exception)
    ]
    if failures and len(ids) == 1:
        _, failure = failures[0]
        raise failure

    for name, failure in failures:
        if isinstance(failure, AgentctlError) and name not in failure.detail:
            failure.detail = f"{failure.detail}: {name}"
        report_error(failure)

    if failures:
        raise PartFailed(f"{len(failures)} of {len(ids)} failed")


def report_import(made: ImportReport, out: CommandOutput) -> None:
    """Print the numbers of imported and skipped rows, and list the rest with the reasons."""
    from agentctl.cli.show.table import plain_columns
    from agentctl.cli.show.terminal import note

    rows = [{"what": name, "count": count} for name, count in made.counts.items() if count]
    out.show_list(rows, plain_columns("what", "count"), "what")
    for name, reason in made.left:
        note(f"left out: {name}: {reason}")


def check_complete(made: ImportReport) -> None:
    """Raise PartFailed if something was left out."""
    if made.left:
        raise PartFailed(
            f"left out {format_count(len(made.left), 'session or run', 'sessions or runs')}"
        )
