"""`agentctl runs doctor`: find inconsistent runs and repair them."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.options import Output, Yes
from agentctl.cli.show import columns
from agentctl.cli.show.output import Format, resolve_format, show_list
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import LocalTarget, Target, with_target
from agentctl.errors import ProblemsFound

if TYPE_CHECKING:
    from agentctl.service.runs_doctor.find import Problem


@with_target(only_locally="run it on the machine of the database, with --config FILE")
async def examine_runs(
    target: Target,
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair the problems that can be repaired")
    ] = False,
    yes: Yes = False,
    db: Annotated[
        str | None, typer.Option("--db", metavar="ID", help="Database id (default: all databases)")
    ] = None,
    output: Output = None,
) -> None:
    """Find inconsistent runs and, with --fix, repair them.

    Finds runs whose worker died, runs in no valid state, runs that contradict their parent or their
    approvals, runs without a session, tool calls without a result, and workers that died or have no
    heartbeat. Works only locally. Exit code 1 if there is a problem, with --fix if one is left.
    """
    output_format = resolve_format(output)
    if fix:
        check_confirmable(yes=yes)
    assert target.local is not None
    problems = await _find_problems(target, target.local, db)
    repairable = sum(problem.remedy is not None for problem in problems)
    if not fix or not repairable:
        _show_problems(problems, output_format)
        if repairable:
            command = target.command("runs doctor --fix" + (f" --db {db}" if db else ""))
            hint = f"repair them with: {command}"
            raise ProblemsFound(f"{_count(len(problems))} found", hint=hint)
        if problems:
            raise ProblemsFound(f"{_count(len(problems))} found, none can be repaired here")
        return
    if not yes:
        if output_format in ("table", "wide"):
            _show_problems(problems, output_format)
        confirm(f"Repair {repairable} of {_count(len(problems))} {target.place}?", yes=yes)
    done = await _repair_problems(target, target.local, problems)
    _show_problems(done, output_format)
    target.report_done(f"{_count_outcomes(done)},")
    left = sum(problem.outcome == "left" for problem in done)
    if left:
        raise ProblemsFound(f"{_count(left)} left")


async def _find_problems(target: Target, here: LocalTarget, db: str | None) -> list[Problem]:
    from agentctl.service.runs_doctor.find import RunsDoctor

    doctor = RunsDoctor(here.service.hosting, db)
    counter = Counter("runs checked", await doctor.count())

    def count_checked(more: int) -> None:
        counter.done += more

    async with showing_progress(counter):
        problems = await doctor.find_problems(count_checked)
    count = _count(len(problems)) if problems else "no problems"
    runs = "1 run" if counter.done == 1 else f"{counter.done} runs"
    note(f"{count} in {runs} {target.place}")
    return problems


async def _repair_problems(
    target: Target, here: LocalTarget, problems: Sequence[Problem]
) -> list[Problem]:
    import asyncio

    from agentctl.service.runs_doctor.repair import RunRepairs

    done: list[Problem] = []
    counter = Counter("problems processed", len(problems))
    try:
        async with showing_progress(counter):
            async for problem in RunRepairs(here.service.hosting).repair(problems):
                done.append(problem)
                counter.done = len(done)
    except asyncio.CancelledError:
        target.report_done(f"interrupted: {_count_outcomes(done)},")
        raise
    return done


def _show_problems(problems: Sequence[Problem], output_format: Format) -> None:
    records = [asdict(problem) for problem in problems]
    if output_format == "name":
        records = [record for record in records if record["run_id"] is not None]
    if records or output_format not in ("table", "wide"):
        show_list(records, columns.PROBLEMS, output_format, id_field="run_id")


def _count_outcomes(done: Sequence[Problem]) -> str:
    counts = Tally(problem.outcome for problem in done)
    texts = {"repaired": "repaired", "gone": "already resolved", "left": "left"}
    parts = [f"{counts[key]} {text}" for key, text in texts.items() if counts[key]]  # type: ignore[index]
    return ", ".join(parts) or "nothing changed"


def _count(number: int) -> str:
    return "1 problem" if number == 1 else f"{number} problems"
