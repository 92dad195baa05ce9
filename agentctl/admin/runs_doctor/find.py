"""Find inconsistent runs and dead workers; `repair` repairs them.

Only the local command line uses this module: it reads the databases directly and asks no policy,
because access to the files is the authority (docs/contract.md "Local mode"). Live runs are read
before their workers are checked: a worker has its row before its first run has one.

Model providers reject a history with a tool call without a result. A run that stops closes its
calls; `close_calls` closes the calls of rows that another program wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import orjson

from agentctl import errors
from agentctl.records.items import CANCELLED_RESULT
from agentctl.records.times import now
from agentctl.runs.states import is_final
from agentctl.runs.workers.liveness import DEAD_AFTER_SECONDS, WorkerDeath
from agentctl.service.hosting import Hosting
from agentctl.store.database import Database
from agentctl.store.migrating import read_sizes
from agentctl.store.repositories import integrity, queue, run_reads, workers
from agentctl.store.repositories.integrity import ScannedRun, StoredMessages
from agentctl.store.repositories.workers import WorkerRow

PAGE_SIZE = 500
"""Runs of one read."""

PAUSED_SECONDS = 86_400
"""Age of a pause that is reported."""

MAXIMUM_WAITING = 100
"""Maximum number of waiting runs of each kind that are reported for a database."""

ENDING_SECONDS = 60
"""Time after the end of a run for which its members may still be open: they are ending."""

MAXIMUM_NAMES_SHOWN = 3
"""Tools of open calls that a finding names."""

ProblemKind = Literal[
    "no_session", "lost", "silent", "open_calls", "unreadable", "dead_worker", "paused",
    "unclaimed", "unknown_call", "inconsistent",
]  # fmt: skip
RepairOutcome = Literal["repaired", "gone", "left"]


@dataclass(frozen=True, slots=True)
class Problem:
    """An inconsistency. The texts are for people."""

    kind: ProblemKind
    db_id: str

    run_id: str | None
    """The run; None for a worker."""

    session_id: str | None
    """The session of the run; None for a worker."""

    worker_id: str | None
    """The owner of the run, or the worker itself; None if it does not matter."""

    problem: str

    remedy: str | None
    """The action of a repair; None if there is none."""

    outcome: RepairOutcome | None = None
    """The result of a repair: `repaired`; `gone`: the problem no longer existed and nothing was
    changed; `left`: the problem still exists."""

    detail: str | None = None
    """The action that was taken, or the reason for `left`."""

    def with_outcome(self, outcome: RepairOutcome, detail: str) -> Problem:
        """Return the problem with the outcome of its repair."""
        return replace(self, outcome=outcome, detail=detail)


@dataclass(frozen=True, slots=True)
class _WorkerSurvey:
    """The workers that have a row."""

    rows: Mapping[str, WorkerRow]

    deaths: Mapping[str, WorkerDeath | None]
    """The cause of death of each worker; None if it is alive."""

    def is_dead(self, owner: str | None) -> bool:
        """Return True if the worker is dead or has no row."""
        return owner is None or owner not in self.deaths or self.deaths[owner] is not None

    def seconds_since_heartbeat(self, owner: str) -> float:
        """Return the seconds since the last heartbeat, by the clocks of both machines."""
        return (now() - self.rows[owner].beat) / 1_000_000


class RunsDoctor:
    """The checks of one or all databases, a page of runs at a time.

    Args:
        hosting: the shared objects of a service that executes no runs.
        db_id: the only database to check; None: all databases and the workers.
        cursor: the `cursor` of an interrupted check, to continue it.

    Attributes:
        cursor: the place that the check has reached.

    Raises:
        NotFound: there is no such database.
        BadRequest: the cursor has none of these databases.
    """

    def __init__(self, hosting: Hosting, db_id: str | None, cursor: str = "") -> None:
        self._hosting = hosting
        self._databases = select_databases(hosting, db_id)
        self._with_workers = db_id is None
        self.problems: list[Problem] = []
        self.cursor = cursor
        if cursor and cursor.partition(":")[0] not in self._databases:
            raise errors.BadRequest("The cursor is not one of this check")

    async def estimate_count(self) -> int:
        """Return the number of runs, which is an estimate for a large database."""
        total = 0
        for entry in self._hosting.settings.databases:
            if entry.id in self._databases:
                await self._databases[entry.id].check()  # the sizes need the tables
                total += (await read_sizes(entry)).runs
        return total

    async def find_problems(self, report_progress: Callable[[int], object]) -> list[Problem]:
        """Check all runs, and all workers unless one database was selected.

        Args:
            report_progress: receives the number of runs checked since the previous call.
        """
        first, _, last = self.cursor.partition(":")
        names = list(self._databases)
        for db_id in names[names.index(first) if first else 0 :]:
            database = self._databases[db_id]
            while True:
                page = await database.read(integrity.scan_runs(last, PAGE_SIZE), size="large")
                if not page:
                    break

                page_problems = list[Problem]()
                for run in page:
                    page_problems += await _check_ended(database, run)

                # Both at once: an interrupted check continues at the cursor, after whole pages.
                self.problems += page_problems
                last = page[-1].run_id
                self.cursor = f"{db_id}:{last}"
                report_progress(len(page))

            last = ""

        await self._check_live()
        return self.problems

    async def find_recent_problems(self, maximum: int, seconds: float) -> int:
        """Check the newest runs, live runs and workers. The work is bounded.

        Args:
            maximum: maximum number of ended runs for each database.
            seconds: maximum time for the ended runs.

        Returns:
            The number of runs that were checked.
        """
        end = time.monotonic() + seconds
        count = 0
        for database in self._databases.values():
            for run in await database.read(integrity.list_newest(maximum), size="large"):
                if time.monotonic() > end:
                    break
                count += 1
                self.problems += await _check_ended(database, run)
        await self._check_live()
        return count

    async def _check_live(self) -> None:
        """Check the runs that have not ended, which are found by indexes, and the workers."""
        live = {name: await _read_live(database) for name, database in self._databases.items()}

        deaths = await self._hosting.monitor.check_all()
        rows = await self._hosting.databases.system.read(workers.list_workers())
        by_id = {row.worker_id: row for row in rows if row.worker_id in deaths}
        survey = _WorkerSurvey(by_id, {worker_id: deaths[worker_id] for worker_id in by_id})

        for db_id, runs in live.items():
            for run in runs:
                problem = await _check_live_run(self._databases[db_id], run, survey)
                if problem is not None:
                    self.problems.append(problem)
            self.problems += await _check_waiting(self._hosting, self._databases[db_id])

        if self._with_workers:
            reported_workers = {problem.worker_id for problem in self.problems}
            self.problems += _check_workers(
                self._hosting.databases.system.id, survey, reported_workers
            )


def select_databases(hosting: Hosting, db_id: str | None) -> dict[str, Database]:
    """Return the database with an id, or all databases if it is None, by id."""
    configured = hosting.databases
    databases = {name: configured[name] for name in configured if db_id in (None, name)}
    if not databases:
        raise errors.NotFound("Database not found")
    return databases


async def is_orphaned(hosting: Hosting, run_id: str, db_id: str | None) -> bool:
    """Return True if a run is live and its worker is dead."""
    database = hosting.databases.system
    if db_id is not None:
        (database,) = select_databases(hosting, db_id).values()

    before = await database.read(run_reads.get_state(run_id))
    if before is None or is_final(before.status):
        return False
    if not await hosting.monitor.check_owner(before.owner):
        return False

    # Its worker may have ended it before its own end, or another worker may have taken it.
    after = await database.read(run_reads.get_state(run_id))
    return after is not None and not is_final(after.status) and after.owner == before.owner


async def _read_live(database: Database) -> list[ScannedRun]:
    live = list[ScannedRun]()
    while True:
        after = live[-1] if live else None
        page = await database.read(integrity.list_live(after, PAGE_SIZE), size="large")
        if not page:
            return live
        live += page


async def _check_ended(database: Database, run: ScannedRun) -> list[Problem]:
    """Check a run that is not live; `_check_live_run` checks live runs."""
    if run.live:
        return []
    if not run.has_session:
        return [_build_orphan(database.id, run, "delete it with its events")]
    return await _check_messages(database, run) if run.calls else []


def _build_orphan(db_id: str, run: ScannedRun, remedy: str | None) -> Problem:
    text = f"it is {run.status}, but its session does not exist"
    return _build_problem("no_session", db_id, run, text, remedy)


async def _check_messages(database: Database, run: ScannedRun) -> list[Problem]:
    stored = await database.read(integrity.get_messages(run.run_id), size="large")
    if stored is None or stored.messages is None:
        return []

    try:
        calls = find_open_calls(stored.messages)
    except UnreadableMessages:
        return [
            _build_problem("unreadable", database.id, run, "its messages cannot be parsed", None)
        ]

    if not calls:
        return []

    names = ", ".join(call.name for call in calls[:MAXIMUM_NAMES_SHOWN])
    more = ", ..." if len(calls) > MAXIMUM_NAMES_SHOWN else ""
    what = "1 tool call" if len(calls) == 1 else f"{len(calls)} tool calls"
    text = f"{what} without a result: {names}{more}"
    remedy = 'add the result "cancelled"'
    return [_build_problem("open_calls", database.id, run, text, remedy)]


async def _check_live_run(
    database: Database, run: ScannedRun, survey: _WorkerSurvey
) -> Problem | None:
    owner = run.owner
    if not run.has_session:
        remedy = "delete it with its events" if survey.is_dead(owner) else None
        return _build_orphan(database.id, run, remedy)

    if owner is None:
        # Any process may claim it, or `_check_waiting` reports it.
        return None

    if not survey.is_dead(owner):
        seconds = survey.seconds_since_heartbeat(owner)
        if seconds < DEAD_AFTER_SECONDS:
            return None
        text = f"it is {run.status}, but its worker has had no heartbeat for {round(seconds)} s"
        return _build_problem("silent", database.id, run, text, None)

    # The run was read before its worker was checked: it may have ended since.
    state = await database.read(run_reads.get_state(run.run_id))
    if state is None or is_final(state.status) or state.owner != owner:
        return None

    text = f"it is {state.status}, but its worker is dead"
    end = "CANCELLED" if state.cancel_requested_at is not None else "ERROR, WORKER_LOST"
    return _build_problem("lost", database.id, run, text, f"end it as {end}")


async def _check_waiting(hosting: Hosting, database: Database) -> list[Problem]:
    """Report runs that wait for long or that no server continues, and calls in doubt."""
    return [
        *await _check_consistency(database),
        *await _check_paused(database),
        *await _check_unclaimed(hosting, database),
        *await _check_unknown_calls(database),
    ]


async def _check_consistency(database: Database) -> list[Problem]:
    before = now() - ENDING_SECONDS * 1_000_000
    rows = await database.read(integrity.find_inconsistent(MAXIMUM_WAITING, before), size="large")
    return [
        Problem(
            "inconsistent", database.id, row.run_id, row.session_id, row.owner, row.text, row.remedy
        )
        for row in rows
    ]


async def _check_paused(database: Database) -> list[Problem]:
    before = now() - PAUSED_SECONDS * 1_000_000
    rows = await database.read(integrity.list_long_paused(before, MAXIMUM_WAITING), size="large")
    text = "it has waited for a decision for more than a day"
    return [
        Problem("paused", database.id, run_id, session_id, None, text, None)
        for run_id, session_id in rows
    ]


async def _check_unclaimed(hosting: Hosting, database: Database) -> list[Problem]:
    """Report the runs that any server may claim, and that none has claimed."""
    problems = list[Problem]()
    for state, _ in await database.read(queue.list_next_legs(MAXIMUM_WAITING)):
        kind = state.component_type
        is_configured = hosting.catalog.get(kind, state.component_id) is not None
        if is_configured and state.queue_turn is not None:
            # It waits for a free slot.
            continue

        text = "it was decided, but no server has gone on with it"
        if state.queue_turn is not None:
            text = "it may begin, but no server has begun it"
        if not is_configured:
            text += f": {kind} {state.component_id} is not configured here"
        problems.append(
            Problem("unclaimed", database.id, state.run_id, state.session_id, None, text, None)
        )

    return problems


async def _check_unknown_calls(database: Database) -> list[Problem]:
    problems = list[Problem]()
    for call in await database.read(integrity.list_unknown_calls(MAXIMUM_WAITING), size="large"):
        text = f"no one knows whether its call {call.tool_call_id} of {call.tool_name} was made"
        problems.append(
            Problem("unknown_call", database.id, call.run_id, call.session_id, None, text, None)
        )
    return problems


def _check_workers(
    db_id: str, survey: _WorkerSurvey, reported_workers: set[str | None]
) -> list[Problem]:
    """Report dead workers, and silent ones that no problem of their runs names."""
    problems = list[Problem]()
    for worker_id, row in survey.rows.items():
        process = f"process {row.pid} on {row.host}"
        if survey.deaths[worker_id] is not None:
            text = f"the worker is dead: {process}"
            remedy = "remove its row"
            problems.append(Problem("dead_worker", db_id, None, None, worker_id, text, remedy))
            continue

        silent_seconds = survey.seconds_since_heartbeat(worker_id)
        if silent_seconds >= DEAD_AFTER_SECONDS and worker_id not in reported_workers:
            text = f"the worker has had no heartbeat for {round(silent_seconds)} s: {process}"
            problems.append(Problem("silent", db_id, None, None, worker_id, text, None))

    return problems


def _build_problem(
    kind: ProblemKind, db_id: str, run: ScannedRun, text: str, remedy: str | None
) -> Problem:
    return Problem(kind, db_id, run.run_id, run.session_id, run.owner, text, remedy)


class UnreadableMessages(Exception):
    """The text is not a JSON array of messages."""


class OpenCall(NamedTuple):
    """A call without a result."""

    at: int
    """The index after the results of its message."""

    id: str

    name: str
    """The name of its tool."""


def find_open_calls(messages: str) -> list[OpenCall]:
    """Return the calls in a JSON array of messages without a result in a later message.

    Raises:
        UnreadableMessages: the text is not a JSON array of messages.
    """
    return _find_open(_parse(messages))


def close_calls(stored: StoredMessages, now: int) -> StoredMessages:
    """Return the messages with the result "cancelled" for every open call, at `now` in seconds."""
    entries = _parse(stored.messages or "[]")
    open_calls = _find_open(entries)

    for call in reversed(open_calls):
        entry = {
            "role": "tool",
            "content": CANCELLED_RESULT,
            "created_at": now,
            "tool_call_id": call.id,
            "tool_name": call.name,
        }
        entries.insert(call.at, entry)

    messages = orjson.dumps(entries).decode()
    ids = {call.id for call in open_calls}
    if stored.tools is None:
        return StoredMessages(messages, None)

    tools = _parse(stored.tools)
    for entry in tools:
        if entry.get("tool_call_id") in ids and entry.get("tool_call_error") is None:
            entry.update(tool_call_error=True, result=CANCELLED_RESULT)
    return StoredMessages(messages, orjson.dumps(tools).decode())


def _find_open(entries: list[dict[str, Any]]) -> list[OpenCall]:
    """Return the calls without a result in parsed messages, in the order of their places."""
    pending: dict[str, OpenCall] = {}
    never_answered: list[OpenCall] = []
    for index, entry in enumerate(entries):
        if entry.get("role") == "tool":
            pending.pop(str(entry.get("tool_call_id")), None)

        at = index + 1
        while at < len(entries) and entries[at].get("role") == "tool":
            at += 1

        for call in entry.get("tool_calls") or ():
            opened = OpenCall(at, str(call["id"]), str(call.get("name")))
            # The model creates the ids; a repeated id is a new call.
            earlier = pending.get(opened.id)
            if earlier is not None and earlier.at != at:
                never_answered.append(earlier)
            pending[opened.id] = opened

    return sorted([*never_answered, *pending.values()], key=lambda call: call.at)


def _parse(text: str) -> list[dict[str, Any]]:
    try:
        entries = orjson.loads(text)
    except ValueError:
        raise UnreadableMessages from None

    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UnreadableMessages

    for entry in entries:
        calls = entry.get("tool_calls") or []
        if not isinstance(calls, list):
            raise UnreadableMessages
        if not all(isinstance(call, dict) and "id" in call for call in calls):
            raise UnreadableMessages

    return entries
