"""Legs: how a run pauses, and what its next leg starts from.

A run that waits has its checkpoint in the database and nothing in memory, so any process can
continue it. Every transition is one transaction (decision 79).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Protocol, cast

import orjson

from agentctl.config.approvals import Approvals
from agentctl.records.approvals import ApprovalRow, hash_call
from agentctl.records.kinds import ComponentRef
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunPause, RunState, VersionChange
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.desk.decisions import build_row, close_question, is_question
from agentctl.runs.desk.waiting import lock_queue
from agentctl.runs.life.admission import Admission, HeldSlots, LegInput
from agentctl.runs.life.live import LiveRun, RunServices
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import describe_approval
from agentctl.runs.log.fold import PAUSE, START, StoredLog, find_root_id, load_log
from agentctl.runs.log.results import encode_counters, encode_requests, take_counters, to_json
from agentctl.runs.states import Pause, RunCounters, is_final, is_settled
from agentctl.runtime.context import EarlierRun, MemberResult, MemberStatus
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Ask, DecidedCall, Leg
from agentctl.runtime.transcript.history import StateChanges
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import (
    accounts,
    approvals,
    events,
    queue,
    quotas,
    run_reads,
    runs,
    sessions,
)
from agentctl.store.repositories.approvals import Checkpoint
from agentctl.store.repositories.quotas import Counters
from agentctl.store.repositories.runs import NewVersion
from agentctl.store.visibility import EVERYONE
from agentctl.webhooks.facts import publish_run

LOST_EVENTS = event_rows.LOST_SEQ_STEP

MAXIMUM_PENDING = 10_000
"""Pending approvals of one database; a run that asks for more ends with APPROVALS_FULL."""

_ACCOUNT = "sa:"

PauseOutcome = Literal["paused", "continues", "cancelled", "full", "ended"]


@dataclass(frozen=True, slots=True)
class PreparedPause:
    """Everything that the transaction of a pause writes."""

    values: RunPause
    """The columns of the row of the run."""

    rows: Sequence[ApprovalRow]
    """The approvals that the run asks for."""

    checkpoint: Checkpoint

    event: tuple[str, bytes]
    """Name and data of the last event of the leg."""

    batch: events.Batch | None
    """The last events; None for a run whose events are not stored, or are events of its root."""

    used: tuple[int, int]
    """Tokens and cost for budgets. No check reports them while the run waits."""


def prepare_pause(
    run: LiveRun, pause: Pause, settings: Approvals, used: tuple[int, int]
) -> PreparedPause:
    """Build the rows of a pause. The results of the run are those at this moment.

    Args:
        used: tokens and cost for budgets (`LiveRun.measure_usage`).

    Raises:
        TypeError: the state of the component has no JSON form.
    """
    at = run.finished_at or now()
    # The times differ by one microsecond, so that lists have them in the order of the component.
    rows = [
        build_approval(run, ask, at + number, settings) for number, ask in enumerate(pause.asks)
    ]
    event = event_rows.format_paused(run.identity, [describe_approval(row) for row in rows], at)

    transcript = run.transcript
    transcript.end_answer([])
    earlier_runs, earlier_facts = _dump_earlier_runs(run.earlier_runs)

    values = RunPause(
        run_id=run.run_id,
        attempt=run.attempt,
        status="PAUSED",
        paused_at=at,
        content=transcript.content,
        messages=to_json(transcript.messages),
        tools=to_json(transcript.tools),
        **encode_counters(transcript)._asdict(),
        spans=to_json(transcript.spans.records()),
        requests=encode_requests(transcript),
    )

    body = {
        "spec": run.spec.to_json(),
        "transcript": transcript.to_json(),
        "state": pause.state,
        "component_name": run.component.name,
        "is_first": run.is_first,
        "next_step": 0 if run.journal is None else run.journal.next_step,
        "earlier_runs": earlier_runs,
        "earlier_facts": earlier_facts,
        "summary": run.summary,
        "previous_instructions": run.previous_instructions,
    }

    checkpoint = Checkpoint(run.run_id, run.attempt, PAUSE, to_json(body))
    batch = run.stream.last_batch(event) if run.stream_recorder is not None else None
    return PreparedPause(values, rows, checkpoint, event, batch, used)


def build_approval(run: LiveRun, ask: Ask, at: int, settings: Approvals) -> ApprovalRow:
    """Build the row of something that a run asks for.

    Args:
        at: the time of the question in microseconds UTC.
        settings: has the time after which it expires.
    """
    # The caller of the run gives the results of the tools of its request, often at once.
    is_of_caller = ask.kind == "external" and ask.tool_name in _list_client_tools(run.spec)
    expire_seconds = settings.client_seconds if is_of_caller else settings.expire_seconds
    return build_row(
        run.spec,
        run.root.run_id,
        at,
        kind=ask.kind,
        policy=ask.policy,
        tool_call_id=ask.tool_call_id,
        tool_name=ask.tool_name,
        idempotent=int(ask.idempotent),
        arguments_hash=hash_call(run.run_id, ask.tool_call_id, ask.tool_name, ask.arguments),
        expires_at=at + expire_seconds * 1_000_000 if expire_seconds else None,
        question=ask.question,
        arguments=to_json(ask.arguments),
        schema=None if ask.schema is None else to_json(ask.schema),
    )


def _dump_earlier_runs(
    earlier_runs: Sequence[EarlierRun],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return earlier runs as two lists of JSON objects, which `_load_earlier_runs` joins again.

    A program of an earlier release knows only the fields in the first list. The second list has the
    other fields of each run.
    """
    known_names = ("messages", "native", "from_request")
    known_fields: list[dict[str, Any]] = []
    other_fields: list[dict[str, Any]] = []

    for earlier_run in earlier_runs:
        values = asdict(earlier_run)
        known_fields.append({name: values.pop(name) for name in known_names})
        other_fields.append(values)
    return known_fields, other_fields


