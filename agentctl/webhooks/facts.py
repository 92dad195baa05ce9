"""Facts for webhooks: events of runs, approvals and halts, in the transaction of the fact.

So a committed fact has a delivery for each endpoint that is subscribed to it, and no other fact has
one (decision 85). Only root runs are reported, without background work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from agentctl.config.webhooks import Webhook
from agentctl.records.approvals import ApprovalRow
from agentctl.records.files import is_saved
from agentctl.records.kinds import KINDS
from agentctl.records.text import new_id
from agentctl.records.times import format_optional_time, format_rfc3339, now
from agentctl.store.database import Steps, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, search, webhooks
from agentctl.store.repositories.halts import HaltRow
from agentctl.store.repositories.sessions import parse_counters

MAXIMUM_BODY = 20_000
"""Bytes of the body of an event; the answer of a run is cut so that it fits."""

MAXIMUM_APPROVALS = 20
"""Approvals that an event lists."""

_RUN_EVENTS = {
    "COMPLETED": "run.completed",
    "ERROR": "run.failed",
    "CANCELLED": "run.cancelled",
    "PAUSED": "run.paused",
}


_RUN_FIELDS = (
    "run_id", "session_id", "component_type", "component_id", "version", "user_id", "status",
    "error_code", "cancel_reason",
)  # fmt: skip
_DECISION_FIELDS = (
    "approval_id", "kind", "policy", "status", "tool_name", "run_id", "root_run_id", "session_id",
    "component_type", "component_id", "user_id",
)  # fmt: skip


@unit
def publish_run(outbox: Outbox, run_id: str) -> Steps[None]:
    """Store the event and the text of a root run that has ended or paused in this transaction."""
    if not outbox.is_used:
        return
    if outbox.tokenizer is not None:
        yield from search.add_run(run_id, outbox.tokenizer)

    run = yield from webhooks.get_reported_run(run_id)
    if run is None or run.parent_run_id is not None or run.status not in _RUN_EVENTS:
        return

    event = _RUN_EVENTS[run.status]
    selected = outbox.select(event, run.component_id)
    if not selected:
        return

    at = run.finished_at
    pending_approvals = []
    if run.status == "PAUSED":
        at = run.paused_at
        rows = yield from approvals.list_of_root(run_id)
        pending_approvals = [
            {name: getattr(row, name) for name in ("approval_id", "kind", "policy", "tool_name")}
            for row in rows
            if row.status == "pending"
        ]
    if at is None:
        at = now()

    data = {
        **{name: getattr(run, name) for name in _RUN_FIELDS},
        "created_at": format_rfc3339(run.created_at),
        "finished_at": format_optional_time(run.finished_at),
        "total_tokens": parse_counters(run.metrics).get("total_tokens"),
        **_list_files(run.files),
        "approvals": pending_approvals[:MAXIMUM_APPROVALS],
        "console_url": _build_console_url(outbox, run.session_id),
    }

    event_id = new_id()
    body_without_content = _encode(event, at, data)
    for webhook in selected:
        body = body_without_content
        if webhook.content:
            body = _encode_with_content(event, at, data, run.content)
        yield from webhooks.create(
            webhooks.NewDelivery(new_id(), event_id, webhook.id, event, run_id, body, now())
        )


def _list_files(stored: str | None) -> dict[str, list[str]]:
    """Return the ids of the files of the message of a run, and of those that it has saved."""
    files: dict[str, list[str]] = {"input_files": [], "saved_files": []}
    for file in orjson.loads(stored or "[]"):
        origin = "saved_files" if is_saved(file) else "input_files"
        files[origin].append(file["file_id"])
    return files


@unit
def publish_decision(outbox: Outbox, row: ApprovalRow) -> Steps[None]:
    """Store the event of an approval that was decided, or has expired, in this transaction.

    The event belongs to the component that has asked, and to the component of the root run: an
    endpoint of a team gets the decisions about its members, as it gets the pauses of the team.
    """
    if not outbox.is_used:
        return

    event = "approval.expired" if row.status == "expired" else "approval.decided"
    component_ids = [row.component_id]
    root_run = yield from webhooks.get_reported_run(row.root_run_id)
    if root_run is not None:
        component_ids.append(root_run.component_id)

    selected = outbox.select(event, *component_ids)
    if not selected:
        return

    at = row.decided_at or now()
    data = {
        **{name: getattr(row, name) for name in _DECISION_FIELDS},
        "created_at": format_rfc3339(row.created_at),
        "decided_at": format_rfc3339(at),
        "decided_by": row.decided_by,
        "console_url": _build_console_url(outbox, row.session_id),
    }

    yield from _deliver(selected, event, at, data, row.root_run_id)


@unit
def publish_halt(outbox: Outbox, row: HaltRow) -> Steps[None]:
    """Store the event of a halt that was created or has ended in this transaction.

    The halt of an agent, a team or a workflow belongs to this component; any other one concerns
    all of them.
    """
    if not outbox.is_used:
        return

    event = "halt.created" if row.ended_at is None else "halt.ended"
    is_of_component = row.scope in KINDS
    selected = outbox.select(event, row.scope_id or "", concerns_all=not is_of_component)
    if not selected:
        return

    at = row.ended_at or row.created_at
    data = {
        **{name: getattr(row, name) for name in ("halt_id", "scope", "scope_id", "reason")},
        "stop_running": bool(row.stop_running),
        "created_by": row.created_by,
        "created_at": format_rfc3339(row.created_at),
        "until": format_optional_time(row.until),
        "ended_at": format_optional_time(row.ended_at),
        "ended_by": row.ended_by,
    }

    yield from _deliver(selected, event, at, data, "")


class WarnedBudget(NamedTuple):
    """The event of a budget that has reached the level of its warning."""

    budget_id: str
    per: str
    user_id: str | None
    component_id: str | None
    period: str
    unit: str
    limit: float
    warn_at: float

    run_id: str
    """The run that has found it."""

    since: str
    resets_at: str


@unit
def publish_budget(outbox: Outbox, budget: WarnedBudget, at: int) -> Steps[None]:
    """Store the event of the warning of a budget in this transaction.

    The budget of a component belongs to it; any other one concerns all components.
    """
    if not outbox.is_used:
        return

    event = "budget.warning"
    is_of_component = budget.component_id is not None
    selected = outbox.select(event, budget.component_id or "", concerns_all=not is_of_component)
    yield from _deliver(selected, event, at, budget._asdict(), budget.run_id)


def _deliver(
    selected: Sequence[Webhook], event: str, at: int, data: dict[str, Any], run_id: str
) -> Steps[None]:
    """Store a delivery of an event for each endpoint.

    Args:
        at: the time of the fact in microseconds UTC.
        run_id: the root run that it belongs to; empty for a fact about no run.
    """
    event_id = new_id()
    body = _encode(event, at, data)
    for webhook in selected:
        yield from webhooks.create(
            webhooks.NewDelivery(new_id(), event_id, webhook.id, event, run_id, body, now())
        )


def _build_console_url(outbox: Outbox, session_id: str) -> str | None:
    return f"{outbox.console}#/sessions/{session_id}" if outbox.console else None


def _encode(event: str, at: int, data: dict[str, Any]) -> str:
    return orjson.dumps({"type": event, "timestamp": format_rfc3339(at), "data": data}).decode()


def _encode_with_content(event: str, at: int, data: dict[str, Any], content: str | None) -> str:
    """Return the body with the beginning of the answer of a run."""
    length = len(content or "")
    while True:
        part = None if content is None else content[:length]
        body = _encode(event, at, {**data, "content": part, "content_cut": part != content})
        if length == 0 or len(body.encode()) < MAXIMUM_BODY:
            return body
        # A character takes at least a byte: no longer part fits.
        length = min(length * 3 // 4, MAXIMUM_BODY)
