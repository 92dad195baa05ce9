"""Questions of the server, and decisions about approvals: checks, their transaction, and expiry.

No one knows whether a call happened that was executing when its process died. The run waits with an
approval of the kind `outcome`: a person reports what happened (docs/approvals.md "Kinds").

The question if a run continues with another version of its component is an approval of the kind
`approval` for a call that no tool makes: no model can use its name. A run asks before a leg, at
most one question at a time (docs/versions.md).

The approval policy `other` is the rule of four eyes: the user of a run cannot decide about its
calls, unless `approvals.own` is set (`check_approver`).

A decision is bound to the shown call by its hash. The conditional update of the pending row decides
which of several decisions counts. The last decision that a root run waits for lets the run continue
in the same transaction (decision 79).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
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
from agentctl.records.kinds import ApprovalPolicy, ComponentKind
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunState
from agentctl.records.text import check_text, dump_checked_json, new_id
from agentctl.records.times import now
from agentctl.runs.desk.waiting import append_event, release_if_decided
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, describe_approval
from agentctl.runs.log.fold import StoredLog, load_log
from agentctl.runs.log.results import to_json
from agentctl.runtime.json_schema import find_schema_problem
from agentctl.runtime.pauses import CallOutcome, dump_outcome
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, events, run_reads, steps
from agentctl.store.repositories.approvals import DecisionChange
from agentctl.store.visibility import EVERYONE
from agentctl.webhooks.facts import publish_decision

OUTCOME_QUESTION = (
    "The server died while this call was made. What happened? Complete it with its result, fail it,"
    " or retry it."
)


@unit
def ask_about_lost_calls(rows: list[ApprovalRow]) -> Steps[list[ApprovalRow]]:
    """Mark the calls that were executing, and ask about the calls that must not be repeated.

    Args:
        rows: all approvals of a root run, whose row is locked.

    Returns:
        The questions, which are stored.
    """
    executing_rows = [row for row in rows if row.execution == "executing"]
    for row in executing_rows:
        if row.idempotent:
            # The next leg makes the call again.
            yield from approvals.forget_execution(row.approval_id)

    at = now()
    questions = list[ApprovalRow]()
    for run_id in dict.fromkeys(row.run_id for row in executing_rows if not row.idempotent):
        # A worker that is not dead may have stored the end of a call since it was read.
        marked_ids = yield from approvals.mark_unknown(run_id)
        for row in executing_rows:
            if row.approval_id in marked_ids:
                questions.append(build_outcome_question(row, OUTCOME_QUESTION, at))

    yield from approvals.create(questions)
    return questions


def build_outcome_question(row: ApprovalRow, question: str, at: int) -> ApprovalRow:
    """Build the approval that asks what happened to an approved call.

    Args:
        row: the approval of the call.
        at: the time of the question in microseconds UTC.
    """
    copied_names = (
        "policy", "run_id", "root_run_id", "session_id", "component_type", "component_id",
        "user_id", "started_by", "tool_call_id", "tool_name", "idempotent", "request_id",
    )  # fmt: skip
    return ApprovalRow(
        approval_id=new_id(),
        kind="outcome",
        arguments=row.approved_arguments or row.arguments,
        arguments_hash=row.approved_hash or row.arguments_hash,
        question=question,
        created_at=at,
        **{name: getattr(row, name) for name in copied_names},
    )


def build_row(spec: RunSpec, root_id: str, at: int, **about_call: Any) -> ApprovalRow:
    """Build the row of something that a run asks for.

    Args:
        at: the time of the question in microseconds UTC.
        about_call: the other columns of `ApprovalRow`.
    """
    copied_names = (
        "run_id", "session_id", "component_type", "component_id", "user_id", "request_id",
    )  # fmt: skip
    return ApprovalRow(
        approval_id=new_id(),
        root_run_id=root_id,
        started_by=spec.actor,
        created_at=at,
        **{name: getattr(spec, name) for name in copied_names},
        **about_call,
    )


@unit
def ask_about_lost_steps(run_id: str, root_id: str) -> Steps[list[ApprovalRow]]:
    """Ask what happened to the calls of a durable run that had begun, and must not be repeated.

    Returns:
        The questions, which are stored.
    """
    doubtful_steps = yield from steps.mark_unknown(run_id)
    if not doubtful_steps:
        return []

    log = yield from load_log(run_id)
    assert log is not None
    arguments = log.find_arguments()
    at = now()
    questions = [
        build_row(
            log.spec,
            root_id,
            # The times differ, so that lists have them in the order of the steps.
            at + number,
            kind="outcome",
            policy="user",
            tool_call_id=step.call_id or "",
            tool_name=step.name or "",
            arguments_hash=step.arguments_hash or "",
            question=OUTCOME_QUESTION,
            arguments=to_json(arguments.get(step.call_id or "", {})),
        )
        for number, step in enumerate(doubtful_steps)
    ]

    yield from approvals.create(questions)
    return questions


@unit
def append_pause_event(root_id: str, questions: Sequence[ApprovalRow]) -> Steps[None]:
    """Store the event that a root run waits for answers about lost calls, for its followers.

    A run without stored events gets none: its followers read its row.
    """
    run = yield from run_reads.get_for_update(root_id)
    last_seq = yield from events.get_last_seq(root_id)
    checkpoint = yield from approvals.load_checkpoint(root_id)
    if run is None or last_seq < 0 or checkpoint is None:
        return

    component_name = StoredLog(checkpoint).body["component_name"]
    identity = event_rows.identify_run(run, component_name)
    event = event_rows.format_paused(identity, [describe_approval(row) for row in questions], now())
    # The lost worker may have delivered events that were never stored.
    yield from append_event(run, last_seq + LOST_SEQ_STEP, event)


CHANGE_TOOL = "agentctl.change_version"
"""The name of the call in a question about another version."""

_VERSION_PREFIX = "version:"


BUDGET_TOOL = "agentctl.raise_budget"
"""The name of the call in the question of a budget."""

_BUDGET_PREFIX = "budget:"


def name_budget_question(budget_id: str, since: int, limit: int) -> str:
    """Return the id of the call in the question of a budget at a limit.

    Args:
        since: the begin of the period, microseconds UTC.
        limit: the limit in effect, in tokens or billionths of a US dollar.
    """
    return f"{_BUDGET_PREFIX}{since}:{limit}:{budget_id}"


def read_budget_question(row: ApprovalRow) -> tuple[int, int]:
    """Return the begin of the period and the limit that the id of a budget's question has."""
    _, since, limit, _ = row.tool_call_id.split(":", 3)
    return int(since), int(limit)


