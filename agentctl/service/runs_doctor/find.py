"""Looks for runs that are not as they should be; `service.repairs` puts them right.

It reads the databases themselves and asks no policy: only the local command line, whose authority
is access to the files (contract.md 6), has it. The walk over the runs comes before the look at the
workers: who works on a run has a row before the run has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from agentctl import errors
from agentctl.records.times import now
from agentctl.runs.liveness import DEAD_AFTER_SECONDS, WorkerDeath
from agentctl.runs.states import is_final
from agentctl.service.hosting import Hosting
from agentctl.service.runs_doctor.tool_calls import UnreadableMessages, find_open_calls
from agentctl.store.database import Database
from agentctl.store.repositories import integrity, runs, workers
from agentctl.store.repositories.integrity import ScannedRun
from agentctl.store.repositories.workers import WorkerRow

__all__ = ["Problem", "ProblemKind", "RunsDoctor", "is_orphaned", "select_databases"]

PAGE_SIZE = 500
"""Runs that are read at a time."""

MAXIMUM_NAMES_SHOWN = 3
"""Tools of open calls that are named; of more there is the number."""

ProblemKind = Literal["no_session", "lost", "silent", "open_calls", "unreadable", "dead_worker"]
RepairOutcome = Literal["repaired", "gone", "left"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that looks wrong. The texts are for people.

    Attributes:
        db_id: the database that it is in.
        run_id, session_id: of the run; None for a worker.
        worker_id: who works, or has worked, on it; None where that does not matter.
        problem: what is wrong.
        remedy: what would be done about it; None: nothing.
        outcome: once a repair was tried: `repaired`; `gone`: it was over by itself, and nothing
            was changed; `left`: it is still there.
        detail: what was done, or why it was not.
    """

    kind: ProblemKind
    db_id: str
    run_id: str | None
    session_id: str | None
    worker_id: str | None
    problem: str
    remedy: str | None
    outcome: RepairOutcome | None = None
    detail: str | None = None

    def ended(self, outcome: RepairOutcome, detail: str) -> Problem:
        """The same with what became of it."""
        return replace(self, outcome=outcome, detail=detail)


@dataclass(slots=True)
class _ScanResult:
    """What a walk over one database has found.

    Attributes:
        live: runs that had not ended; whether they should have is to be asked.
        misplaced: runs without a session.
        talks: what is wrong with the messages of runs that have ended.
    """

    live: list[ScannedRun] = field(default_factory=list)
    without_session: list[ScannedRun] = field(default_factory=list)
    message_problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _WorkerSurvey:
    """The workers that have a row, and which of them are dead."""

    rows: Mapping[str, WorkerRow]
    deaths: Mapping[str, WorkerDeath | None]

    def gone(self, owner: str | None) -> bool:
        return owner is None or owner not in self.deaths or self.deaths[owner] is not None

    def seconds_since_heartbeat(self, owner: str) -> float:
        """Seconds since the last beat, by the clocks of both machines."""
        return (now() - self.rows[owner].beat) / 1_000_000


class RunsDoctor:
    """Examines databases, a page of runs at a time.

    Args:
        hosting: of a service that works on no runs itself.
        db_id: the only database to examine; None: all of them, and the rows of workers.

    Raises:
        NotFound: there is no such database.
    """

    def __init__(self, hosting: Hosting, db_id: str | None) -> None:
        self._hosting = hosting
        self._databases = select_databases(hosting, db_id)
        self._with_workers = db_id is None

    async def count(self) -> int:
        """How many runs there are to look at."""
        found = [
            await each.read(integrity.count_runs(), large=True) for each in self._databases.values()
        ]
        return sum(found)

    async def examine(self, looked_at: Callable[[int], object]) -> list[Problem]:
        """Everything that looks wrong.

        Args:
            looked_at: is told how many more runs have been looked at.
        """
        walked = {
            db_id: await _scan_database(database, looked_at)
            for db_id, database in self._databases.items()
        }
        present = await self._survey()
        problems: list[Problem] = []
        for db_id, found in walked.items():
            problems += [
                _build_session_problem(db_id, run, present) for run in found.without_session
            ]
            for run in found.live:
                problems += await _check_live_run(self._databases[db_id], run, present)
            problems += found.message_problems
        if self._with_workers:
            listed = {problem.worker_id for problem in problems}
            problems += _check_workers(self._hosting.databases.system.id, present, listed)
        return problems

    async def _survey(self) -> _WorkerSurvey:
        deaths = await self._hosting.observer.check_all()
        rows = await self._hosting.databases.system.read(workers.list_workers())
        known = {row.worker_id: row for row in rows if row.worker_id in deaths}
        return _WorkerSurvey(
            known, {each: death for each, death in deaths.items() if each in known}
        )


