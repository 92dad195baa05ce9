"""`agentctl doctor --runs`: find inconsistent runs, and repair their records."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentctl.cli.show import columns
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import LocalTarget, Target, TargetOptions, adding_config, open_target
from agentctl.errors import ProblemsFound
from agentctl.records.text import format_count

if TYPE_CHECKING:
    from agentctl.admin.runs_doctor.find import Problem, RunsDoctor

_ONLY_LOCALLY = "run it on the machine of the database, with --config FILE"


async def examine_runs(
    out: CommandOutput,
    options: TargetOptions,
    db_id: str | None,
    *,
    fix: bool,
    yes: bool,
    cursor: str,
) -> None:
    """Find inconsistent runs and, with `fix`, repair them after a confirmation.

    Args:
        db_id: the database; None for all.
        yes: repair without a confirmation.
        cursor: the place of an interrupted check; empty: from the beginning.

    Raises:
        UsageError: a server is selected.
        ProblemsFound: there are problems; with `fix`, problems remain.
    """
    if fix:
        check_confirmable(yes=yes)
    with adding_config(options.config):
        async with open_target(options, only_locally=_ONLY_LOCALLY) as target:
            problems = await _find_or_interrupt(target, out, db_id, fix=fix, cursor=cursor)
            if fix and any(problem.remedy is not None for problem in problems):
                await _repair_all(target, out, problems, yes=yes)
            else:
                _report_problems(target, out, problems, db_id, fix=fix)


async def _find_or_interrupt(
    target: Target, out: CommandOutput, db_id: str | None, *, fix: bool, cursor: str
) -> list[Problem]:
    """Return the problems. If Ctrl-C ends the search, show those found, and how to continue."""
    from agentctl.admin.runs_doctor.find import RunsDoctor

    assert target.local is not None
    doctor = RunsDoctor(target.local.service.hosting, db_id, cursor)
    try:
        return await _find_problems(target, doctor)
    except asyncio.CancelledError:
        _show_problems(doctor.problems, out)
        again = _describe_command(db_id, fix=fix)
        if doctor.cursor:
            again += f" --cursor {shlex.quote(doctor.cursor)}"
        note(f"interrupted; continue with: {target.command(again)}")
        raise


def _describe_command(db_id: str | None, *, fix: bool) -> str:
    words = ["doctor", "--runs"]
    if db_id is not None:
        words.append(db_id)
    if fix:
        words.append("--fix")
    return shlex.join(words)


def _report_problems(
    target: Target, out: CommandOutput, problems: Sequence[Problem], db_id: str | None, *, fix: bool
) -> None:
    """Show problems that are not repaired.

    Raises:
        ProblemsFound: there are any.
    """
    _show_problems(problems, out)
    if not problems:
        return

    if all(problem.remedy is None for problem in problems):
        raise ProblemsFound(
            f"{format_count(len(problems), 'problem')} found, none can be repaired here"
        )
    command = target.command(_describe_command(db_id, fix=True))
    raise ProblemsFound(
        f"{format_count(len(problems), 'problem')} found", hint=f"repair them with: {command}"
    )


async def _repair_all(
    target: Target, out: CommandOutput, problems: Sequence[Problem], *, yes: bool
) -> None:
    """Repair what can be repaired, after a confirmation.

    Raises:
        ProblemsFound: problems are left.
    """
    assert target.local is not None
    if not yes:
        if out.is_table:
            _show_problems(problems, out)
        repairable = sum(problem.remedy is not None for problem in problems)
        confirm(
            f"Repair {repairable} of {format_count(len(problems), 'problem')} {target.place}?",
            yes=yes,
        )

    done = await _repair_problems(target, target.local, problems)
    _show_problems(done, out)
    target.report_done(f"{_count_outcomes(done)},")
    left = sum(problem.outcome == "left" for problem in done)
    if left:
        raise ProblemsFound(f"{format_count(left, 'problem')} left")


async def _find_problems(target: Target, doctor: RunsDoctor) -> list[Problem]:
    counter = Counter("runs checked", await doctor.estimate_count())

    def count_checked(more: int) -> None:
        counter.done += more

    async with showing_progress(counter):
        problems = await doctor.find_problems(count_checked)
    count = format_count(len(problems), "problem") if problems else "no problems"
    runs = format_count(counter.done, "run")
    note(f"{count} in {runs} {target.place}")
    return problems


async def _repair_problems(
    target: Target, here: LocalTarget, problems: Sequence[Problem]
) -> list[Problem]:
    from agentctl.admin.runs_doctor.repair import RunRepairs

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


def _show_problems(problems: Sequence[Problem], out: CommandOutput) -> None:
    records = [asdict(problem) for problem in problems]
    if out.format == "name":
        records = [record for record in records if record["run_id"] is not None]
    if records or not out.is_table:
        out.show_list(records, columns.PROBLEMS, "run_id")


def _count_outcomes(done: Sequence[Problem]) -> str:
    counts = Tally(problem.outcome for problem in done)
    texts = {"repaired": "repaired", "gone": "already resolved", "left": "left"}
    parts = [f"{counts[key]} {text}" for key, text in texts.items() if counts[key]]  # type: ignore[index]
    return ", ".join(parts) or "nothing changed"