def is_budget_question(row: ApprovalRow) -> bool:
    """Return True if an approval asks for more of a budget."""
    return row.tool_name == BUDGET_TOOL and row.tool_call_id.startswith(_BUDGET_PREFIX)


def is_question(row: ApprovalRow) -> bool:
    """Return True if an approval is for a call that no tool makes."""
    return is_version_question(row) or is_budget_question(row)


def is_version_question(row: ApprovalRow) -> bool:
    """Return True if an approval asks about another version."""
    return row.tool_name == CHANGE_TOOL and row.tool_call_id.startswith(_VERSION_PREFIX)


def build_question(
    state: RunState,
    spec: RunSpec,
    version: str,
    at: int,
    *,
    changes: Sequence[Mapping[str, Any]],
    calls: Sequence[ApprovalRow],
    policy: ApprovalPolicy,
    expires_at: int | None,
) -> ApprovalRow:
    """Build the question about a run that waits.

    Args:
        state: the run, with its version so far.
        spec: the specification of the run.
        version: the version with which it would continue.
        at: the time of the question in microseconds UTC.
        changes: the differences of the two configurations.
        calls: its approved calls whose tools have changed.
        expires_at: the time at which the question is rejected, microseconds UTC; None for never.
    """
    call_id = f"{_VERSION_PREFIX}{state.version}:{version}:{state.attempt}"
    question = f"Go on with version {version} in place of {state.version}?"
    if calls:
        tool_names = ", ".join(dict.fromkeys(row.tool_name for row in calls))
        question += f" The tools of approved calls have changed: {tool_names}."

    arguments = {
        "before": state.version,
        "after": version,
        "changes": list(changes),
        "calls": [row.approval_id for row in calls],
    }
    return build_row(
        spec,
        state.run_id,
        at,
        kind="approval",
        policy=policy,
        tool_call_id=call_id,
        tool_name=CHANGE_TOOL,
        arguments=to_json(arguments),
        arguments_hash=hash_call(state.run_id, call_id, CHANGE_TOOL, arguments),
        question=question,
        # No edit of the arguments is valid.
        schema=to_json({"not": {}}),
        expires_at=expires_at,
    )


def find_answer(rows: Sequence[ApprovalRow], version: str) -> ApprovalRow | None:
    """Return the decided question about a version that has no effect yet; None if there is none.

    Args:
        rows: the approvals of a run, oldest first.
        version: the version with which the run would continue.
    """
    for row in reversed(rows):
        if is_version_question(row) and row.execution is None and row.status != "pending":
            # `build_question` has the versions before and after in the id of the call.
            _, asked_version, *_ = row.tool_call_id.removeprefix(_VERSION_PREFIX).split(":")
            return row if asked_version == version else None
    return None