def _load_earlier_runs(body: Mapping[str, Any]) -> list[EarlierRun]:
    """Return the earlier runs of a checkpoint; see `_dump_earlier_runs`."""
    known_fields = body["earlier_runs"] or ()
    # The checkpoint of an earlier release has no such list.
    other_fields = body.get("earlier_facts") or itertools.repeat({})
    return [
        EarlierRun(**known, **other)
        for known, other in zip(known_fields, other_fields, strict=False)
    ]


def _list_client_tools(spec: RunSpec) -> set[str]:
    """Return the names of the tools that the request of a run defines, and its caller executes."""
    return {tool["name"] for tool in orjson.loads(spec.client_tools or "[]")}


def _lock_order(run: LiveRun) -> list[LiveRun]:
    """Return the runs above a run whose rows are locked before its own, in this order.

    From the top down, the order in which decisions, cancels and ends lock the runs of a tree.
    Without these locks a member could pause after the end of its root has cancelled the members
    that were paused then, and nothing would end it.
    """
    if run.parent is None:
        return []
    if run.parent is run.root:
        return [run.root]
    return [run.root, run.parent]


@unit
def write_pause(run: LiveRun, prepared: PreparedPause) -> Steps[PauseOutcome]:
    """Store a pause: approvals, checkpoint, last events and the status, in one transaction.

    A member locks its root run and its parent first: their end, which cancels the members that are
    paused, comes before it or after it.

    Returns:
        `continues` if everything was decided meanwhile: the run is PENDING then. `cancelled` and
        `full` if nothing was written; `ended` if another process has ended the run or its attempt.
    """
    for ancestor in _lock_order(run):
        state = yield from run_reads.lock_state(ancestor.run_id)
        if state is None or is_final(state.status):
            return "cancelled"

    state = yield from run_reads.lock_state(run.run_id)
    if state is None:
        return "ended"
    if state.status != "RUNNING" or state.attempt != run.attempt:
        # An earlier attempt of this write may have been committed with an unknown outcome.
        written_attempt = yield from approvals.get_checkpoint_attempt(run.run_id)
        if written_attempt == run.attempt and not is_final(state.status):
            return "paused" if state.status == "PAUSED" else "continues"
        return "ended"
    if state.cancel_requested_at is not None:
        return "cancelled"

    if prepared.rows:
        # Before the first write: the outcome `full` must leave nothing.
        pending_count = yield from approvals.count_pending(MAXIMUM_PENDING)
        if pending_count + len(prepared.rows) > MAXIMUM_PENDING:
            return "full"

    yield from approvals.create(prepared.rows)
    yield from approvals.keep_checkpoint(prepared.checkpoint)
    if prepared.batch is not None:
        yield from events.append_batch(run.run_id, *prepared.batch[1:])
    if any(prepared.used):
        yield from quotas.report(run.run_id, *prepared.used)

    values = prepared.values
    # The approvals of members may have been decided while the root was RUNNING. The last decision
    # could not release it, and no further one follows: the root continues at once.
    if run.parent is None and not (yield from approvals.count_pending_of_root(run.run_id)):
        values = replace(values, status="PENDING")
    yield from runs.pause(values)
    if values.status == "PAUSED":
        yield from publish_run(run.database.outbox, run.run_id)

    changes = run.state_changes
    if changes is not None:
        yield from sessions.merge_state(run.spec.session_id, changes.values, changes.removed)
    return "continues" if values.status == "PENDING" else "paused"


