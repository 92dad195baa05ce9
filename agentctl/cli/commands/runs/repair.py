"""`agentctl runs retry`, `fork` and `doctor`: repeat runs, and repair their records."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from agentctl.cli.commands.runs import start
from agentctl.cli.ids import ShortId
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.options import AgentId, AnyDatabase, ComponentChoice, DbId, RunId, TeamId, Yes
from agentctl.cli.parameters import build_id_option, flag, option
from agentctl.cli.show import columns
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import LocalTarget, Target, with_target
from agentctl.errors import NeedsConfirmation, ProblemsFound, UsageError
from agentctl.interface.requests import SUMMARY_VIEW, ForkRequest, RetryRequest
from agentctl.records.kinds import ComponentRef, component_of_run
from agentctl.transcripts.model import clean_line

if TYPE_CHECKING:
    from agentctl.admin.runs_doctor.find import Problem, RunsDoctor

_STATES = {"done": "done", "failed": "failed", "unknown": "outcome not known"}


@with_target(needs_server=("background",))
async def retry_run(
    target: Target,
    out: CommandOutput,
    run_id: RunId,
    background: start.Background = False,
    stream: start.StreamOption = None,
    idempotency_key: start.KeyOption = None,
    yes: Yes = False,
    db: DbId = None,
) -> None:
    """Repeat a finished run from its last good step.

    The new run has the same session and input. It reuses the finished tool calls of the original
    run; agents in code and broadcasts start from the beginning. Calls that may be made again are
    listed and confirmed first. Output and exit codes are the same as for `runs start`.
    """
    stream = start.choose_stream(stream, out, background=background)
    component = await _find_origin(target, run_id, db)
    new = start.RunStart(
        component,
        RetryRequest(background=background, idempotency_key=idempotency_key),
        stream=partial(target.operations.runs.stream_retried, *component, run_id),
        wait=partial(target.operations.runs.retry, *component, run_id),
    )
    await _show_repeat(target, new, out, stream=stream, yes=yes)


@with_target(needs_server=("background",))
async def fork_run(
    target: Target,
    out: CommandOutput,
    run_id: RunId,
    at: int | None = option(
        "--at", "N", "Number of messages to keep, as in `runs get --messages`", min=0
    ),
    message: str | None = option("--message -m", "TEXT", "Next message (- reads stdin)"),
    agent: AgentId = None,
    team: TeamId = None,
    session: Annotated[
        str | None,
        ShortId("session"),
        build_id_option("session", "Session of the original run (default: a new session)"),
    ] = None,
    background: start.Background = False,
    stream: start.StreamOption = None,
    idempotency_key: start.KeyOption = None,
    yes: Yes = False,
    db: DbId = None,
) -> None:
    """Start a run from the first messages of a finished run.

    It continues with a different message, agent or team. Later calls that may be made again are
    listed and confirmed first. Output and exit codes are the same as for `runs start`.
    """
    if at is None:
        look = target.command(f"runs get {run_id} --messages")
        raise UsageError("no message given to fork at", hint=f"give --at N; the numbers: {look}")

    stream = start.choose_stream(stream, out, background=background)
    request = ForkRequest(
        at=at,
        message=None if message is None else read_text_or_stdin(message, "message"),
        agent_id=agent,
        team_id=team,
        session_id=session,
        background=background,
        idempotency_key=idempotency_key,
    )

    chosen = ComponentChoice(agent, team).resolve()
    component = await _find_origin(target, run_id, db)
    new = start.RunStart(
        chosen or component,
        request,
        stream=partial(target.operations.runs.stream_forked, *component, run_id),
        wait=partial(target.operations.runs.fork, *component, run_id),
    )
    await _show_repeat(target, new, out, stream=stream, yes=yes)


async def _find_origin(target: Target, run_id: str, db: str | None) -> ComponentRef:
    """Return the component of a run that is repeated."""
    run = (await target.operations.runs.get(run_id, db_id=db, form=SUMMARY_VIEW)).value
    return component_of_run(run)


async def _show_repeat(
    target: Target, new: start.RunStart, out: CommandOutput, *, stream: bool, yes: bool
) -> None:
    """Start a run that repeats another one, and show its output.

    What it may repeat is shown on stderr, and confirmed first.
    """
    try:
        await start.show_new_run(target, new, out, stream=stream)
        return
    except NeedsConfirmation as needed:
        plan = needed.plan

    part = "step" if new.component[0] == "workflow" else "message"
    for line in _describe_plan(plan, part):
        note(line)
    confirm(f"Start the {plan['kind']}?", yes=yes)

    confirmed = replace(new, request=replace(new.request, confirm=str(plan["confirm"])))
    await start.show_new_run(target, confirmed, out, stream=stream)


def _describe_plan(plan: Mapping[str, Any], part: str) -> Iterator[str]:
    """Yield the lines about what a run begins with, and what it may repeat."""
    at = plan["at"]
    yield f"begins after {part} {at} of the run" if at else "works from the beginning"
    if plan["runs_code"]:
        yield "the code of the agent runs again, with all of its effects"
    if plan["calls_unknown"]:
        yield "the server of the run died: calls that it made at last may not be known"

    for retry in plan["retries"]:
        yield f"the run was retried already: {clean_line(retry)}"

    calls = plan["calls"]
    if calls:
        yield "tool calls that may be made again:"
    for call in calls:
        name = clean_line(call["tool_name"])
        arguments = clean_line(call["arguments"])
        yield f"  {name} {arguments} ({_STATES.get(call['state'], 'outcome not known')})"
    more_count = plan["calls_total"] - len(calls)
    if more_count > 0:
        yield f"  and {more_count} more"


@with_target(only_locally="run it on the machine of the database, with --config FILE")
async def examine_runs(
    target: Target,
    out: CommandOutput,
    fix: bool = flag("--fix", "Repair the problems that can be repaired"),
    yes: Yes = False,
    db: AnyDatabase = None,
    cursor: str = option("--cursor", "CURSOR", "Continue an interrupted check", default=""),
) -> None:
    """Find inconsistent runs and, with --fix, repair them.

    Finds runs whose worker died, runs in no valid state, runs that contradict their parent or their
    approvals, runs without a session, tool calls without a result, and workers that died or have no
    heartbeat. Works only locally. Exit code 1 if there are problems; with --fix, if problems
    remain. An interrupted check shows the problems found so far and the command that continues the
    check.
    """
    from agentctl.admin.runs_doctor.find import RunsDoctor

    if fix:
        check_confirmable(yes=yes)
    assert target.local is not None
    doctor = RunsDoctor(target.local.service.hosting, db, cursor)
    again = "runs doctor" + " --fix" * fix + (f" --db {db}" if db else "")
    try:
        problems = await _find_problems(target, doctor)
    except asyncio.CancelledError:
        _show_problems(doctor.problems, out)
        if doctor.cursor:
            again += f" --cursor {shlex.quote(doctor.cursor)}"
        note(f"interrupted; continue with: {target.command(again)}")
        raise
    repairable = sum(problem.remedy is not None for problem in problems)
    if not fix or not repairable:
        _show_problems(problems, out)
        if repairable:
            command = target.command("runs doctor --fix" + (f" --db {db}" if db else ""))
            hint = f"repair them with: {command}"
            raise ProblemsFound(f"{_count(len(problems))} found", hint=hint)
        if problems:
            raise ProblemsFound(f"{_count(len(problems))} found, none can be repaired here")
        return
    if not yes:
        if out.is_table:
            _show_problems(problems, out)
        confirm(f"Repair {repairable} of {_count(len(problems))} {target.place}?", yes=yes)
    done = await _repair_problems(target, target.local, problems)
    _show_problems(done, out)
    target.report_done(f"{_count_outcomes(done)},")
    left = sum(problem.outcome == "left" for problem in done)
    if left:
        raise ProblemsFound(f"{_count(left)} left")


async def _find_problems(target: Target, doctor: RunsDoctor) -> list[Problem]:
    counter = Counter("runs checked", await doctor.estimate_count())

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


def _count(number: int) -> str:
    return "1 problem" if number == 1 else f"{number} problems"
