"""Questions whether a run goes on with another version of its component (docs/versions.md).

They are approvals of the kind `approval` for a call that no tool makes: its name is not one that a
model can use. A run asks before a leg, at most one question at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctl.records.approvals import ApprovalPolicy, ApprovalRow, hash_call
from agentctl.records.ids import new_id
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunState
from agentctl.runs.log.results import to_json
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import approvals

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
    return ApprovalRow(
        approval_id=new_id(),
        kind="approval",
        policy=policy,
        run_id=state.run_id,
        root_run_id=state.run_id,
        session_id=state.session_id,
        component_type=state.component_type,
        component_id=state.component_id,
        user_id=state.user_id,
        started_by=spec.actor,
        tool_call_id=call_id,
        tool_name=CHANGE_TOOL,
        arguments=to_json(arguments),
        arguments_hash=hash_call(state.run_id, call_id, CHANGE_TOOL, arguments),
        created_at=at,
        request_id=spec.request_id,
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
