"""The events of a run in the form that clients receive (docs/contract.md "Events")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from agentctl.records.approvals import ApprovalRow
from agentctl.records.events import END_KINDS, EVENT_NAMES, EventKind
from agentctl.records.run_spec import Origin
from agentctl.records.runs import FinalStatus, RunRow
from agentctl.records.times import format_optional_time, format_rfc3339, now, whole_seconds
from agentctl.runs.log.event_rows import Piece, RunIdentity, find_frame
from agentctl.runs.states import Ending
from agentctl.runtime.pauses import Decided
from agentctl.runtime.transcript.events import Content, RunEvent, ThinkingDelta
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.repositories.sessions import NO_USAGE

LOST_SEQ_STEP = 1_000_000
"""Distance between the number of the last stored event of an orphaned run and that of its end.
Event numbers only grow, and the dead worker may have delivered events that were never stored."""

UNRECORDED_EVENTS = 2
"""Number of events of a run without stored events: its content, and its end or its pause."""


def identify_run(run: RunRow, component_name: str | None) -> RunIdentity:
    """Return the fields of the events of a stored run.

    Args:
        component_name: None if it is unknown: the component may not be configured here.
    """
    return RunIdentity(
        run.run_id,
        run.session_id,
        run.parent_run_id,
        run.component_type,
        run.component_id,
        component_name or run.component_id,
    )


def format_started(
    run: RunIdentity,
    origin: Origin | None = None,
    at: int | None = None,
    version: Mapping[str, Any] = {},
) -> tuple[str, bytes]:
    """Return name and data of `RunStarted`, `TeamRunStarted` or `WorkflowStarted`.

    Args:
        version: `version` of the component, and its `version_change`, as far as there are any.
    """
    named: dict[str, Any] = {}
    if origin is not None:
        named = {"origin_run_id": origin.run_id, "origin_kind": origin.kind, "origin_at": origin.at}
    return _format(run, EventKind.STARTED, {**named, **version}, at)


def format_queued(run: RunIdentity, position: int, at: int) -> tuple[str, bytes]:
    """Return name and data of the first event of a run that waits in the queue.

    Args:
        position: its place in the queue of its session, from 1.
    """
    fields = {"queue_position": position, "queued_at": format_rfc3339(at)}
    return _format(run, EventKind.QUEUED, fields, at)


def format_paused(
    run: RunIdentity, approvals: Sequence[Mapping[str, Any]], at: int
) -> tuple[str, bytes]:
    """Return name and data of the event of a pause.

    Args:
        approvals: what the run waits for, as its record and `GET /approvals` name it.
    """
    return _format(run, EventKind.PAUSED, {"approvals": approvals}, at)


def format_continued(
    run: RunIdentity,
    attempt: int,
    content: str,
    decisions: Sequence[Decided],
    at: int | None = None,
    version: Mapping[str, Any] = {},
) -> tuple[str, bytes]:
    """Return name and data of the event of a new leg.

    Args:
        content: the content of the legs before it.
        decisions: of the run so far, without those of its members.
        version: as of `format_started`, with the change before the leg.
    """
    approvals = [
        {
            "approval_id": each.approval_id,
            "kind": each.kind,
            "status": each.status,
            "tool_call_id": each.tool_call_id,
            "tool_name": each.tool_name,
            "arguments": each.arguments,
            "created_at": each.created_at and format_rfc3339(each.created_at),
            "decided_at": each.decided_at and format_rfc3339(each.decided_at),
            "decided_by": each.decided_by,
            "note": each.note,
        }
        for each in decisions
    ]
    values = {"attempt": attempt, "content": content, "approvals": approvals}
    return _format(run, EventKind.CONTINUED, {**values, **version}, at)


def format_event(run: RunIdentity, event: RunEvent) -> tuple[str, bytes, Piece | None]:
    """Return name and data of an event of the component, and its piece if it has one of a text."""
    if not isinstance(event, Content | ThinkingDelta):
        fields = {name: getattr(event, name) for name in event.__slots__}
        return *_format(run, event.kind, fields), None
    if isinstance(event, ThinkingDelta):
        frame = find_frame(run, event.kind, ())
    elif event.origin is not None:
        frame = find_frame(run, event.kind, tuple(event.origin.items()))
    else:
        frame = run.content_frame
    piece = Piece(frame, now(), event.delta)
    return frame.name, frame.format(event.delta, piece.at), piece


def format_end(
    run: RunIdentity, ending: Ending, transcript: Transcript, at: int | None = None
) -> tuple[str, bytes]:
    """Return name and data of the last event, with the partial or complete content."""
    at = now() if at is None else at
    reason = transcript.finish_reason
    return _format_final(run, ending, transcript.content, dict(transcript.metrics), at, reason)


def format_stored_run(
    run: RunRow, component_name: str, approvals: Sequence[Mapping[str, Any]] = ()
) -> list[tuple[int, str, bytes]]:
    """Build the events of a run that has no stored events from its row.

    Args:
        approvals: what a paused run waits for.

    Returns:
        Number, name and data of its content, if any, and of its end or its pause. A worker that
        died may have delivered events of its run, so the end of such a run has a number after all
        of those.
    """
    identity = identify_run(run, component_name)
    content = run.content or ""
    at = (run.paused_at if run.status == "PAUSED" else run.finished_at) or now()
    frame = identity.content_frame
    before = [(0, frame.name, frame.format(content, at))] if content else []
    if run.status == "PAUSED":
        return [*before, (1, *format_paused(identity, approvals, at))]
    ending = Ending(
        cast(FinalStatus, run.status),
        error_code=run.error_code,
        error_detail=run.error_detail,
        reason=run.cancel_reason,
    )
    end = _format_final(identity, ending, content, orjson.loads(run.metrics or NO_USAGE), at)
    return [*before, (1 if run.attempt == 1 else LOST_SEQ_STEP - 1, *end)]


def _format_final(
    run: RunIdentity,
    ending: Ending,
    content: str,
    metrics: dict[str, Any],
    at: int,
    finish_reason: str | None = None,
) -> tuple[str, bytes]:
    fields: dict[str, Any] = {"content": content}
    if ending.status == "COMPLETED":
        fields["metrics"] = metrics
        if finish_reason is not None:
            fields["finish_reason"] = finish_reason
    elif ending.status == "CANCELLED":
        fields["reason"] = ending.reason
    else:
        fields["error"] = {"code": ending.error_code, "detail": ending.error_detail}
    return _format(run, END_KINDS[ending.status], fields, at)


def _format(
    run: RunIdentity, kind: EventKind, fields: dict[str, Any], at: int | None = None
) -> tuple[str, bytes]:
    name = EVENT_NAMES[run.kind][kind]
    at = now() if at is None else at
    times = {"created_at": whole_seconds(at), "at": format_rfc3339(at)}
    body = {"event": name, **times, **run.list_members(), **fields}
    # Copy the bytes: events stay in memory, and the result of orjson keeps its 4 KB buffer alive.
    return name, bytes(memoryview(orjson.dumps(body)))


def describe(row: ApprovalRow) -> dict[str, Any]:
    """Return the part of the event of a pause about an approval."""
    return {
        "approval_id": row.approval_id,
        "kind": row.kind,
        "status": row.status,
        "policy": row.policy,
        "tool_call_id": row.tool_call_id,
        "tool_name": row.tool_name,
        "arguments": orjson.loads(row.arguments),
        "arguments_hash": row.arguments_hash,
        "question": row.question,
        "schema": None if row.schema is None else orjson.loads(row.schema),
        "expires_at": format_optional_time(row.expires_at),
    }
