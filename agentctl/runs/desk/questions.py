"""Questions of the server: calls with an unknown outcome, and changed versions.

No one knows whether a call happened that was executing when its process died. The run waits with an
approval of the kind `outcome`: a person reports what happened (docs/approvals.md "Kinds").

Whether a run goes on with another version of its component is an approval of the kind `approval`
for a call that no tool makes: its name is not one that a model can use. A run asks before a leg, at
most one question at a time (docs/versions.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctl.records.approvals import ApprovalPolicy, ApprovalRow, hash_call
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunState
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.desk.waiting import append_event
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, describe
from agentctl.runs.log.fold import StoredLog, load_log
from agentctl.runs.log.results import to_json
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import approvals, events, run_reads, steps

OUTCOME_QUESTION = (
    "The server died while this call was made. What happened? Complete it with its result, fail it,"
    " or retry it."
)


@unit
def ask_about_lost_calls(rows: list[ApprovalRow]) -> Steps[list[ApprovalRow]]:
    """Mark the calls that were executing, and ask about those that must not be repeated."""
    at, asked = now(), list[ApprovalRow]()
    executing = [row for row in rows if row.execution == "executing"]
    for row in executing:
        if row.idempotent:
            yield from approvals.forget_execution(row.approval_id)
    for run_id in dict.fromkeys(row.run_id for row in executing if not row.idempotent):
        # A worker that is not dead may have stored the end of a call since it was read.
        marked = yield from approvals.mark_unknown(run_id)
        questions = (row for row in executing if row.approval_id in marked)
        asked += [build_outcome_question(row, OUTCOME_QUESTION, at) for row in questions]
    yield from approvals.create(asked)
    return asked


def build_outcome_question(row: ApprovalRow, question: str, at: int) -> ApprovalRow:
    """Build the approval that asks what happened to an approved call."""
    kept = (
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
        **{name: getattr(row, name) for name in kept},
    )


def build_row(spec: RunSpec, root_id: str, at: int, **about_call: Any) -> ApprovalRow:
    """Build the row of something that a run asks for at a time.

    Args:
        about_call: the other columns of `ApprovalRow`.
    """
    names = ("run_id", "session_id", "component_type", "component_id", "user_id", "request_id")
    return ApprovalRow(
        approval_id=new_id(),
        root_run_id=root_id,
        started_by=spec.actor,
        created_at=at,
        **{name: getattr(spec, name) for name in names},
        **about_call,
    )


@unit
def ask_about_lost_steps(run_id: str, root_id: str) -> Steps[list[ApprovalRow]]:
    """Ask what happened to the calls of a durable run that had begun, and must not be repeated."""
    doubtful = yield from steps.mark_unknown(run_id)
    if not doubtful:
        return []

    log = yield from load_log(run_id)
    assert log is not None
    arguments, at = log.find_arguments(), now()
    asked = [
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
        for number, step in enumerate(doubtful)
    ]

    yield from approvals.create(asked)
    return asked


@unit
def append_pause_event(root_id: str, asked: Sequence[ApprovalRow]) -> Steps[None]:
    """Store the event that a root run waits for answers about lost calls, for its followers."""
    run = yield from run_reads.get_for_update(root_id)
    last = yield from events.get_last_seq(root_id)
    checkpoint = yield from approvals.load_checkpoint(root_id)
    if run is None or last < 0 or checkpoint is None:
        return
    name = StoredLog(checkpoint).body["component_name"]
    described = [describe(row) for row in asked]
    event = event_rows.format_paused(event_rows.identify_run(run, name), described, now())
    yield from append_event(run, last + LOST_SEQ_STEP, event)


CHANGE_TOOL = "agentctl.change_version"
"""The name of the call in a question."""

_ID_PREFIX = "version:"


def is_version_question(row: ApprovalRow) -> bool:
    """Return True if an approval asks about another version."""
    return row.tool_name == CHANGE_TOOL and row.tool_call_id.startswith(_ID_PREFIX)


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
        spec: the specification of the run.
        version: the version with which it would go on.
        changes: the differences of the two configurations.
        calls: its approved calls whose tools have changed.
    """
    call_id = f"{_ID_PREFIX}{state.version}:{version}:{state.attempt}"
    question = f"Go on with version {version} in place of {state.version}?"
    if calls:
        names = ", ".join(dict.fromkeys(row.tool_name for row in calls))
        question += f" The tools of approved calls have changed: {names}."
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
    """Return the decided question about a version that has no effect yet."""
    for row in reversed(rows):
        if is_version_question(row) and row.execution is None and row.status != "pending":
            asked = row.tool_call_id.removeprefix(_ID_PREFIX).split(":")
            return row if asked[1] == version else None
    return None


@unit
def close_question(run_id: str, at: int) -> Steps[None]:
    """Store that the answer to the question of a run has its effect, if there was one."""
    for row in (yield from approvals.list_of_run(run_id)):
        if is_version_question(row) and row.status == "approved" and row.execution is None:
            yield from approvals.begin_execution(row.approval_id, run_id, at)
            yield from approvals.end_execution(row.approval_id, run_id, "done", "null", at)