def select_databases(hosting: Hosting, db_id: str | None) -> dict[str, Database]:
    """The database of an id, or all of them.

    Raises:
        NotFound: there is no such database.
        Unavailable: one cannot be opened.
    """
    configured = hosting.databases
    if db_id is not None and db_id not in configured.ids:
        raise errors.NotFound("Database not found")
    return {each: configured[each] for each in configured if db_id in (None, each)}


async def is_orphaned(hosting: Hosting, run_id: str, db_id: str | None) -> bool:
    """Whether a run has not ended, and never will unless somebody writes its end."""
    database = hosting.databases.system
    if db_id is not None:
        (database,) = select_databases(hosting, db_id).values()
    before = await database.read(runs.get_state(run_id))
    if before is None or is_final(before.status):
        return False
    if not await hosting.observer.check_owner(before.owner):
        return False
    after = await database.read(runs.get_state(run_id))
    return after is not None and not is_final(after.status) and after.owner == before.owner


async def _scan_database(database: Database, looked_at: Callable[[int], object]) -> _ScanResult:
    found = _ScanResult()
    last = ""
    while page := await database.read(integrity.scan_runs(last, PAGE_SIZE), large=True):
        for run in page:
            if not run.has_session:
                found.without_session.append(run)
            elif run.live:
                found.live.append(run)
            elif run.calls:
                found.message_problems += await _check_messages(database, run)
        last = page[-1].run_id
        looked_at(len(page))
    return found


async def _check_messages(database: Database, run: ScannedRun) -> list[Problem]:
    """What is wrong with the messages of a run that has ended."""
    stored = await database.read(integrity.get_messages(run.run_id), large=True)
    if stored is None or stored.messages is None:
        return []
    try:
        calls = find_open_calls(stored.messages)
    except UnreadableMessages:
        return [_build_problem("unreadable", database.id, run, "its messages cannot be read", None)]
    if not calls:
        return []
    names = ", ".join(call.name for call in calls[:MAXIMUM_NAMES_SHOWN])
    more = ", ..." if len(calls) > MAXIMUM_NAMES_SHOWN else ""
    what = "1 tool call" if len(calls) == 1 else f"{len(calls)} tool calls"
    text = f"{what} without a result: {names}{more}"
    remedy = 'add the result "cancelled"'
    return [_build_problem("open_calls", database.id, run, text, remedy)]


def _build_session_problem(db_id: str, run: ScannedRun, present: _WorkerSurvey) -> Problem:
    stays = run.live and not present.gone(run.owner)
    text = f"it is {run.status} and its session is not there"
    remedy = None if stays else "delete it with its events"
    return _build_problem("no_session", db_id, run, text, remedy)


async def _check_live_run(
    database: Database, run: ScannedRun, present: _WorkerSurvey
) -> Iterator[Problem]:
    """What is wrong with a run that has not ended: nothing, most of the time."""
    owner = run.owner
    if owner is not None and not present.gone(owner):
        silent = present.seconds_since_heartbeat(owner)
        if silent < DEAD_AFTER_SECONDS:
            return iter(())
        text = f"it is {run.status}, and its worker has been silent for {round(silent)} s"
        return iter((_build_problem("silent", database.id, run, text, None),))
    state = await database.read(runs.get_state(run.run_id))
    if state is None or is_final(state.status) or state.owner != owner:
        return iter(())
    text = f"it is {state.status}, and its worker is gone"
    end = "CANCELLED" if state.cancel_requested_at is not None else "ERROR, WORKER_LOST"
    return iter((_build_problem("lost", database.id, run, text, f"end it as {end}"),))


def _check_workers(db_id: str, present: _WorkerSurvey, listed: set[str | None]) -> list[Problem]:
    """Workers that are dead, and those that are silent and work on nothing that was listed."""
    problems = []
    for worker_id, row in present.rows.items():
        process = f"process {row.pid} on {row.host}"
        if present.deaths[worker_id] is not None:
            text, remedy = f"the worker is gone: {process}", "remove its row"
            problems.append(Problem("dead_worker", db_id, None, None, worker_id, text, remedy))
        elif (
            silent := present.seconds_since_heartbeat(worker_id)
        ) >= DEAD_AFTER_SECONDS and worker_id not in listed:
            text = f"the worker has been silent for {round(silent)} s: {process}"
            problems.append(Problem("silent", db_id, None, None, worker_id, text, None))
    return problems


def _build_problem(
    kind: ProblemKind, db_id: str, run: ScannedRun, text: str, remedy: str | None
) -> Problem:
    return Problem(kind, db_id, run.run_id, run.session_id, run.owner, text, remedy)
