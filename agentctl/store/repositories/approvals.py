"""Approvals, and the checkpoints of the runs that wait for them.

A decision and the begin of a call are conditional updates: the number of changed rows decides which
writer succeeds, and a call is begun at most once. A transaction locks the row of the root run
before it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from agentctl.records.approvals import ApprovalRow, ApprovalSummary
from agentctl.records.times import format_optional_time
from agentctl.store import listing
from agentctl.store.compared import Filtered, build_lead, find_by_prefix
from agentctl.store.database import (
    Sql,
    Statement,
    Steps,
    Value,
    Work,
    build_insert,
    single_unit,
    unit,
)
from agentctl.store.repositories.queue import IS_IN_QUEUE
from agentctl.store.states import APPROVAL, CALL, IS_LIVE, change
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import IS_VISIBLE, Visibility

if TYPE_CHECKING:
    from agentctl.interface.requests.approvals import ApprovalFilter


class Checkpoint(NamedTuple):
    """The state from which a run continues."""

    run_id: str

    attempt: int
    """The attempt of the leg that wrote it; 0 before the first leg."""

    kind: str
    """`start` or `pause`."""

    body: str
    """The state as JSON (`runs.log.fold`)."""


class DecisionChange(NamedTuple):
    """The new values of a pending approval that is decided; JSON texts and microseconds UTC."""

    status: str
    decided_at: int
    decided_by: str
    note: str | None = None
    approved_arguments: str | None = None
    approved_hash: str | None = None
    answer: str | None = None
    execution: str | None = None
    result: str | None = None


_NAMES = tuple(field.name for field in fields(ApprovalRow))
_COLUMNS = ", ".join(_NAMES)

_CREATE = change(APPROVAL, "ask")(build_insert("approvals", _NAMES))
_GET = Sql(f"SELECT {_COLUMNS} FROM approvals WHERE approval_id = :approval_id AND {IS_VISIBLE}")
_OF_RUN = Sql(
    f"SELECT {_COLUMNS} FROM approvals WHERE run_id = :run_id ORDER BY created_at, approval_id"
)
_SUMMARY_NAMES = tuple(ApprovalSummary.__annotations__)
_SUMMARIES = Sql(
    f"SELECT created_at, root_run_id, {', '.join(_SUMMARY_NAMES)} FROM approvals"
    f" WHERE run_id IN ({listing.ID_GROUP}) OR root_run_id IN ({listing.ID_GROUP})"
)
_OF_ROOT = Sql(
    f"SELECT {_COLUMNS} FROM approvals WHERE root_run_id = :root_run_id"
    " ORDER BY created_at, approval_id"
)
_PENDING_OF_SESSION = Sql(
    f"SELECT {_COLUMNS} FROM approvals WHERE session_id = :session_id AND status = 'pending'"
    f" AND {IS_VISIBLE} ORDER BY created_at, approval_id"
)
_PENDING_OF_ROOT = Sql(
    "SELECT count(*) FROM approvals WHERE root_run_id = :root_run_id AND status = 'pending'"
)
_HAS_PENDING = Sql(
    "SELECT approval_id FROM approvals WHERE run_id = :run_id AND status = 'pending' LIMIT 1"
)
_IS_ASKED = Sql(
    "SELECT approval_id FROM approvals WHERE status = 'pending' AND tool_call_id = :tool_call_id"
    " AND (cast(:user_id as text) IS NULL OR coalesce(user_id, '') = :user_id)"
    " AND (cast(:component_id as text) IS NULL OR component_id = :component_id) LIMIT 1"
)
_COUNT_PENDING = Sql(
    "SELECT count(*) FROM (SELECT 1 FROM approvals WHERE status = 'pending' LIMIT :limit) AS found"
)
_DECISION = ", ".join(f"{name} = :{name}" for name in DecisionChange._fields)
_DECIDE = change(CALL, "report")(
    f"UPDATE approvals SET {_DECISION},"
    " executed_at = CASE WHEN cast(:execution as text) IS NULL THEN NULL ELSE"
    " cast(:decided_at as bigint) END"
    " WHERE approval_id = :approval_id AND {where}"
    " AND (expires_at IS NULL OR expires_at > :decided_at OR cast(:status as text) = 'expired')"
    " RETURNING approval_id"
)
_DECIDE = change(APPROVAL, "decide", "expire")(_DECIDE)
_BEGIN = change(CALL, "begin")(
    "UPDATE approvals SET execution = 'executing', executing_at = :at"
    " WHERE approval_id = :approval_id AND run_id = :run_id AND {where} RETURNING approval_id"
)
_END = change(CALL, "end")(
    "UPDATE approvals SET execution = :execution, executed_at = :at, result = :result"
    " WHERE approval_id = :approval_id AND run_id = :run_id AND {where} RETURNING approval_id"
)
_SET_EXECUTION = change(CALL, "settle")(
    "UPDATE approvals SET execution = :execution, result = :result, executed_at = :at"
    " WHERE run_id = :run_id AND tool_call_id = :tool_call_id AND kind = 'approval'"
    " AND {where} RETURNING approval_id"
)
_FORGET_EXECUTION = change(CALL, "forget")(
    "UPDATE approvals SET execution = NULL, executing_at = NULL"
    " WHERE approval_id = :approval_id AND {where}"
)
_FORGET_BEGIN = change(CALL, "forget")(
    "UPDATE approvals SET execution = NULL, executing_at = NULL"
    " WHERE approval_id = :approval_id AND executing_at = :at AND {where}"
)
_MARK_UNKNOWN = change(CALL, "doubt")(
    "UPDATE approvals SET execution = 'unknown' WHERE run_id = :run_id AND {where}"
    " RETURNING approval_id"
)
_DOUBT_RESTORED = (
    "UPDATE approvals SET execution = 'unknown' WHERE kind = 'approval' AND status = 'approved'"
    " AND {where} AND "
)
_MARK_ALL_UNKNOWN = change(CALL, "doubt restored")(
    f"{_DOUBT_RESTORED}(execution = 'executing' OR EXISTS (SELECT 1 FROM runs"
    " WHERE runs.run_id = approvals.run_id AND runs.finished_at IS NULL)) RETURNING approval_id"
)
_DOUBT = change(CALL, "doubt restored")(
    f"{_DOUBT_RESTORED}approval_id = :approval_id RETURNING approval_id"
)
_PAUSED_WITH_DOUBT = Sql(
    "SELECT run_id FROM runs WHERE status = 'PAUSED' AND EXISTS (SELECT 1 FROM approvals"
    " WHERE root_run_id = runs.run_id AND approvals.status = 'approved'"
    " AND (execution IS NULL OR execution = 'executing'))"
)
_CANCEL = change(APPROVAL, "close")(
    "UPDATE approvals SET status = 'cancelled', decided_at = :at, decided_by = :actor"
    " WHERE run_id = :run_id AND {where}"
)
_DUE = Sql(
    f"SELECT {_COLUMNS} FROM approvals WHERE status = 'pending' AND expires_at <= :now"
    " ORDER BY expires_at LIMIT 100"
)
_COUNTS = Sql(
    "SELECT (SELECT count(*) FROM runs WHERE status = 'PAUSED' AND parent_run_id IS NULL),"
    " (SELECT count(*) FROM approvals WHERE status = 'pending'),"
    " (SELECT count(*) FROM approvals WHERE kind = 'outcome')"
    " + (SELECT count(*) FROM approvals JOIN runs ON runs.run_id = approvals.run_id"
    " WHERE execution = 'unknown' AND finished_at IS NOT NULL),"
    f" (SELECT count(*) FROM runs WHERE {IS_IN_QUEUE})"
)

_IS_DECIDED = (
    f"{APPROVAL.where('delete')} AND created_at < :before"
    " AND coalesce(decided_at, created_at) < :before"
    " AND (execution IS NULL OR execution IN ('done', 'failed')) AND EXISTS (SELECT 1 FROM runs"
    " JOIN sessions ON sessions.session_id = runs.session_id WHERE hold IS NULL"
    " AND runs.run_id = approvals.root_run_id AND finished_at IS NOT NULL)"
)
_DECIDED = Sql(f"SELECT approval_id FROM approvals WHERE {_IS_DECIDED} LIMIT :limit")
_DELETE_DECIDED = change(APPROVAL, "delete")(
    f"DELETE FROM approvals WHERE approval_id IN ({listing.ID_GROUP}) AND {_IS_DECIDED}"
    " RETURNING approval_id"
)

_KEEP = Sql(
    "INSERT INTO run_checkpoints (run_id, attempt, kind, body)"
    " VALUES (:run_id, :attempt, :kind, :body) ON CONFLICT (run_id) DO UPDATE"
    " SET attempt = excluded.attempt, kind = excluded.kind, body = excluded.body"
)
_LOAD = Sql("SELECT run_id, attempt, kind, body FROM run_checkpoints WHERE run_id = :run_id")
_ATTEMPT = Sql("SELECT attempt FROM run_checkpoints WHERE run_id = :run_id")
_RENEW = Sql("UPDATE run_checkpoints SET attempt = :attempt WHERE run_id = :run_id")
_BELOW = Sql(
    "WITH RECURSIVE below (run_id) AS (SELECT run_id FROM runs WHERE parent_run_id = :root_run_id"
    " UNION ALL SELECT runs.run_id FROM runs JOIN below ON runs.parent_run_id = below.run_id)"
    " SELECT run_checkpoints.run_id FROM run_checkpoints"
    " JOIN below ON below.run_id = run_checkpoints.run_id ORDER BY run_checkpoints.run_id"
)
_OF_OWNER = Sql(
    "SELECT run_checkpoints.run_id FROM runs JOIN run_checkpoints"
    " ON run_checkpoints.run_id = runs.run_id"
    f" WHERE runs.owner = :owner AND {IS_LIVE}"
)
_DROP = Sql("DELETE FROM run_checkpoints WHERE run_id = :run_id")


@unit
def create(rows: Sequence[ApprovalRow]) -> Steps[None]:
    """Store new approvals."""
    for row in rows:
        yield Statement(_CREATE, {name: getattr(row, name) for name in _NAMES})


def get(approval_id: str, visibility: Visibility) -> Work[ApprovalRow | None]:
    """Return an approval, or None if no visible one has the id."""
    return _GET.first(ApprovalRow, approval_id=approval_id, **visibility.parameters())


def list_of_run(run_id: str) -> Work[list[ApprovalRow]]:
    """Return the approvals of a run, oldest first, without the approvals of its members."""
    return _OF_RUN.rows(ApprovalRow, run_id=run_id)


def list_of_root(root_run_id: str) -> Work[list[ApprovalRow]]:
    """Return the approvals of a root run and of its members, oldest first."""
    return _OF_ROOT.rows(ApprovalRow, root_run_id=root_run_id)


def list_pending_of_session(session_id: str, visibility: Visibility) -> Work[list[ApprovalRow]]:
    """Return the visible pending approvals of a session, oldest first."""
    return _PENDING_OF_SESSION.rows(ApprovalRow, session_id=session_id, **visibility.parameters())


@unit
def list_summaries(run_ids: Sequence[str]) -> Steps[dict[str, list[dict[str, Value]]]]:
    """Return the approvals of some runs and of their members, as the records of the runs have them.

    They are oldest first. A run without approvals has no entry.
    """
    summaries: dict[str, list[dict[str, Value]]] = {}
    for parameters in listing.group_ids(run_ids):
        # Sorted here: two indexes find the rows, and there are few.
        rows = yield Statement(_SUMMARIES, parameters)
        for _, root_run_id, *values in sorted(rows, key=lambda row: (row[0], row[2])):
            summary: dict[str, Any] = dict(zip(_SUMMARY_NAMES, values, strict=True))
            for name in ("created_at", "decided_at"):
                summary[name] = format_optional_time(summary[name])

            # The record of a member has its approvals, and so has the record of its root run.
            for run_id in {root_run_id, summary["run_id"]}.intersection(parameters.values()):
                summaries.setdefault(run_id, []).append(summary)
    return summaries


def count_pending_of_root(root_run_id: str) -> Work[int]:
    """Return the number of pending approvals of a root run and of its members."""
    return _PENDING_OF_ROOT.value(root_run_id=root_run_id)


def has_pending(run_id: str) -> Work[bool]:
    """Return True if a run itself waits for people."""
    return _HAS_PENDING.has_rows(run_id=run_id)


def is_asked(tool_call_id: str, *, user_id: str | None, component_id: str | None) -> Work[bool]:
    """Return True if a run waits for the decision about a call with an id.

    Args:
        user_id: only runs of this user, "" for runs without one; None for all.
        component_id: only runs of this component; None for all.
    """
    return _IS_ASKED.has_rows(tool_call_id=tool_call_id, user_id=user_id, component_id=component_id)


def count_pending(limit: int) -> Work[int]:
    """Return the number of pending approvals in the database, at most `limit`."""
    return _COUNT_PENDING.value(limit=limit)


class WaitingCounts(NamedTuple):
    """The numbers of runs and approvals that wait in a database."""

    paused: int = 0
    """Paused root runs."""

    pending: int = 0
    """Pending approvals."""

    unknown: int = 0
    """Calls whose outcome was ever unknown.

    It only grows: a call in doubt has a question about its outcome, unless its run ended.
    """

    queued: int = 0
    """Runs in the queue."""


@single_unit
def count_waiting() -> Steps[WaitingCounts]:
    """Count what waits in the database."""
    (row,) = yield Statement(_COUNTS)
    return WaitingCounts(*row)


def decide(approval_id: str, change: DecisionChange) -> Work[bool]:
    """Store the decision of a pending approval; return False, without a change, if it is not."""
    return _DECIDE.has_rows(approval_id=approval_id, **change._asdict())


def begin_execution(approval_id: str, run_id: str, at: int) -> Work[bool]:
    """Store that an approved call begins; the caller has locked the row of the run.

    Returns:
        False, without a change, if the call is not approved, or began before.
    """
    return _BEGIN.has_rows(approval_id=approval_id, run_id=run_id, at=at)


def end_execution(
    approval_id: str, run_id: str, execution: str, result: str, at: int
) -> Work[bool]:
    """Store the end of a call, `done` or `failed`, with its result as JSON text."""
    return _END.has_rows(
        approval_id=approval_id, run_id=run_id, execution=execution, result=result, at=at
    )


def settle_unknown(
    run_id: str, tool_call_id: str, execution: str | None, result: str | None, at: int | None
) -> Work[bool]:
    """Store what a person knows about a call whose outcome is unknown; None: it may be retried."""
    return _SET_EXECUTION.has_rows(
        run_id=run_id, tool_call_id=tool_call_id, execution=execution, result=result, at=at
    )


def forget_execution(approval_id: str) -> Work[None]:
    """Store that a call did not begin: it was not made, or is idempotent and its server died."""
    return _FORGET_EXECUTION.execute(approval_id=approval_id)


def forget_begin(approval_id: str, at: int) -> Work[None]:
    """Store that a call did not begin after all, if its begin at a time was committed.

    Args:
        at: the time of the begin, in microseconds; another begin stays.
    """
    return _FORGET_BEGIN.execute(approval_id=approval_id, at=at)


def mark_unknown(run_id: str) -> Work[list[str]]:
    """Mark the calls of a run that are executing as unknown: no one will report their end.

    Returns:
        The ids of their approvals.
    """
    return _MARK_UNKNOWN.column(run_id=run_id)


def mark_all_unknown() -> Work[int]:
    """Mark the approved calls that have no end as unknown. Return their number.

    A call that did not begin before its run ended was not made, and is not marked.
    """
    return _MARK_ALL_UNKNOWN.count_rows()


def list_paused_with_doubt() -> Work[list[str]]:
    """Return the paused root runs that may have approved calls without an end."""
    return _PAUSED_WITH_DOUBT.column()


def doubt(approval_id: str) -> Work[bool]:
    """Mark an approved call that has no end as unknown; return False if there is no such call."""
    return _DOUBT.has_rows(approval_id=approval_id)


def cancel_pending(run_id: str, actor: str, at: int) -> Work[None]:
    """Cancel the pending approvals of a run that has ended."""
    return _CANCEL.execute(run_id=run_id, actor=actor, at=at)


def list_due(now: int) -> Work[list[ApprovalRow]]:
    """Return pending approvals that have expired; at most 100."""
    return _DUE.rows(ApprovalRow, now=now)


LISTING = listing.Listing(table="approvals", columns=_COLUMNS, id="approval_id")

_EQUAL = (
    "status", "execution", "kind", "policy", "component_type", "component_id", "tool_name",
    "session_id", "user_id",
)  # fmt: skip
"""The columns that filters compare."""

_LEADS = tuple(
    map(build_lead, ("session_id", "user_id", "component_id", "execution", "status", ""))
)


def list_decided(before: int, limit: int) -> Work[list[str]]:
    """Return approvals that were decided before a time, and whose run has ended.

    Approvals of held sessions are left out, and approvals of calls whose outcome is not known.
    """
    return _DECIDED.column(before=before, limit=limit)


def delete_decided(approval_ids: Sequence[str], before: int) -> Work[list[str]]:
    """Delete the given approvals that `list_decided` still finds, and return their ids."""
    return listing.read_by_ids(_DELETE_DECIDED, approval_ids, str, before=before)


def list_page(
    filter: ApprovalFilter,
    visibility: Visibility,
    visible: listing.Conditions,
    page: listing.Slice,
    totals: ListTotals | None = None,
) -> Work[listing.RowPage[ApprovalRow]]:
    """Read a page of the visible approvals that match a filter, and their total.

    Args:
        filter: the filter; its `page` is not read.
        visible: further conditions of the approvals that the caller sees.
        page: the page, in the order of `created_at`.
        totals: the remembered totals of the database.
    """
    of_run = listing.Conditions().with_present(
        "(run_id = :run_id OR root_run_id = :run_id)", run_id=filter.run_id
    )
    leads = _LEADS
    if filter.status == "pending":
        # Few approvals are pending: an index with the status is the shortest way to them.
        leads = tuple(sorted(_LEADS, key=lambda lead: "status" not in lead.columns))

    filtered = Filtered(
        LISTING,
        leads,
        visibility,
        equal={name: getattr(filter, name) for name in _EQUAL},
        few=of_run,
        compared=visible,
        ranges=find_by_prefix("approval_id", filter.id_prefix),
        times=(filter.created_after, filter.created_before),
        totals=totals,
    )
    return filtered.list_page(page, ApprovalRow)


def keep_checkpoint(checkpoint: Checkpoint) -> Work[None]:
    """Store the checkpoint of a run in place of an earlier one."""
    return _KEEP.execute(**checkpoint._asdict())


def load_checkpoint(run_id: str) -> Work[Checkpoint | None]:
    """Return the checkpoint of a run; None if it has none."""
    return _LOAD.first(Checkpoint, run_id=run_id)


def get_checkpoint_attempt(run_id: str) -> Work[int | None]:
    """Return the attempt that wrote the checkpoint of a run; None if it has none."""
    return _ATTEMPT.value(run_id=run_id)


def renew_checkpoint(run_id: str, attempt: int) -> Work[None]:
    """Store the attempt after which the next one is not a repetition: nothing was lost."""
    return _RENEW.execute(run_id=run_id, attempt=attempt)


def list_checkpoints_below(root_run_id: str) -> Work[list[str]]:
    """Return the members below a root run that have a checkpoint."""
    return _BELOW.column(root_run_id=root_run_id)


def list_checkpoints_of_owner(owner: str | None) -> Work[list[str]]:
    """Return the live runs of a worker that have a checkpoint."""
    return _OF_OWNER.column(owner=owner)


def drop_checkpoint(run_id: str) -> Work[None]:
    """Delete the checkpoint of a run that has ended."""
    return _DROP.execute(run_id=run_id)
