"""The rules that hold after a schedule, read by plain SQL once everything has settled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentctl.records.times import now
from agentctl.runs.states import FINAL_STATUSES
from agentctl.store.database import Sql
from agentctl.store.repositories.integrity import find_inconsistent

__all__ = ["Facts", "find_violations", "read_facts"]

_RUNS = Sql(
    "SELECT run_id, parent_run_id, status, owner, attempt, cancel_requested_at, finished_at,"
    " error_code, error_detail, component_id,"
    " cancel_requested_by, cancel_reason, input, started_at, queue_turn"
    " FROM runs WHERE session_id = :session_id ORDER BY seq"
)
_APPROVALS = Sql(
    "SELECT approval_id, run_id, root_run_id, kind, status, execution, tool_call_id, decided_at,"
    " component_type, component_id, arguments_hash"
    " FROM approvals WHERE session_id = :session_id ORDER BY created_at"
)
_CHECKPOINTS = Sql(
    "SELECT run_checkpoints.run_id FROM run_checkpoints JOIN runs"
    " ON runs.run_id = run_checkpoints.run_id WHERE session_id = :session_id"
)

Row = Mapping[str, Any]


class Facts:
    """The rows of a session."""

    def __init__(self, runs: list[Row], approvals: list[Row], checkpoints: list[str]) -> None:
        self.runs = runs
        self.approvals = approvals
        self.checkpoints = checkpoints

    @property
    def roots(self) -> list[Row]:
        return [run for run in self.runs if run["parent_run_id"] is None]

    @property
    def open_runs(self) -> list[Row]:
        return [run for run in self.runs if run["status"] not in FINAL_STATUSES]

    @property
    def pending(self) -> list[Row]:
        return [row for row in self.approvals if row["status"] == "pending"]

    def describe(self) -> str:
        lines = [
            f"{run['component_id']} {run['run_id'][:8]} {run['status']}"
            f" owner={(run['owner'] or '-')[:8]} attempt={run['attempt']}"
            f" cancel={run['cancel_requested_by']} {run['cancel_reason'] or ''}"
            f" {run['error_code'] or ''}"
            f" {run['error_detail'] or ''}"
            for run in self.runs
        ]
        lines += [
            f"approval of {row['run_id'][:8]} {row['kind']} {row['status']} {row['execution']}"
            for row in self.approvals
        ]
        return "; ".join(lines)


def _build(sql: Sql) -> Any:
    names = sql.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
    return lambda *values: dict(zip(names, values, strict=True))


def _read_amount(text: str) -> int | None:
    """Return the amount in the message of a root run, which no other start has."""
    return int(json.loads(text)["amount"]) if text.startswith("{") else None


async def read_facts(database: Any, session_id: str) -> Facts:
    """Read the rows of a session."""
    runs = await database.read(_RUNS.rows(_build(_RUNS), session_id=session_id))
    runs = [{**run, "amount": _read_amount(run["input"])} for run in runs]
    approvals = await database.read(_APPROVALS.rows(_build(_APPROVALS), session_id=session_id))
    checkpoints = await database.read(_CHECKPOINTS.column(session_id=session_id))
    return Facts(runs, approvals, checkpoints)


async def find_impossible(database: Any, facts: Facts) -> list[str]:
    """Return what `doctor --runs` finds: states that `store.states` does not have."""
    found = []
    for run in facts.runs:
        rows = await database.read(find_inconsistent(10, now(), run["run_id"]), size="large")
        found += [f"{run['component_id']} {run['run_id'][:8]}: {row.text}" for row in rows]
    return found


def _is_known(run: Row) -> bool:
    """Return True for the failure of a parent whose member was cancelled, or by an operation."""
    detail = str(run["error_detail"])
    code = run["error_code"]
    return detail.endswith("was cancelled") or code == "QUEUE_TIMEOUT"


def find_violations(facts: Facts, *, live: set[str], is_lossy: bool) -> list[str]:
    """Return the broken rules of a session in which nothing works any more.

    Args:
        live: the runs that a server executes.
        is_lossy: True if a server or its connections were lost: runs may end as errors then.
    """
    found: list[str] = []
    by_id = {run["run_id"]: run for run in facts.runs}
    for run in facts.runs:
        name = f"{run['component_id']} {run['run_id'][:8]} {run['status']}"
        is_final = run["status"] in FINAL_STATUSES
        if is_final != (run["finished_at"] is not None):
            found.append(f"{name}: final and finished_at differ")
        if run["status"] == "CANCELLED" and run["cancel_requested_at"] is None:
            found.append(f"{name}: cancelled without a request")
        if is_final:
            if run["run_id"] in facts.checkpoints:
                found.append(f"{name}: has ended, but has a checkpoint")
        elif run["cancel_requested_at"] is not None:
            found.append(f"{name}: its cancel has no end")
        if run["status"] == "RUNNING" and run["run_id"] not in live:
            found.append(f"{name}: nothing executes it")
        if run["status"] == "PENDING" and run["parent_run_id"] is not None:
            found.append(f"{name}: a member cannot be claimed")
        if run["error_code"] is not None and not (is_lossy or _is_known(run)):
            found.append(f"{name}: {run['error_code']} {run['error_detail']}")
        parent = by_id.get(run["parent_run_id"])
        if run["parent_run_id"] is not None and parent is None:
            found.append(f"{name}: has no parent")
        if parent is not None and parent["status"] in FINAL_STATUSES and not is_final:
            found.append(f"{name}: its parent is {parent['status']}")
        if (
            parent is None
            and run["status"] == "PAUSED"
            and not any(row["root_run_id"] == run["run_id"] for row in facts.pending)
        ):
            found.append(f"{name}: waits for nothing")
    for row in facts.approvals:
        name = f"approval of {row['run_id'][:8]} {row['status']} {row['execution']}"
        run = by_id.get(row["run_id"], {})
        is_final = run.get("status") in FINAL_STATUSES
        if row["status"] == "pending" and is_final:
            found.append(f"{name}: its run has ended")
        if row["execution"] is not None and row["status"] not in ("approved", "answered"):
            found.append(f"{name}: was executed")
        if row["execution"] == "executing" and run.get("run_id") not in live:
            found.append(f"{name}: nothing executes it")
    return found


def compare_ledger(facts: Facts, calls: int, granted: int, *, tracked: bool) -> list[str]:
    """Return the differences between the record and the calls that were really made.

    Args:
        calls: the calls of the session in the ledger.
        granted: the decisions that allowed a call.
        tracked: True if the record has the state of each approved call.
    """
    found = []
    if calls > granted:
        found.append(f"{calls} calls were made, {granted} were approved")
    if not tracked or not facts.runs:
        return found
    states = [row["execution"] for row in facts.approvals if row["kind"] == "approval"]
    made = states.count("done")
    doubtful = states.count("unknown") + states.count("failed")
    if not made <= calls <= made + doubtful:
        found.append(f"{calls} calls were made, the record has {states}")
    return found


def count_decisions(facts: Facts, accepted: int, *, is_lossy: bool) -> list[str]:
    """Return the difference between the accepted decisions of people and the stored ones.

    Args:
        is_lossy: True if a response may be lost after the decision was stored.
    """
    stored = sum(row["status"] in ("approved", "rejected", "answered") for row in facts.approvals)
    if not facts.runs or stored == accepted or (is_lossy and stored > accepted):
        return []
    return [f"{accepted} decisions were accepted, {stored} are stored"]