@dataclass(frozen=True, slots=True)
class ClaimedLeg:
    """A leg that this process has claimed: the rows from which it starts."""

    state: RunState
    """The run after the claim."""

    log: StoredLog

    rows: Sequence[ApprovalRow]
    """The approvals of the run, decided and pending."""

    session_state: str | None
    """The state of the session as JSON; None if it has none."""

    last_event: int
    """Number of the last stored event; -1 without events."""

    has_effects: bool = False
    """True if the leg before it was lost after it had begun calls that cannot be repeated.

    The run has to end then.
    """

    lets_begin: bool = False
    """True if the claim lets another run of the session begin."""

    new_version: NewVersion = NewVersion(None)
    """The version of the component that executes it."""

    counters: Counters = Counters()
    """The use that lost legs have reported."""

    @property
    def was_lost(self) -> bool:
        """True if a worker that died may have delivered events of its leg that were not stored."""
        return self.log.has_lost_leg(self.state.attempt)

    def has_expired_call(self, spec: RunSpec) -> bool:
        """Return True if the caller of the run did not give the result of a tool of its request."""
        tools = _list_client_tools(spec)
        return any(row.status == "expired" and row.tool_name in tools for row in self.rows)


class LegHost(Protocol):
    """The engine of this process, as members and claims start runs with it."""

    counters: RunCounters

    held_slots: HeldSlots

    services: RunServices
    """The objects that the process gives to each of its runs."""

    @property
    def free_slots(self) -> int:
        """Number of root runs that the process would start now."""

    async def start(self, run: LiveRun, admit: Callable[[str], Work[Admission]]) -> Admission:
        """Commit the row of a run, and start its work unless it waits in the queue."""

    def execute_leg(self, run: LiveRun, claimed: ClaimedLeg) -> None:
        """Start the work of a claimed leg."""


@unit
def claim_leg(
    run_id: str, worker_id: str, version: str | None, *, is_repeated: bool = False
) -> Steps[ClaimedLeg | None]:
    """Claim the next leg of a root run; None if there is none, or it is claimed already.

    The leg of a run that waited in the queue is its first one. The `session_state` of its request
    is stored now, and the next run of the session may begin if it waits for the begin only.

    Args:
        version: the version of the component that executes the leg.
        is_repeated: True if the outcome of an attempt of the same claim is unknown: a leg that the
            worker has was claimed by that attempt.
    """
    # The session of a queued run first: the end of another run locks both in this order.
    state = yield from run_reads.get_state(run_id)
    yield from lock_queue(state)
    state = yield from run_reads.lock_state(run_id)
    if state is None or state.parent_run_id is not None:
        return None

    # Before the claim, which ends the mark of the effects.
    has_effects = bool((yield from run_reads.has_leg_effects(run_id)))

    at = now()
    new_version = build_new_version(state, version, at)
    lets_begin = False
    if (yield from runs.claim_leg(run_id, worker_id, at, new_version)):
        if new_version.version_change is not None:
            yield from close_question(run_id, at)
        if state.queue_turn is not None:
            lets_begin = yield from begin_queued(state, at)
    elif not is_repeated or (state.status, state.owner) != ("RUNNING", worker_id):
        # A worker that has read the leg before it claimed it must not execute it twice.
        return None

    claimed = yield from _load_leg(run_id, has_effects=has_effects)
    if claimed is None:
        return None
    return replace(claimed, lets_begin=lets_begin, new_version=new_version)


