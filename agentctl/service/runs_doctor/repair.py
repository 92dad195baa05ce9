"""Puts right what `service.doctor` has found, and says of each thing what was done.

What was found may be over by now, by itself or by another process: every repair looks again, in
the transaction of its change, and what was not changed is never told as repaired.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from agentctl import errors
from agentctl.records.times import now, whole_seconds
from agentctl.runs import process
from agentctl.runs.liveness import WorkerDeath
from agentctl.runs.recovery import recover_runs
from agentctl.runs.states import is_final
from agentctl.service.hosting import Hosting
from agentctl.service.runs_doctor.find import Problem
from agentctl.service.runs_doctor.tool_calls import UnreadableMessages, close_calls, find_open_calls
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import integrity, runs, workers
from agentctl.store.repositories.runs import RunState

__all__ = ["RunRepairs"]

_REPAIR_ORDER = ("no_session", "lost", "open_calls", "dead_worker")
"""Kinds that can be repaired. A row without a session is deleted, not ended; a worker is removed
when nothing names it any more."""

_log = logging.getLogger("agentctl.service")


class RunRepairs:
    """Repairs problems.

    Args:
        hosting: of a service that works on no runs itself.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting
        self._observer = hosting.observer

    async def repair(self, problems: Sequence[Problem]) -> AsyncIterator[Problem]:
        """Each of the problems with its outcome, as it is known; those without a remedy first.

        Runs that were ended with the others of their worker, and were not known before, are added.
        """
        for problem in problems:
            if problem.remedy is None:
                yield problem.ended("left", "nothing is to be done about it from here")
        by_kind = {kind: [each for each in problems if each.kind == kind] for kind in _REPAIR_ORDER}
        for problem in by_kind["no_session"]:
            if problem.remedy is not None:
                yield await _try_repair(problem, self._delete)
        async for problem in self._end_lost(by_kind["lost"]):
            yield problem
        for problem in by_kind["open_calls"]:
            yield await _try_repair(problem, self._close_calls)
        for problem in by_kind["dead_worker"]:
            yield await _try_repair(problem, self._remove_worker)

    def _database(self, problem: Problem) -> Database:
        return self._hosting.databases[problem.db_id]

    async def _delete(self, problem: Problem) -> Problem:
        assert problem.run_id is not None
        owner = problem.worker_id
        gone = owner if owner is None or await self._observer.check_owner(owner) else None
        database = self._database(problem)
        batches = await database.write(integrity.delete_orphan(problem.run_id, gone))
        if batches is not None:
            what = "1 batch" if batches == 1 else f"{batches} batches"
            with_events = f" and {what} of its events" if batches else ""
            return problem.ended("repaired", f"deleted the run{with_events}")
        state = await database.read(runs.get_state(problem.run_id))
        if state is None:
            return problem.ended("gone", "it was deleted meanwhile")
        if is_final(state.status):
            return problem.ended("gone", "it has a session now")
        return problem.ended("left", f"it is {state.status}: its worker, or its session, is there")

    async def _end_lost(self, lost: Sequence[Problem]) -> AsyncIterator[Problem]:
        """Whole workers at a time: that is how their runs are ended, members before leaders."""
        groups: defaultdict[tuple[str, str | None], list[Problem]] = defaultdict(list)
        for problem in lost:
            groups[problem.db_id, problem.worker_id].append(problem)
        for (db_id, owner), group in groups.items():
            ended, why = await self._recovered(self._hosting.databases[db_id], owner)
            for problem in group:
                yield await _try_repair(
                    problem, _RecoveryOutcome(self._database(problem), ended, why).tell
                )
            for run_id in sorted(ended - {problem.run_id for problem in group}):
                added = await self._report_extra_run(group[0], run_id)
                if added is not None:
                    yield added

    async def _recovered(self, database: Database, owner: str | None) -> tuple[set[str], str]:
        """The runs that were ended, and why others were not."""
        try:
            death = await self._observer.check_owner(owner)
            if death is None:
                return set(), "its worker is there after all"
            ended = await recover_runs(
                database, owner, may_still_run=death is WorkerDeath.NO_HEARTBEAT
            )
            return set(ended), "another process works on it"
        except Exception as failure:
            # Some may have been ended before it failed: their rows tell.
            return set(), _describe_failure(failure)

    async def _report_extra_run(self, like: Problem, run_id: str) -> Problem | None:
        database = self._hosting.databases[like.db_id]
        state = await database.read(runs.get_state(run_id))
        if state is None:
            return None
        found = Problem(
            "lost",
            like.db_id,
            run_id,
            state.session_id,
            like.worker_id,
            "its worker is gone",
            "end it",
        )
        return found.ended("repaired", f"ended as {_describe_end(state)}")

    async def _close_calls(self, problem: Problem) -> Problem:
        assert problem.run_id is not None
        database = self._database(problem)
        try:
            added = await database.write(_close_open_calls(problem.run_id))
        except UnreadableMessages:
            return problem.ended("left", "its messages cannot be read any more")
        if added is None:
            return problem.ended("gone", "the run was deleted meanwhile")
        if not added:
            return problem.ended("gone", "every call has a result by now")
        results = "1 result" if added == 1 else f"{added} results"
        return problem.ended("repaired", f'added {results} "cancelled"')

    async def _remove_worker(self, problem: Problem) -> Problem:
        assert problem.worker_id is not None
        databases, worker_id = self._hosting.databases, problem.worker_id
        if await databases.system.read(workers.get(worker_id)) is None:
            return problem.ended("gone", "its row was removed meanwhile")
        if not await self._observer.check_owner(worker_id):
            return problem.ended("left", "the worker is there after all")
        for database_id in databases:
            owners = await databases[database_id].read(runs.list_live_owners(), large=True)
            if worker_id in owners:
                return problem.ended("left", f"runs of database {database_id} still name it")
        if not await databases.system.write(workers.remove(worker_id)):
            return problem.ended("gone", "its row was removed meanwhile")
        process.remove_lock(databases.system.lock_folder, worker_id)
        return problem.ended("repaired", "removed its row")


