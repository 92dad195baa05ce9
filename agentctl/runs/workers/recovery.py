"""Recovery: ends the runs of a dead worker, or returns them to their checkpoints.

Each run is ended in one transaction, by a conditional update that raises its attempt. If several
processes recover at once, exactly one of them ends a run, and later writes of its old owner are
refused.

A run in a later leg has a checkpoint. If nothing has begun in the leg that must not be repeated,
the run continues from there. If a call was executing, no one knows whether it happened: the run
waits again, and a person is asked (`runs/desk/decisions.py`). A run that may be repeated begins
again from its start checkpoint.

An ended run has the results that it has left in the database (`runs/desk/end.py`).

The unfinished work of a database that was restored to an earlier time may have ended since, with
its effects, so none of it continues by itself. Live runs end. An approved call without an end is
unknown; if its run is paused, a person is asked about it, as after the death of a server.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentctl.records.approvals import ApprovalRow
from agentctl.records.runs import RunRow, RunState
from agentctl.records.times import now
from agentctl.runs.desk.decisions import (
    append_pause_event,
    ask_about_lost_calls,
    ask_about_lost_steps,
    build_outcome_question,
)
from agentctl.runs.desk.end import EndedRun, cancel_waiting_run, close_approvals, end_stored_run
from agentctl.runs.desk.messages import RESTORED
from agentctl.runs.desk.waiting import release_if_decided
from agentctl.runs.log.fold import StoredLog, find_root_id
from agentctl.runs.states import PARENT_ENDED, WORKER_LOST, AlreadyFinished, Ending, is_final
from agentctl.store.database import Database, Steps, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import (
    approvals,
    integrity,
    run_messages,
    run_reads,
    runs,
    steps,
    webhooks,
)
from agentctl.store.repositories.approvals import Checkpoint
from agentctl.webhooks.facts import publish_run

PARALLEL_RUNS = 64
"""Number of runs that are ended in parallel: group commit writes them in one transaction."""

MAXIMUM_RETURNS = 2
"""Times that a leg is run again from its checkpoint after its worker was lost."""

WORKER_LOST_REASON = "The worker was lost"
"""The reason of a cancelled run whose worker died before it had ended the run."""


async def recover_runs(
    database: Database,
    owner: str | None,
    *,
    may_still_run: bool = False,
    returns: bool = True,
    on_ended: Callable[[EndedRun], None] | None = None,
) -> list[str]:
    """End the live runs of a dead worker, children before their parents.

    If one of them cannot be ended, the others are ended first and then its exception is raised.

    Args:
        owner: id of the worker; None for runs that have no owner.
        may_still_run: True if the worker only stopped its heartbeat
            (`liveness.WorkerDeath.NO_HEARTBEAT`). Its work may continue, so the `stopped_at` of
            its runs stays empty. Otherwise the work of its ended runs is known to have stopped.
        returns: False to end also the runs that could continue from a checkpoint, and with `owner`
            None the runs that wait for any process.
        on_ended: called for each run that this call has ended.

    Returns:
        Ids of the runs that this call has ended.

    Raises:
        Unavailable: the database does not answer; the runs before that are ended.
    """
    listing = run_reads.list_live_of_worker(owner, waiting=not returns)
    lost_runs = await database.read(listing, size="large")

    # First the trees that continue: they have left the worker then, and are not ended below.
    checkpointed_ids = set[str]()
    if lost_runs and returns:
        checkpointed_ids |= set(await database.read(approvals.list_checkpoints_of_owner(owner)))
    root_ids = list[str]()
    for run in lost_runs:
        is_root = run.parent_run_id is None
        if is_root and run.run_id in checkpointed_ids and run.cancel_requested_at is None:
            root_ids.append(run.run_id)
    for first in range(0, len(root_ids), PARALLEL_RUNS):
        group_ids = root_ids[first : first + PARALLEL_RUNS]
        returns_of_group = [return_tree(database.outbox, root_id, owner) for root_id in group_ids]
        await asyncio.gather(*map(database.write, returns_of_group))

    ended_run_ids: list[str] = []
    for level in _group_by_depth(lost_runs):
        for first in range(0, len(level), PARALLEL_RUNS):
            group = level[first : first + PARALLEL_RUNS]
            results = await asyncio.gather(
                *(_end_run(database, run, may_still_run) for run in group), return_exceptions=True
            )
            for run, result in zip(group, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                if result is not None:
                    ended_run_ids.append(run.run_id)
                    if on_ended is not None:
                        on_ended(result)

    if owner is not None:
        await database.write(runs.record_worker_gone(owner, now(), exited=not may_still_run))
    if lost_runs:
        database.outbox.wake()
    return ended_run_ids


def _group_by_depth(lost_runs: list[RunRow]) -> list[list[RunRow]]:
    """Return the runs in groups, first those with the most ancestors among these runs."""
    parent_ids = {run.run_id: run.parent_run_id for run in lost_runs}
    levels: defaultdict[int, list[RunRow]] = defaultdict(list)
    for run in lost_runs:
        depth = 0
        parent_id = run.parent_run_id
        while parent_id is not None:
            depth += 1
            parent_id = parent_ids.get(parent_id)
        levels[depth].append(run)

    return [levels[depth] for depth in sorted(levels, reverse=True)]


async def _end_run(database: Database, run: RunRow, may_still_run: bool) -> EndedRun | None:
    """End a run of a dead worker; return None if it has ended or was returned meanwhile."""
    try:
        return await database.write(
            _write_end(database.outbox, run.run_id, run.owner, may_still_run)
        )
    except AlreadyFinished:
        return None


@unit
def _write_end(
    outbox: Outbox, run_id: str, owner: str | None, may_still_run: bool
) -> Steps[EndedRun | None]:
    """End one run in its current state; return None if it has ended meanwhile.

    The row is locked and read again: a cancel may have been requested since, and no request and
    no event can be added until the end is committed.
    """
    run = yield from run_reads.get_for_update(run_id)
    if run is None or is_final(run.status) or run.owner != owner:
        # Ended meanwhile, or returned to its checkpoint.
        return None

    ending = WORKER_LOST
    if run.cancel_requested_at is not None:
        # A person has asked for this end before the worker died: the run is not a failure.
        reason = WORKER_LOST_REASON
        if run.cancel_reason:
            reason = f"{run.cancel_reason}; the worker was lost"
        ending = Ending.cancelled(run.cancel_requested_by or "system", reason)

    return (
        yield from end_stored_run(outbox, run, ending, is_lost=True, may_still_run=may_still_run)
    )


@unit
def settle_inconsistent(outbox: Outbox, run_id: str) -> Steps[bool]:
    """Repair what `integrity.find_inconsistent` finds of a run; return False if it finds nothing.

    A run with which no process continues is ended, with or without an owner.
    """
    state = yield from run_reads.get_state(run_id)
    if state is None:
        return False

    # The root run first, as a decision and a cancel lock it. The state is read again then: it may
    # have been repaired meanwhile.
    root_id = yield from find_root_id(state)
    yield from run_reads.lock_state(root_id)
    state = yield from run_reads.lock_state(run_id)
    inconsistencies = yield from integrity.find_inconsistent(1, now(), run_id)
    if state is None or not inconsistencies:
        return False

    match inconsistencies[0].remedy:
        case "let it go on":
            yield from release_if_decided(root_id)
        case "close what it waited for":
            yield from close_approvals(run_id, "system", now())
        case "end it":
            if state.parent_run_id is not None:
                actor = PARENT_ENDED.actor or ""
                reason = PARENT_ENDED.reason
                yield from runs.request_cancel(run_id, now(), actor, reason, claimed=True)
            yield from _write_end(outbox, run_id, state.owner, state.owner is not None)
            yield from release_if_decided(root_id)
    return True


@unit
def return_tree(outbox: Outbox, root_id: str, owner: str | None) -> Steps[bool]:
    """Return the lost leg of a root run and of its members to their checkpoints, if possible.

    Members that started in the lost leg have no checkpoint: they are ended afterwards, as all runs
    that are still owned by the dead worker.

    Returns:
        False, without a change, if the run cannot continue.
    """
    # The row of the root run first, as a decision and a cancel lock it. Other processes may recover
    # the same worker: the second one finds another owner.
    root = yield from run_reads.lock_state(root_id)
    checkpoint = yield from approvals.load_checkpoint(root_id)
    if root is None or root.owner != owner or checkpoint is None or is_final(root.status):
        return False
    if root.cancel_requested_at is not None:
        return False

    is_durable = StoredLog(checkpoint).is_durable
    if root.attempt == 1 and not is_durable:
        # It has nothing to continue from: its first leg has no checkpoint.
        return False

    # Its worker may live: a member that ends meanwhile has no lost calls.
    member_ids = yield from approvals.list_checkpoints_below(root_id)
    lost_members = []
    for run_id in member_ids:
        member = yield from run_reads.lock_state(run_id)
        if member is not None and member.owner == owner and not is_final(member.status):
            lost_members.append(member)

    has_effects = bool((yield from run_reads.has_leg_effects(root_id)))
    approval_rows = yield from approvals.list_of_root(root_id)
    return_count = yield from _count_returns(root, checkpoint, approval_rows, is_durable)

    # A call that was executing becomes a question, unless it is idempotent. Without a question, the
    # run is not returned if a call without an approval began, which could be made twice, or if the
    # leg has lost its worker too often: it may be the cause.
    questions = yield from ask_about_lost_calls(approval_rows)
    if is_durable:
        for run_id in (root_id, *member_ids):
            questions += yield from ask_about_lost_steps(run_id, root_id)
    if not questions and (has_effects or return_count > MAXIMUM_RETURNS):
        return False

    # The new attempt refuses all later writes of the old owner, also if its process still lives.
    if questions:
        yield from append_pause_event(root_id, questions)
    yield from runs.return_leg(root_id, root.attempt, "PAUSED" if questions else "PENDING")
    if has_effects:
        # The run can only end once a person has reported what happened to its call.
        yield from runs.keep_effects(root_id)
    for member in lost_members:
        yield from return_member(outbox, member)

    if questions:
        # After the members: the question may be the question of a member whose cancel was
        # requested, which has ended now and waits for nothing.
        yield from release_if_decided(root_id)
        yield from publish_run(outbox, root_id)
    return True


def _count_returns(
    root: RunState, checkpoint: Checkpoint, rows: Sequence[ApprovalRow], is_durable: bool
) -> Steps[int]:
    """Return how often the leg of a root run was returned since it last made progress."""
    attempt = checkpoint.attempt
    progress_at = 0
    if is_durable:
        progress = yield from steps.find_progress(root.run_id)
        if progress is not None:
            attempt = max(attempt, progress.attempt)
            progress_at = progress.ended_at

    # A question about a lost call costs two attempts: its pause, and the leg after it.
    question_count = sum(row.kind == "outcome" and row.created_at > progress_at for row in rows)
    return root.attempt - attempt - 2 * question_count


@unit
def return_member(outbox: Outbox, member: RunState) -> Steps[None]:
    """Return the leg of a member to its checkpoint; end it if its cancel was requested.

    Its row and the row of its root run are locked.
    """
    yield from runs.return_leg(member.run_id, member.attempt, "PAUSED")
    if member.cancel_requested_at is not None:
        yield from cancel_waiting_run(outbox, member.run_id, "system", None, now())


@unit
def return_members(outbox: Outbox, root_id: str) -> Steps[None]:
    """Let the members whose legs have ended wait: for the next leg of the root, or for its end."""
    for member_id in (yield from approvals.list_checkpoints_below(root_id)):
        member = yield from run_reads.lock_state(member_id)
        if member is not None and member.status == "RUNNING":
            # Its claim raises the attempt once more.
            yield from approvals.renew_checkpoint(member_id, member.attempt + 1)
            yield from return_member(outbox, member)


RESTORED_QUESTION = (
    "The database was restored to a time before this call had ended. It may have been made since."
    " What happened? Complete it with its result, fail it, or retry it."
)


@dataclass(frozen=True, slots=True)
class SettledWork:
    """The changes of a restored database."""

    ended_runs: int
    """Number of runs that were live, and ended as WORKER_LOST."""

    unknown_calls: int
    """Number of approved calls without an end: no one knows if they were made."""

    held_deliveries: int
    """Number of deliveries of webhooks that wait for `webhooks redeliver`."""


async def settle(database: Database) -> SettledWork:
    """End live runs, ask about approved calls of paused runs, and hold deliveries.

    No other process may work with the database. After an interruption, another call does the rest.
    """
    unknown_calls = 0
    for root_id in await database.read(approvals.list_paused_with_doubt(), size="large"):
        unknown_calls += await database.write(_ask_about_calls(root_id))
    # Before the runs end: an end marks the calls of its run, and they would not be counted.
    unknown_calls += await database.write(approvals.mark_all_unknown())
    # A message that waited may have had its fate since: it starts no run.
    await database.write(run_messages.refuse_all(RESTORED, now()))

    ended_runs = 0
    owners = await database.read(run_reads.list_owners_at_work(), size="large")
    for owner in {None, *owners}:
        ended_runs += len(await recover_runs(database, owner, returns=False))

    held_deliveries = await database.write(webhooks.hold_waiting("held by the restore of a backup"))
    return SettledWork(ended_runs, unknown_calls, held_deliveries)


@unit
def _ask_about_calls(root_id: str) -> Steps[int]:
    """Ask about the approved calls of a paused run and of its members. Return their number."""
    yield from run_reads.lock_state(root_id)
    at = now()
    questions = list[ApprovalRow]()
    for row in (yield from approvals.list_of_root(root_id)):
        if row.kind == "outcome" and row.status == "approved":
            # A person wants the call of a durable run, which needed no approval, to be made again.
            is_in_doubt = yield from steps.doubt(row.run_id, row.tool_call_id)
        else:
            is_in_doubt = yield from approvals.doubt(row.approval_id)
        if is_in_doubt:
            # The times differ, so that lists have the questions in the order of the calls.
            created_at = at + len(questions)
            questions.append(build_outcome_question(row, RESTORED_QUESTION, created_at))

    if questions:
        yield from approvals.create(questions)
        yield from append_pause_event(root_id, questions)
    return len(questions)
