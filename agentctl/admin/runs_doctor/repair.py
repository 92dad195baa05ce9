"""Repair the problems of `find` and report the outcome of each.

A problem may have disappeared since it was found. Every repair checks again in the transaction of
its change, and reports `repaired` only for a change that it made.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from agentctl import errors
from agentctl.admin.runs_doctor.find import (
    Problem,
    UnreadableMessages,
    close_calls,
    find_open_calls,
)
from agentctl.records.runs import RunState
from agentctl.records.times import now_in_seconds
from agentctl.runs.states import is_final
from agentctl.runs.workers import liveness
from agentctl.runs.workers.liveness import WorkerDeath
from agentctl.runs.workers.recovery import recover_runs, settle_inconsistent
from agentctl.service.hosting import Hosting
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import integrity, run_reads, workers

_REPAIR_ORDER = ("no_session", "lost", "inconsistent", "open_calls", "dead_worker")
"""Kinds that can be repaired, in their order.

A run without a session is deleted and not ended. A worker is removed after the last run that names
it.
"""

_log = logging.getLogger("agentctl.service")


class RunRepairs:
    """The repairs of runs and workers."""

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._monitor = hosting.monitor

    async def repair(self, problems: Sequence[Problem]) -> AsyncIterator[Problem]:
        """Repair the problems and yield each with its outcome, problems without a remedy first.

        Runs that end together with the runs of their worker and are not in `problems` are added.
        """
        for problem in problems:
            if problem.remedy is None:
                yield problem.with_outcome("left", "there is no repair for it")

        by_kind = {kind: [item for item in problems if item.kind == kind] for kind in _REPAIR_ORDER}

        for problem in by_kind["no_session"]:
            if problem.remedy is not None:
                yield await _try_repair(problem, self._delete)

        async for problem in self._end_lost(by_kind["lost"]):
            yield problem

        for problem in by_kind["inconsistent"]:
            yield await _try_repair(problem, self._settle)

        for problem in by_kind["open_calls"]:
            yield await _try_repair(problem, self._close_calls)

        for problem in by_kind["dead_worker"]:
            yield await _try_repair(problem, self._remove_worker)

    def _database(self, problem: Problem) -> Database:
        return self._hosting.databases[problem.db_id]

    async def _delete(self, problem: Problem) -> Problem:
        assert problem.run_id is not None
        dead_owner = None
        if problem.worker_id is not None and await self._monitor.check_owner(problem.worker_id):
            dead_owner = problem.worker_id

        database = self._database(problem)
        batches = await database.write(integrity.delete_orphan(problem.run_id, dead_owner))

        if batches is not None:
            size = "1 batch" if batches == 1 else f"{batches} batches"
            with_events = f" and {size} of its events" if batches else ""
            return problem.with_outcome("repaired", f"deleted the run{with_events}")

        state = await database.read(run_reads.get_state(problem.run_id))
        if state is None:
            return problem.with_outcome("gone", "it was deleted in the meantime")
        if is_final(state.status):
            return problem.with_outcome("gone", "it has a session now")
        return problem.with_outcome(
            "left", f"it is {state.status}: its worker or its session exists"
        )

    async def _end_lost(self, lost: Sequence[Problem]) -> AsyncIterator[Problem]:
        groups: defaultdict[tuple[str, str | None], list[Problem]] = defaultdict(list)
        for problem in lost:
            groups[problem.db_id, problem.worker_id].append(problem)

        for (db_id, owner), group in groups.items():
            database = self._hosting.databases[db_id]
            ended_ids, reason = await self._recover(database, owner)

            report = partial(self._report_run, ended_ids, reason)
            for problem in group:
                yield await _try_repair(problem, report)

            for run_id in sorted(ended_ids - {problem.run_id for problem in group}):
                state = await database.read(run_reads.get_state(run_id))
                if state is not None:
                    text = "its worker is dead"
                    remedy = "end it"
                    extra = Problem("lost", db_id, run_id, state.session_id, owner, text, remedy)
                    yield extra.with_outcome("repaired", f"ended as {_describe_end(state)}")

    async def _recover(self, database: Database, owner: str | None) -> tuple[set[str], str]:
        """End the runs of a dead worker.

        Returns:
            The ids of the ended runs, and the reason why a run that is not one of them still works.
        """
        try:
            death = await self._monitor.check_owner(owner)
            if death is None:
                return set(), "its worker is alive"
            ended = await recover_runs(
                database, owner, may_still_run=death is WorkerDeath.NO_HEARTBEAT
            )
            return set(ended), "another process works on it"
        except Exception as failure:
            # Some runs may have ended before the failure; their rows are read afterwards.
            return set(), _describe_failure(failure)

    async def _report_run(self, ended_ids: set[str], reason: str, problem: Problem) -> Problem:
        """Return a problem with its outcome, by the result of `_recover` and the row of the run."""
        assert problem.run_id is not None
        state = await self._database(problem).read(run_reads.get_state(problem.run_id))
        if state is None:
            return problem.with_outcome("gone", "it was deleted in the meantime")

        end = _describe_end(state)
        if problem.run_id in ended_ids:
            return problem.with_outcome("repaired", f"ended as {end}")
        if is_final(state.status):
            return problem.with_outcome("gone", f"it ended as {end} before the repair")
        return problem.with_outcome("left", f"it is {state.status}: {reason}")

    async def _settle(self, problem: Problem) -> Problem:
        assert problem.run_id is not None
        database = self._database(problem)
        if not await database.write(settle_inconsistent(database.outbox, problem.run_id)):
            return problem.with_outcome("gone", "it is consistent now")

        database.outbox.wake()
        state = await database.read(run_reads.get_state(problem.run_id))
        end = "deleted" if state is None else _describe_end(state)
        return problem.with_outcome("repaired", f"it is {end} now")

    async def _close_calls(self, problem: Problem) -> Problem:
        assert problem.run_id is not None
        database = self._database(problem)
        try:
            added = await database.write(_close_open_calls(problem.run_id))
        except UnreadableMessages:
            return problem.with_outcome("left", "its messages cannot be parsed")
        if added is None:
            return problem.with_outcome("gone", "the run was deleted in the meantime")
        if not added:
            return problem.with_outcome("gone", "every call has a result")

        results = "1 result" if added == 1 else f"{added} results"
        return problem.with_outcome("repaired", f'added {results} "cancelled"')

    async def _remove_worker(self, problem: Problem) -> Problem:
        assert problem.worker_id is not None
        databases = self._hosting.databases
        worker_id = problem.worker_id
        if await databases.system.read(workers.get(worker_id)) is None:
            return problem.with_outcome("gone", "its row was removed in the meantime")
        if not await self._monitor.check_owner(worker_id):
            return problem.with_outcome("left", "the worker is alive")

        for database_id in databases:
            owners = await databases[database_id].read(run_reads.list_live_owners(), size="large")
            if worker_id in owners:
                return problem.with_outcome("left", f"runs of database {database_id} still name it")

        if not await databases.system.write(workers.remove(worker_id)):
            return problem.with_outcome("gone", "its row was removed in the meantime")
        liveness.remove_lock(databases.system.lock_folder, worker_id)
        return problem.with_outcome("repaired", "removed its row")


async def _try_repair(problem: Problem, act: Callable[[Problem], Awaitable[Problem]]) -> Problem:
    """Repair one problem; a failure becomes its outcome, so that other problems are repaired."""
    try:
        return await act(problem)
    except Exception as failure:
        return problem.with_outcome("left", _describe_failure(failure))


def _describe_failure(failure: Exception) -> str:
    if isinstance(failure, errors.AgentctlError):
        return failure.detail
    _log.error("repair failed with an internal error", exc_info=failure)
    return f"internal error ({type(failure).__name__})"


def _describe_end(state: RunState) -> str:
    return f"{state.status}, {state.error_code}" if state.error_code else state.status


@unit
def _close_open_calls(run_id: str) -> Steps[int | None]:
    """Close the open calls of a run, and return their number; None if the run does not exist."""
    stored = yield from integrity.get_messages(run_id)
    if stored is None or stored.messages is None:
        return None

    calls = find_open_calls(stored.messages)
    if not calls:
        return 0

    closed = close_calls(stored, now_in_seconds())
    was_replaced = yield from integrity.replace_messages(run_id, stored.messages, closed)
    return len(calls) if was_replaced else 0