class _RecoveryOutcome:
    """Tells what became of the runs of one lost worker."""

    def __init__(self, database: Database, ended: set[str], why_not: str) -> None:
        self._database = database
        self._ended = ended
        self._why_not = why_not

    async def tell(self, problem: Problem) -> Problem:
        assert problem.run_id is not None
        state = await self._database.read(runs.get_state(problem.run_id))
        if state is None:
            return problem.ended("gone", "it was deleted meanwhile")
        if problem.run_id in self._ended:
            return problem.ended("repaired", f"ended as {_describe_end(state)}")
        if is_final(state.status):
            return problem.ended(
                "gone", f"it had ended as {_describe_end(state)}, not by this command"
            )
        return problem.ended("left", f"it is {state.status}: {self._why_not}")


async def _try_repair(problem: Problem, act: Callable[[Problem], Awaitable[Problem]]) -> Problem:
    """One that cannot be repaired does not keep the others from it."""
    try:
        return await act(problem)
    except Exception as failure:
        return problem.ended("left", _describe_failure(failure))


def _describe_failure(failure: Exception) -> str:
    if isinstance(failure, errors.AgentctlError):
        return failure.detail
    _log.error("a repair failed inside", exc_info=failure)
    return f"the repair failed inside ({type(failure).__name__})"


def _describe_end(state: RunState) -> str:
    return f"{state.status}, {state.error_code}" if state.error_code else state.status


@unit
def _close_open_calls(run_id: str) -> Steps[int | None]:
    """Close a run's open calls; how many there were. None: there is no such run."""
    stored = yield from integrity.get_messages(run_id)
    if stored is None or stored.messages is None:
        return None
    calls = find_open_calls(stored.messages)
    if not calls:
        return 0
    after = close_calls(stored, whole_seconds(now()))
    changed = yield from integrity.replace_messages(run_id, stored.messages, after)
    return len(calls) if changed else 0