def build_new_version(state: RunState, version: str | None, at: int) -> NewVersion:
    """Return the version with which a run continues, with the change if it is another version.

    Args:
        version: the version of the component; None if it has none.
        at: the time of the change in microseconds UTC.
    """
    before = state.version
    if version is None or before in (None, version):
        return NewVersion(version)
    change = VersionChange(before=before, after=version, at=format_rfc3339(at))
    return NewVersion(version, to_json(change))


@unit
def begin_queued(state: RunState, at: int) -> Steps[bool]:
    """Store the `session_state` of a run that had its turn, and let the next run begin.

    The row of its session is locked.

    Returns:
        True if a server may claim another run of the session now.
    """
    lets_begin = yield from queue.advance(state.session_id, at)
    if state.attempt > 1 or state.queued_at is None:
        return lets_begin

    checkpoint = yield from approvals.load_checkpoint(state.run_id)
    if checkpoint is None:
        return lets_begin

    body = StoredLog(checkpoint).body
    text = body["spec"]["session_state"]
    # The first run has created the session with its state.
    if text and not body["is_first"]:
        yield from sessions.merge_state(state.session_id, orjson.loads(text))
    return lets_begin


@unit
def claim_member(
    run_id: str, worker_id: str, version: str | None, component: ComponentRef | None
) -> Steps[ClaimedLeg | None]:
    """Claim the leg of a paused member for the leg of its parent.

    The worker must execute its root run, without a cancel of it.

    Args:
        version: the version of the component.
        component: the component that continues; None for a member of a library, whose code its
            parent has.

    Returns:
        None if the member does not wait, or waits for people: another member may have let its
        parent continue.

    Raises:
        ExecutionError: it is a run of another component, whose calls this one must not make.
    """
    # The root run first, as a decision and a cancel lock it.
    state = yield from run_reads.get_state(run_id)
    root_id = run_id
    if state is not None:
        root_id = yield from find_root_id(state)
    root = yield from run_reads.lock_state(root_id)
    if root is None or (root.status, root.owner) != ("RUNNING", worker_id):
        return None

    state = yield from run_reads.lock_state(run_id)
    if state is None or root.cancel_requested_at is not None:
        return None
    if component not in (None, (state.component_type, state.component_id)):
        raise ExecutionError("VERSION_CHANGED")
    if (yield from approvals.has_pending(run_id)):
        return None

    new_version = build_new_version(state, version, now())
    was_claimed = yield from runs.claim_member(run_id, worker_id, new_version)
    if not was_claimed and (state.status, state.owner) != ("RUNNING", worker_id):
        # A member that this worker already has is the claim of an earlier attempt, whose commit had
        # an unknown outcome.
        return None

    claimed = yield from _load_leg(run_id)
    if claimed is None:
        return None
    return replace(claimed, new_version=new_version)


def _load_leg(run_id: str, *, has_effects: bool = False) -> Steps[ClaimedLeg | None]:
    """Read what a claimed leg starts from; None if the run has no checkpoint any more."""
    state = yield from run_reads.get_state(run_id)
    log = yield from load_log(run_id)
    if state is None or log is None:
        return None

    rows = yield from approvals.list_of_run(run_id)
    session_state = yield from sessions.get_state(state.session_id)
    last_event = yield from events.get_last_seq(run_id)
    claimed = ClaimedLeg(state, log, rows, session_state, last_event, has_effects)
    if not claimed.was_lost:
        return claimed

    counters = yield from quotas.read_counters(run_id)
    return replace(claimed, counters=counters)


