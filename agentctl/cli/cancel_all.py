"""`agentctl runs cancel --all`: stop every live run that a filter leaves.

First all are read, page by page, then all are asked to stop, then the ends are waited for: one that
does not stop keeps no other one from being asked.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentctl.cli import bulk, columns
from agentctl.cli.chosen import component_of_run
from agentctl.cli.output import Format, show_list
from agentctl.cli.progress import Counter, waiting
from agentctl.cli.table import Column, Columns
from agentctl.cli.terminal import confirm, note
from agentctl.errors import StillPending
from agentctl.operations import MAXIMUM_LIMIT, CancelRequest, Page

if TYPE_CHECKING:
    from agentctl.cli.door import Door
    from agentctl.operations import RunFilter
    from agentctl.records.runs import CancelRecord

__all__ = ["cancel_all"]

AT_ONCE = 16
"""Requests under way at the same time."""

AGAIN_SECONDS = 0.2
"""Between two looks at the runs that have not stopped yet."""

_LARGE = ("input", "content", "messages", "tools", "metrics")
"""Fields of a run that are not kept: there may be many runs."""

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Selection:
    """What a filter leaves.

    Attributes:
        runs: what is to be asked to stop, newest first.
        members: how many runs stop with them, because one of them asked for them.
    """

    runs: list[Run]
    members: int

    def __str__(self) -> str:
        return _count(len(self.runs), "run") + (
            f" and {_count(self.members, 'run')} of members" if self.members else ""
        )


async def cancel_all(
    door: Door,
    wanted: RunFilter,
    request: CancelRequest,
    form: Format,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Cancel what the filter leaves, or only say what that is.

    Args:
        wanted: the filter; it leaves live runs only.
        request: how long to wait for all the ends together, and the reason.
        yes: do not ask.

    Raises:
        Refused: the answer to the question was no.
        StillPending: some have not stopped yet.
        AgentctlError: some could not be asked.
    """
    found = await _select(door, wanted)
    if dry_run or not found.runs:
        _show_only(door, found, form)
        return
    confirm(f"Cancel {found}, {door.target}?", yes=yes)
    results = await _stop(door, found.runs, request)
    done = bulk.successes(results)
    _show(done, columns.CANCELS, form)
    _sum_up(door, done)
    bulk.raise_failures([run["run_id"] for run in found.runs], results)
    pending = [record["run_id"] for record in done if record["cancel"] == "requested"]
    if pending:
        look = door.command(f"runs get {pending[0]}")
        raise StillPending(
            f"{_count(len(pending), 'run')} asked to stop, and not stopped yet",
            hint=f"look again: {look}",
        )


def _show_only(door: Door, found: _Selection, form: Format) -> None:
    """Say what would be cancelled, which may be nothing."""
    if found.runs or form != "table":
        _show(found.runs, columns.RUNS, form)
    what = f"{found} would be cancelled" if found.runs else "there is nothing to cancel"
    note(f"{what} {door.target}")


async def _select(door: Door, wanted: RunFilter) -> _Selection:
    """Read every page. New runs come before the first one: the cursor never meets them."""
    runs: list[Run] = []
    counter = Counter("runs found")
    part = Page(limit=MAXIMUM_LIMIT)
    async with waiting(counter):
        while True:
            page = (await door.operations.get_runs(replace(wanted, page=part))).value
            for record in page["data"]:
                runs.append({name: value for name, value in record.items() if name not in _LARGE})
            counter.done = len(runs)
            following = page["meta"].get("next_cursor")
            if not following or following == part.cursor:
                break
            part = replace(part, cursor=following)
    ids = {run["run_id"] for run in runs}
    tops = [run for run in runs if run.get("parent_run_id") not in ids]
    return _Selection(tops, len(runs) - len(tops))


async def _stop(
    door: Door, runs: Sequence[Run], request: CancelRequest
) -> list[CancelRecord | BaseException]:
    """Ask every run to stop, then look again at those that have not, until the time is up."""
    import asyncio
    import time

    async def ask(run: Run) -> CancelRecord:
        asked = CancelRequest(run["session_id"], 0.0, request.reason)
        component = component_of_run(run)
        record = (await door.operations.cancel_run(*component, run["run_id"], asked)).value
        if run["run_id"] in requested and record["status"] == "CANCELLED":
            record["cancel"] = "stopped"  # it had been asked to, by us
        if record["cancel"] == "requested":
            requested.add(run["run_id"])
        else:
            counter.done += 1
        return record

    requested: set[str] = set()
    counter = Counter("runs have stopped", len(runs))
    try:
        async with waiting(counter):
            results = await bulk.do_all(runs, ask, at_once=AT_ONCE)
            end = time.monotonic() + request.wait
            while (left := end - time.monotonic()) > 0 and (again := _pending(results)):
                await asyncio.sleep(min(AGAIN_SECONDS, left))
                looked = await bulk.do_all([runs[at] for at in again], ask, at_once=AT_ONCE)
                for at, result in zip(again, looked, strict=True):
                    results[at] = result
    except asyncio.CancelledError:
        look = door.command("runs list --live")
        note(f"interrupted: {counter.done} of {len(runs)} runs have stopped, see: {look}")
        raise
    return results


def _pending(results: Sequence[CancelRecord | BaseException]) -> list[int]:
    """Which runs are still to stop."""
    return [
        at
        for at, result in enumerate(results)
        if not isinstance(result, BaseException) and result["cancel"] == "requested"
    ]


def _sum_up(door: Door, done: Sequence[CancelRecord]) -> None:
    """Say in one line what came of it."""
    tally: Tally[str] = Tally(record["cancel"] for record in done)
    texts = {
        "stopped": "stopped",
        "requested": "asked to stop and not stopped yet",
        "already_final": "already final",
    }
    parts = [f"{tally[outcome]} {text}" for outcome, text in texts.items() if tally[outcome]]
    if parts:
        door.did(f"{_count(len(done), 'run')}: {', '.join(parts)},")


def _show(records: Sequence[Any], shown: Columns | Sequence[Column], form: Format) -> None:
    from agentctl.records.document import document_of

    show_list(document_of(list(records)), shown, form, id_field="run_id")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