@unit
def close_question(run_id: str, at: int) -> Steps[None]:
    """Store that the answer to the question of a run has its effect, if there was one."""
    for row in (yield from approvals.list_of_run(run_id)):
        if is_version_question(row) and row.status == "approved" and row.execution is None:
            yield from approvals.begin_execution(row.approval_id, run_id, at)
            yield from approvals.end_execution(row.approval_id, run_id, "done", "null", at)


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

    These are all checks of a ruling except the check of the person (`check_approver`). The write
    (`write_decisions`) finds out if another ruling was first.

    Args:
        actor: the principal that decides.
        can_call: returns False if a tool of a component does not exist any more. It gets the kind
            and the id of the component, and the name of the tool.

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

    at = now()
    status = _STATUSES[ruling.decision]
    change = DecisionChange(status=status, decided_at=at, decided_by=actor, note=ruling.note)

    match ruling.decision:
        case "approve" if ruling.arguments is not None:
            await _check_schema("arguments", ruling.arguments, row.schema)
            # Arguments that are equal to the shown ones are no edit.
            edited_hash = hash_call(row.run_id, row.tool_call_id, row.tool_name, ruling.arguments)
            if edited_hash != row.arguments_hash:
                change = change._replace(approved_arguments=arguments, approved_hash=edited_hash)
        case "answer":
            await _check_schema("answer", ruling.answer, row.schema)
            change = change._replace(answer=answer or "null")
        case "complete":
            change = change._replace(execution="done", result=result or "null")
        case "fail":
            reason = orjson.dumps(ruling.note or "The call failed").decode()
            change = change._replace(execution="failed", result=reason)

    is_call = status == "approved" and not is_question(row)
    if is_call and not can_call(row.component_type, row.component_id, row.tool_name):
        raise errors.Conflict(
            f"The tool {row.tool_name} does not exist any more: the call cannot be made"
        )
    return change


def _check_fields(row: ApprovalRow, ruling: Ruling) -> None:
    """Check that the fields of a ruling fit together and to the approval; see `rule`."""
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
            "arguments_hash belongs to a different call: read the approval again, then decide"
        )


async def _check_schema(name: str, value: Any, schema: str | None) -> None:
    """Check a value against the stored JSON Schema of an approval."""
    if schema is None:
        return

    problem = await find_schema_problem(orjson.loads(schema), value)
    if problem is not None:
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
        The approvals after the decisions, and True if the root run may continue.

    Raises:
        Conflict: one of them was decided meanwhile.
        NotFound: one of them was deleted meanwhile.
    """
    # Two last decisions at the same time would each find the approval of the other one pending, and
    # none of them would let the run continue.
    yield from run_reads.lock_state(root_run_id)

    decided_rows = []
    for approval_id, change in changes:
        is_decided = yield from approvals.decide(approval_id, change)
        row = yield from approvals.get(approval_id, EVERYONE)
        if row is None:
            raise errors.NotFound("Approval not found")
        if not is_decided:
            check_pending(row)
        if row.kind == "outcome":
            yield from _settle_outcome(row)
        yield from publish_decision(outbox, row)
        decided_rows.append(row)

    if extra_write is not None:
        yield from extra_write()

    may_continue = yield from release_if_decided(root_run_id)
    return decided_rows, may_continue


def _settle_outcome(row: ApprovalRow) -> Steps[None]:
    """Store the outcome, as a person knows it, of the call whose server died."""
    execution = None if row.status == "approved" else row.execution
    was_approved = yield from approvals.settle_unknown(
        row.run_id, row.tool_call_id, execution, row.result, row.decided_at
    )
    if not was_approved:
        yield from _settle_step(row, execution)


def _settle_step(row: ApprovalRow, execution: str | None) -> Steps[None]:
    """Store the outcome of a call of a durable run that needed no approval."""
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
        Ids of the root runs that may continue.

    Raises:
        Unavailable: the database does not answer; a later call rejects the rest.
    """
    due_rows = await database.read(approvals.list_due(now()))
    if due_rows:
        # The clock of this machine may be ahead of the clocks of other machines.
        moment = await database.clock()
        due_rows = [
            row for row in due_rows if row.expires_at is not None and row.expires_at <= moment
        ]

    released_ids = []
    for row in due_rows:
        change = DecisionChange(status="expired", decided_at=now(), decided_by=EXPIRY)
        try:
            decided_rows, may_continue = await database.write(
                write_decisions(database.outbox, row.root_run_id, [(row.approval_id, change)])
            )
        except errors.Conflict:
            # A person was first.
            continue

        database.outbox.wake()
        if count_decision is not None:
            for decided_row in decided_rows:
                count_decision(decided_row)
        if may_continue:
            released_ids.append(row.root_run_id)

    return released_ids