def build_leg_input(claimed: ClaimedLeg) -> tuple[RunSpec, LegInput]:
    """Return the specification and the start of a claimed leg."""
    body = claimed.log.fold()
    spec = replace(
        RunSpec.from_json(body["spec"]),
        # No response waits for this leg: its followers read its events.
        recorded=True,
        # It is claimed already.
        background=False,
    )
    spec = replace(spec, version=claimed.new_version.version or spec.version)

    last_event = claimed.last_event
    if claimed.log.checkpoint.kind != START:
        # The events of a run that recorded none are built from its row.
        last_event = max(last_event, event_rows.UNRECORDED_EVENTS - 1)
    # A worker that died may have delivered events that were never stored.
    first_event = last_event + (LOST_EVENTS if claimed.was_lost else 1)

    transcript = Transcript.from_json(body["transcript"])
    take_counters(transcript, claimed.counters)

    state_changes: StateChanges | None = None
    changed_at = 0
    changes = body["session_changes"]
    if changes is not None:
        changed_at = changes.pop("at")
        state_changes = StateChanges(**changes)

    return spec, LegInput(
        attempt=claimed.state.attempt,
        leg=_build_leg(claimed, body["state"]),
        transcript=transcript,
        has_checkpoint=True,
        first_event=first_event,
        steps=claimed.log.steps,
        first_step=body.get("next_step", 0),
        session_changes=state_changes,
        changed_at=changed_at,
        earlier_runs=_load_earlier_runs(body),
        summary=body["summary"],
        previous_instructions=body["previous_instructions"],
        is_first=body["is_first"],
        version_change=claimed.new_version.version_change,
        has_messages=claimed.state.messages_sent > 0,
    )


def _build_leg(claimed: ClaimedLeg, state: Any) -> Leg | None:
    """Return what the component gets: its state and the decisions; None if it has done nothing."""
    if state is None:
        return None

    # After a lost leg, the component publishes the ends of calls again: their events may not be
    # stored. Otherwise all events of the calls that have ended are stored.
    state["announces"] = claimed.was_lost

    decisions: list[DecidedCall] = []
    for row in claimed.rows:
        # The answer about a lost call is part of the approval of that call.
        if row.status != "pending" and row.kind != "outcome" and not is_question(row):
            decisions.append(to_decision(row))

    has_new_version = claimed.new_version.version_change is not None
    return Leg(state, decisions, has_new_version)


def to_decision(row: ApprovalRow) -> DecidedCall:
    """Return a decided approval as the next leg reads it."""
    # Most fields are the columns of the same names. The row has JSON texts for the others.
    values: dict[str, Any] = {
        field.name: getattr(row, field.name, None) for field in fields(DecidedCall)
    }
    values |= {
        "arguments": orjson.loads(row.approved_arguments or row.arguments),
        "is_edited": row.approved_arguments is not None,
        "answer": orjson.loads(row.answer or "null"),
        "result": orjson.loads(row.result or "null"),
    }
    return DecidedCall(**values)


@unit
def read_waiting_member(run_id: str) -> Steps[MemberResult | None]:
    """Return the stored result of a member's run that has ended or is paused, else None."""
    row = yield from run_reads.get(run_id, EVERYONE)
    if row is None or not is_settled(row.status):
        return None

    return MemberResult(
        status=cast(MemberStatus, row.status),
        content=row.content or "",
        error_detail=row.error_detail,
        error_code=row.error_code,
        run_id=run_id,
    )


@unit
def is_revoked(actor: str | None, at: int) -> Steps[bool]:
    """Return True if a run was started by a service account that is not valid any more."""
    if actor is None or not actor.startswith(_ACCOUNT):
        return False
    account = yield from accounts.get(actor.removeprefix(_ACCOUNT))
    return account is None or not account.is_valid_at(at)
