"""Decisions about approvals: their checks, the transaction that stores them, and expiry.

The approval policy `other` is the rule of four eyes: the user of a run cannot decide about its
calls, unless `approvals.own` is set (`check_approver`).

A decision is bound to the shown call by its hash. The conditional update of the pending row decides
which of several decisions counts. The last one that a root run waits for lets it go on in the same
transaction (docs/decisions/0079).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import orjson

from agentctl import errors
from agentctl.config.settings import Limits
from agentctl.interface.requests.approvals import Ruling
from agentctl.records.approvals import (
    BOUND_VERBS,
    MAXIMUM_NOTE_LENGTH,
    VALUES,
    VERBS,
    ApprovalRow,
    ApprovalStatus,
    Verb,
    hash_call,
)
from agentctl.records.kinds import ComponentKind
from agentctl.records.text import check_text, dump_checked_json
from agentctl.records.times import now
from agentctl.runs.desk.questions import is_version_question
from agentctl.runs.desk.waiting import release_if_decided
from agentctl.runs.log.results import to_json
from agentctl.runtime.journal import dump_outcome
from agentctl.runtime.json_schema import find_schema_problem
from agentctl.runtime.pauses import CallOutcome
from agentctl.store.database import Database, Outbox, Steps, Work, unit
from agentctl.store.repositories import approvals, run_reads, steps
from agentctl.store.repositories.approvals import DecisionChange
from agentctl.store.visibility import EVERYONE
from agentctl.webhooks.facts import publish_decision

EXPIRY = "system:expiry"
"""The principal that rejects an expired approval."""

_STATUSES: dict[Verb, ApprovalStatus] = {
    "approve": "approved",
    "retry": "approved",
    "reject": "rejected",
    "answer": "answered",
    "complete": "answered",
    "fail": "answered",
}


def check_approver(row: ApprovalRow, names: Set[str], *, own: bool) -> None:
    """Check that a caller who decides about approvals may decide about this one.

    Args:
        own: True if an approver may decide about its runs, too (`approvals.own`).

    Raises:
        FourEyes: the policy is `other`, and the run is that of the caller, or was started by it.
    """
    if row.policy != "other" or own:
        return
    if not names.isdisjoint({row.user_id, row.started_by}):
        raise errors.FourEyes("The approval needs another person: the run is your own")


def check_pending(row: ApprovalRow) -> None:
    """Raise Conflict unless an approval can be decided.

    The error has the status and who decided, not the note.
    """
    if row.status != "pending":
        by = f" by {row.decided_by}" if row.decided_by else ""
        raise errors.Conflict(f"The approval is {row.status}{by} already")
    if row.expires_at is not None and row.expires_at <= now():
        raise errors.Conflict("The approval has expired")


async def rule(
    row: ApprovalRow,
    ruling: Ruling,
    actor: str,
    limits: Limits,
    can_call: Callable[[ComponentKind, str, str], bool],
) -> DecisionChange:
    """Check a ruling about an approval, and return the new values of the approval.

    These are all checks of a ruling, but that of the person (`check_approver`). The write finds out
    if another ruling was first.

    Args:
        can_call: returns False if a tool of a component does not exist any more.

    Raises:
        Conflict: the approval was decided, the hash is that of another call, or the tool is gone.
        ValidationFailed: the decision is not one of this kind, the hash is missing, or arguments or
            the answer do not match the schema.
        TooLarge: a value is too large.
    """
    arguments = dump_checked_json("arguments", ruling.arguments, limits.state_bytes)
    answer = dump_checked_json("answer", ruling.answer, limits.state_bytes)
    result = dump_checked_json("result", ruling.result, limits.tool_result_bytes)

    check_pending(row)
    _check_fields(row, ruling)
    at, status = now(), _STATUSES[ruling.decision]
    change = DecisionChange(status=status, decided_at=at, decided_by=actor, note=ruling.note)

    match ruling.decision:
        case "approve" if ruling.arguments is not None:
            await _check_schema("arguments", ruling.arguments, row.schema)
            edited = hash_call(row.run_id, row.tool_call_id, row.tool_name, ruling.arguments)
            if edited != row.arguments_hash:
                change = change._replace(approved_arguments=arguments, approved_hash=edited)
        case "answer":
            await _check_schema("answer", ruling.answer, row.schema)
            change = change._replace(answer=answer or "null")
        case "complete":
            change = change._replace(execution="done", result=result or "null")
        case "fail":
            reason = orjson.dumps(ruling.note or "The call failed").decode()
            change = change._replace(execution="failed", result=reason)

    is_call = status == "approved" and not is_version_question(row)
    if is_call and not can_call(row.component_type, row.component_id, row.tool_name):
        raise errors.Conflict(
            f"The tool {row.tool_name} does not exist any more: the call cannot be made"
        )
    return change


def _check_fields(row: ApprovalRow, ruling: Ruling) -> None:
    verbs = VERBS[row.kind]
    if ruling.decision not in verbs:
        raise errors.ValidationFailed(
            f"decision must be {' or '.join(verbs)}: the approval is of the kind {row.kind}"
        )
    for verb, name in VALUES.items():
        if getattr(ruling, name) is not None and ruling.decision != verb:
            raise errors.ValidationFailed(f"{name} is only for the decision {verb}")
    if ruling.note is not None:
        check_text("note", ruling.note)
        if len(ruling.note) > MAXIMUM_NOTE_LENGTH:
            raise errors.ValidationFailed(f"note must be at most {MAXIMUM_NOTE_LENGTH} characters")
    if ruling.decision in BOUND_VERBS and ruling.arguments_hash is None:
        raise errors.ValidationFailed(
            "arguments_hash is required: the arguments_hash of the approval as it was shown"
        )
    if ruling.arguments_hash not in (None, row.arguments_hash):
        raise errors.Conflict(
            "arguments_hash is that of another call: read the approval again, then decide"
        )


async def _check_schema(name: str, value: Any, schema: str | None) -> None:
    """Check a value against the stored JSON Schema of an approval."""
    if schema is None:
        return
    if (problem := await find_schema_problem(orjson.loads(schema), value)) is not None:
        raise errors.ValidationFailed(
            f"{name}{problem.place} does not match its schema: {problem.text}"
        )


@unit
def write_decisions(
    outbox: Outbox,
    root_run_id: str,
    changes: Sequence[tuple[str, DecisionChange]],
    extra_write: Callable[[], Work[None]] | None = None,
) -> Steps[tuple[list[ApprovalRow], bool]]:
    """Store decisions about approvals of one root run, all or none.

    Args:
        changes: the id of each approval and its new values.
        extra_write: builds further writes for the transaction, such as the audit entry.

    Returns:
        The approvals after the decisions, and True if the root run may go on.

    Raises:
        Conflict: one of them was decided meanwhile.
    """
    yield from run_reads.lock_state(root_run_id)
    rows = []
    for approval_id, change in changes:
        decided = yield from approvals.decide(approval_id, change)
        row = yield from approvals.get(approval_id, EVERYONE)
        if row is None:
            raise errors.NotFound("Approval not found")
        if not decided:
            check_pending(row)
        if row.kind == "outcome":
            yield from _settle_outcome(row)
        yield from publish_decision(outbox, row)
        rows.append(row)
    if extra_write is not None:
        yield from extra_write()
    return rows, (yield from release_if_decided(root_run_id))


def _settle_outcome(row: ApprovalRow) -> Steps[None]:
    """Store the outcome, as a person knows it, of the call whose server died."""
    execution = None if row.status == "approved" else row.execution
    settled = yield from approvals.settle_unknown(
        row.run_id, row.tool_call_id, execution, row.result, row.decided_at
    )
    if settled:
        return
    # A call of a durable run that needed no approval.
    step = yield from steps.find_unknown(row.run_id, row.tool_call_id)
    if step is None:
        return
    body = orjson.loads(step.body or "{}")
    if execution is not None:
        result = orjson.loads(row.result or "null")
        text = result if isinstance(result, str) else row.result or ""
        body |= dump_outcome(CallOutcome(text, failed=execution == "failed"))
    state = execution or "again"
    yield from steps.settle(row.run_id, row.tool_call_id, state, to_json(body), row.decided_at)


async def expire_approvals(
    database: Database, count_decision: Callable[[ApprovalRow], None] | None = None
) -> list[str]:
    """Reject the pending approvals that have expired.

    Args:
        count_decision: called with each approval that this call has rejected.

    Returns:
        Ids of the root runs that may go on.
    """
    released = []
    if due := await database.read(approvals.list_due(now())):
        # The clock of this machine may be ahead of those of the others.
        moment = await database.clock()
        due = [row for row in due if row.expires_at is not None and row.expires_at <= moment]
    for row in due:
        change = DecisionChange(status="expired", decided_at=now(), decided_by=EXPIRY)
        try:
            decided, continues = await database.write(
                write_decisions(database.outbox, row.root_run_id, [(row.approval_id, change)])
            )
        except errors.Conflict:
            continue
        database.outbox.wake()
        if count_decision is not None:
            for expired in decided:
                count_decision(expired)
        if continues:
            released.append(row.root_run_id)
    return released
