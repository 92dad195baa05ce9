"""`agentctl runs doctor`: what looks wrong with runs, and putting it right."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.options import Output, Yes
from agentctl.cli.show import columns
from agentctl.cli.show.output import Format, chosen_format, show_list
from agentctl.cli.show.progress import Counter, waiting
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Door, Here, with_door
from agentctl.errors import AgentctlError

if TYPE_CHECKING:
    from agentctl.service.runs_doctor.find import Problem

__all__ = ["ProblemsFound", "examine_runs"]


class ProblemsFound(AgentctlError):
    """Something is wrong with runs, and was left so."""

    error_code = "PROBLEMS_FOUND"


@with_door(
    only_locally="it looks into the database itself: run it where that is, with --config FILE"
)
async def examine_runs(
    door: Door,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what can be repaired")] = False,
    yes: Yes = False,
    db: Annotated[
        str | None, typer.Option("--db", metavar="ID", help="Only this database, else all of them")
    ] = None,
    output: Output = None,
) -> None:
    """List what looks wrong with runs, and with --fix repair it.

    Runs whose worker is gone, runs without a session, tool calls without a result, and workers
    that are gone or silent. Works locally only. Exit code 1 when there is something, or something
    is left.
    """
    form = chosen_format(output)
    if fix:
        check_confirmable(yes=yes)
    assert door.local is not None
    problems = await _examine(door, door.local, db)
    repairable = sum(problem.remedy is not None for problem in problems)
    if not fix or not repairable:
        _show(problems, form)
        if problems:
            raise _found(door, problems, repairable, db, fix=fix)
        return
    if not yes:
        if form == "table":
            _show(problems, form)
        confirm(f"Repair {repairable} of {_count(len(problems))} {door.target}?", yes=yes)
    done = await _repair(door, door.local, problems)
    _show(done, form)
    _sum_up(door, done)


async def _examine(door: Door, here: Here, db: str | None) -> list[Problem]:
    from agentctl.service.runs_doctor.find import Doctor

    doctor = Doctor(here.service.hosting, db)
    counter = Counter("runs looked at", await doctor.count())

    def looked_at(more: int) -> None:
        counter.done += more

    async with waiting(counter):
        problems = await doctor.examine(looked_at)
    found = _count(len(problems)) if problems else "nothing wrong"
    runs = "1 run" if counter.done == 1 else f"{counter.done} runs"
    note(f"{found} in {runs} {door.target}")
    return problems


async def _repair(door: Door, here: Here, problems: Sequence[Problem]) -> list[Problem]:
    """Repair them, and say what has been done even when this is interrupted."""
    import asyncio

    from agentctl.service.runs_doctor.repair import Repairs

    done: list[Problem] = []
    counter = Counter("problems dealt with", len(problems))
    try:
        async with waiting(counter):
            async for problem in Repairs(here.service.hosting).repair(problems):
                done.append(problem)
                counter.done = len(done)
    except asyncio.CancelledError:
        door.did(f"interrupted: {_tally(done)},")
        raise
    return done


def _show(problems: Sequence[Problem], form: Format) -> None:
    from agentctl.records.document import document_of

    records = [asdict(problem) for problem in problems]
    if form == "name":
        records = [record for record in records if record["run_id"] is not None]
    if records or form != "table":
        show_list(document_of(records), columns.PROBLEMS, form, id_field="run_id")


def _found(
    door: Door, problems: Sequence[Problem], repairable: int, db: str | None, *, fix: bool
) -> ProblemsFound:
    if repairable and not fix:
        command = door.command("runs doctor --fix" + (f" --db {db}" if db else ""))
        return ProblemsFound(f"{_count(len(problems))} found", hint=f"to repair: {command}")
    return ProblemsFound(f"{_count(len(problems))} found, nothing of it can be repaired from here")


def _sum_up(door: Door, done: Sequence[Problem]) -> None:
    """Say what was changed, and what was not.

    Raises:
        ProblemsFound: something is left.
    """
    door.did(f"{_tally(done)},")
    left = sum(problem.outcome == "left" for problem in done)
    if left:
        raise ProblemsFound(f"{_count(left)} left")


def _tally(done: Sequence[Problem]) -> str:
    tally = Tally(problem.outcome for problem in done)
    texts = {"repaired": "repaired", "gone": "over by itself, nothing changed", "left": "left"}
    parts = [f"{tally[key]} {text}" for key, text in texts.items() if tally[key]]  # type: ignore[index]
    return ", ".join(parts) or "nothing changed"


def _count(number: int) -> str:
    return "1 problem" if number == 1 else f"{number} problems"
