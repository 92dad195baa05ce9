"""Rows for tests, with default values."""

from __future__ import annotations

import json
from typing import Any

from agentctl.records.approvals import ApprovalRow, hash_call
from agentctl.records.runs import NewRun, RunEnd
from agentctl.records.sessions import SessionRow
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import runs, sessions
from tests.kit.run_specs import a_spec

START = 1_700_000_000_000_000
"""A time in the past (microseconds UTC)."""

ARGUMENTS = {"amount": 20}
"""The arguments of the call of `an_approval`."""


def a_session(session_id: str = "s1", **given: Any) -> SessionRow:
    values: dict[str, Any] = {"session_type": "agent", "user_id": "ann", "now": START} | given
    return sessions.build_session(session_id, **values)


def a_run(
    run_id: str = "r1",
    session_id: str = "s1",
    *,
    owner: str | None = None,
    created_at: int = START,
    session_name: str | None = None,
    **given: Any,
) -> NewRun:
    """Return a run that is PENDING until it is claimed."""
    spec = a_spec(run_id, session_id, **{"background": True, **given})
    return NewRun(spec, owner, created_at, session_name)


def an_end(run_id: str = "r1", status: str = "COMPLETED", **given: Any) -> RunEnd:
    values: dict[str, Any] = {
        "attempt": 1,
        "content": "hello",
        "history": json.dumps([{"role": "user", "content": f"of {run_id}"}]),
        "messages": json.dumps([{"role": "user", "content": run_id}]),
        "tools": "[]",
        "metrics": json.dumps({"input_tokens": 2, "total_tokens": 3}),
        "error_code": None,
        "error_detail": None,
        "finished_at": START + 9,
        "stopped_at": START + 9,
    } | given
    return RunEnd(run_id, status=status, **values)


def an_approval(
    run_id: str = "r1", tool_call_id: str = "c1", tool_name: str = "pay", **given: Any
) -> ApprovalRow:
    """Return the pending approval of a call of a run that ann started."""
    values: dict[str, Any] = {
        "approval_id": "a1",
        "kind": "approval",
        "policy": "user",
        "root_run_id": run_id,
        "session_id": "s1",
        "component_type": "agent",
        "component_id": "echo",
        "user_id": "ann",
        "started_by": "ann",
        "arguments": json.dumps(ARGUMENTS),
        "arguments_hash": hash_call(run_id, tool_call_id, tool_name, ARGUMENTS),
        "created_at": START,
        "request_id": "q1",
    } | given
    return ApprovalRow(run_id=run_id, tool_call_id=tool_call_id, tool_name=tool_name, **values)


@unit
def a_session_with_run(
    run_id: str = "r1", session_id: str = "s1", *, owner: str | None = None
) -> Steps[None]:
    yield from sessions.create(a_session(session_id))
    yield from runs.create(a_run(run_id, session_id, owner=owner))


@unit
def a_whole_run(run: NewRun, end: RunEnd) -> Steps[None]:
    yield from runs.create(run)
    yield from runs.claim(run.spec.run_id, 1, "w1", run.created_at + 1)
    yield from runs.finish(end)
