"""The unfinished work of a database that was restored to an earlier time.

It may have ended since, with its effects, so none of it goes on by itself. Live runs end. An
approved call without an end is unknown; if its run is paused, it is asked about, as after the death
of a server.
"""

from __future__ import annotations

from agentctl.light_dataclass import dataclass
from agentctl.records.approvals import ApprovalRow
from agentctl.records.times import now
from agentctl.runs.desk.lost_calls import append_pause_event, build_outcome_question
from agentctl.runs.workers.recovery import recover_runs
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import approvals, run_reads, steps, webhooks

RESTORED_QUESTION = (
    "The database was restored to a time before this call had ended. It may have been made since."
    " What happened? Complete it with its result, fail it, or retry it."
)


@dataclass(frozen=True, slots=True)
class Settled:
    """The changes of a restored database.

    Attributes:
        ended_runs: number of runs that were live, and ended as WORKER_LOST.
        unknown_calls: number of approved calls without an end: no one knows if they were made.
        held_deliveries: number of deliveries of webhooks that wait for `webhooks redeliver`.
    """

    ended_runs: int
    unknown_calls: int
    held_deliveries: int


async def settle(database: Database) -> Settled:
    """End live runs, ask about approved calls of paused runs, and hold deliveries.

    No process works with the database. After an interruption another call does the rest.
    """
    unknown = 0
    for root_id in await database.read(approvals.list_paused_with_doubt(), size="large"):
        unknown += await database.write(_ask_about_calls(root_id))
    unknown += await database.write(approvals.mark_all_unknown())  # before the runs end
    ended = 0
    for owner in {None, *await database.read(run_reads.list_owners_at_work(), size="large")}:
        ended += len(await recover_runs(database, owner, returns=False))
    held = await database.write(webhooks.hold_waiting("held by the restore of a backup"))
    return Settled(ended, unknown, held)


@unit
def _ask_about_calls(root_id: str) -> Steps[int]:
    """Ask about the approved calls of a paused run and of its members. Return their number."""
    yield from run_reads.lock_state(root_id)
    at, asked = now(), list[ApprovalRow]()
    for row in (yield from approvals.list_of_root(root_id)):
        if row.kind == "outcome" and row.status == "approved":
            # A person wants the call of a durable run, which needed no approval, to be made again.
            is_in_doubt = yield from steps.doubt(row.run_id, row.tool_call_id)
        else:
            is_in_doubt = yield from approvals.doubt(row.approval_id)
        if is_in_doubt:
            asked.append(build_outcome_question(row, RESTORED_QUESTION, at + len(asked)))
    if asked:
        yield from approvals.create(asked)
        yield from append_pause_event(root_id, asked)
    return len(asked)
