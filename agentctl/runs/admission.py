"""Admission of runs: the session and the run's row are written in one transaction, before any
work starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from agentctl import errors
from agentctl.config.settings import Limits
from agentctl.records.run_spec import RunSpec
from agentctl.records.text import cut_text
from agentctl.records.times import now
from agentctl.runs import event_format
from agentctl.runs.starts import build_start
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.records import build_session_data
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import (
    approvals,
    events,
    idempotency,
    queue,
    quotas,
    run_reads,
    runs,
    sessions,
)
from agentctl.store.repositories.run_rows import NewRun
from agentctl.store.visibility import Visibility

SESSION_NAME_LENGTH = 60
"""Characters of the first message that become the name of a session (docs/contract.md
"Sessions")."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The identity of a repeatable request: two requests with equal fields are the same one."""

    principal: str
    key: str
    body_hash: str


class IdempotentReplay(Exception):
    """The idempotency key of the submission already has a run; nothing was written."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class Submission:
    """A request for a root run, checked as far as possible without the database.

    Attributes:
        actor: the principal that starts it, as rows name it.
        visibility: the existing sessions that the run may use.
        outlives_caller: True if the run continues when its client disconnects.
        idempotency: identity of a request with an idempotency key (docs/contract.md "Runs"), or
            None.
        extra_write: builds further writes for the transaction of the row; None for none.
    """

    spec: RunSpec
    component: Component
    actor: str
    visibility: Visibility
    outlives_caller: bool
    idempotency: Idempotency | None = None
    extra_write: Callable[[], Work[None]] | None = None

    @property
    def can_wait(self) -> bool:
        """True if the run waits in the queue when all slots of the process are taken."""
        return self.spec.background or self.component.on_busy == "enqueue"


@dataclass(frozen=True, slots=True)
class AdmittedRun:
    """The values of a committed row that its run needs.

    Attributes:
        spec: the specification, with the user of the row: the owner of its session.
        session_state: the state of the session as JSON at the admission of a root run, or None.
        is_first: True if the session was created with the run.
        has_start: True if the run has a start checkpoint.
        is_queued: True if it waits in the queue: no process executes it yet.
        may_begin: True if it waits, and any server may begin it now.
    """

    spec: RunSpec
    session_state: str | None = None
    is_first: bool = False
    has_start: bool = False
    is_queued: bool = False
    may_begin: bool = False


@unit
def admit_run(
    submission: Submission, catalog: Catalog, worker_id: str, *, is_full: bool = False
) -> Steps[AdmittedRun]:
    """Get or create the session and write the row of a root run.

    The `session_state` of the request replaces top-level keys of the session's state in the same
    transaction (docs/contract.md "Runs"); that of a queued run when it begins.

    Args:
        is_full: True if all slots of the process are taken: the run has to wait.

    Raises:
        NotFound: the session is not visible to the caller.
        Conflict: the session is of another kind, or it is busy and the component rejects that.
        IdempotentReplay: the request was made before.
        QuotaExceeded: the owner of the session has as much as the quotas allow.
        TooManyRequests: the queue is full.
        TooLarge: the state of the session would be too large.
        ValidationFailed: its idempotency key was used for another request.
    """
    spec, component = submission.spec, submission.component
    if submission.idempotency is not None:
        # The key first: a repeat returns its run, even if that run keeps the session busy.
        yield from claim_key(spec.run_id, submission.idempotency)
    name = cut_text(" ".join(spec.input.split()), SESSION_NAME_LENGTH)
    new = sessions.build_session(
        spec.session_id,
        component.kind,
        user_id=spec.user_id,
        now=now(),
        component_id=component.id,
        component_name=component.name,
        component_data=orjson.dumps(build_session_data(catalog, component)).decode(),
        session_name=name,
        session_state=spec.session_state,
        # A background run waits for its claim: the response to its start shows it as PENDING.
        first_status="PENDING" if is_full else spec.first_status,
    )
    session = yield from sessions.get_or_create_for_run(new, submission.visibility)
    if isinstance(session, sessions.UnusableSession):
        if not submission.visibility.sees(session.row.user_id):
            raise errors.NotFound("Session not found")
        stored = session.row
        raise errors.Conflict(
            f"The session {stored.session_id} is for runs of {stored.session_type}s, not of"
            f" {component.kind}s",
            cause=f"its first run was one of the {stored.session_type} {stored.component_id}",
            hint="choose another session: --session NEW",
        )
    turn = queue.AFTER_QUEUE if is_full else None
    if component.on_busy != "allow":
        busy = yield from run_reads.list_open_in_session(spec.session_id)
        if busy and component.on_busy == "reject":
            raise errors.Conflict(f"The session is busy with run {busy[0]}")
        if busy or (is_full and component.on_busy == "enqueue"):
            turn = queue.AFTER_RUNS
    position = 0
    if turn is not None:
        position = 1 + (yield from _check_queue(spec, catalog.settings.limits))
    # Not the caller: the owner of the session sees all runs in it (docs/decisions/0007).
    spec = _with_user(spec, session.user_id)
    at, is_first = now(), session is new
    row = NewRun(spec, worker_id if turn is None else None, at, name, turn)
    if (yield from runs.create(row, 1 if is_first else None)) is None:
        raise errors.NotFound("Session not found")
    if has_start := turn is not None or spec.durable:
        start = build_start(spec, component.name, is_first=is_first)
        yield from approvals.keep_checkpoint(start)
    state = session.session_state
    changes = {} if is_first else orjson.loads(spec.session_state or "{}")
    if changes:
        if turn is None:
            state = yield from sessions.merge_state(spec.session_id, changes)
        else:
            state = orjson.dumps(orjson.loads(state or "{}") | changes).decode()
        limit = max(
            catalog.settings.limits.state_bytes, len((session.session_state or "").encode())
        )
        if len((state or "").encode()) > limit:
            raise errors.TooLarge(f"The session state would be larger than {limit} bytes")
    if submission.extra_write is not None:
        yield from submission.extra_write()
    yield from quotas.check_added(
        catalog.settings.quotas, spec.user_id, "sessions" if is_first else None
    )
    if turn is None:
        return AdmittedRun(spec, state, is_first, has_start)
    identity = event_format.RunIdentity(
        spec.run_id, spec.session_id, None, component.kind, component.id, component.name
    )
    event, data = event_format.format_queued(identity, position, at)
    yield from events.append_batch(spec.run_id, 1, 0, 0, f"{event} {data.decode()}\n")
    may_begin = yield from queue.add(spec.session_id, at)
    return AdmittedRun(spec, state, is_first, has_start, is_queued=True, may_begin=may_begin)


@unit
def _check_queue(spec: RunSpec, limits: Limits) -> Steps[int]:
    """Return the number of runs that wait in the session of a run that has to wait, too."""
    if spec.dependencies is not None:
        # Another process may begin the run, and dependencies are never stored.
        raise errors.Conflict(
            "The run would have to wait, and dependencies are not stored",
            hint="send the request without dependencies, or when the session is idle",
        )
    waiting = yield from queue.count_in_session(spec.session_id, limits.queue_per_session)
    if waiting >= limits.queue_per_session:
        raise errors.TooManyRequests("Too many runs wait in the queue of the session")
    if (yield from queue.count(limits.queued_runs)) >= limits.queued_runs:
        raise errors.TooManyRequests("Too many runs wait in the queue")
    return waiting


def _with_user(spec: RunSpec, user_id: str | None) -> RunSpec:
    return spec if spec.user_id == user_id else replace(spec, user_id=user_id)


@unit
def claim_key(run_id: str, request: Idempotency) -> Steps[None]:
    """Claim the key of a request for a run.

    Raises:
        IdempotentReplay: the request was made before.
        ValidationFailed: the key was used for another request.
    """
    earlier = yield from idempotency.claim_key(
        request.principal, request.key, request.body_hash, run_id, now()
    )
    if earlier is None:
        return
    if earlier.body_hash != request.body_hash:
        raise errors.ValidationFailed("The Idempotency-Key was used for another request")
    raise IdempotentReplay(earlier.run_id)


@unit
def admit_child_run(spec: RunSpec, worker_id: str) -> Steps[AdmittedRun]:
    """Write the row of a child: the run of a member, or background work of the session.

    Raises:
        NotFound: the session was deleted meanwhile.
    """
    if (yield from runs.create(NewRun(spec, worker_id, now()))) is None:
        raise errors.NotFound("Session not found")
    return AdmittedRun(spec)


@unit
def admit_once(spec: RunSpec, admission: Work[AdmittedRun]) -> Steps[AdmittedRun]:
    """Admit a run unless an earlier attempt with an unknown outcome did."""
    stored = yield from find_admitted(spec)
    return stored[0] if stored is not None else (yield from admission)


@unit
def find_admitted(spec: RunSpec) -> Steps[tuple[AdmittedRun, str | None] | None]:
    """Return a run whose row was committed, and the worker that owns it; None without a row."""
    state = yield from run_reads.get_state(spec.run_id)
    if state is None:
        return None
    session_state = yield from sessions.get_state(state.session_id)
    written = yield from approvals.get_checkpoint_attempt(spec.run_id)
    is_queued = state.queued_at is not None
    admitted = AdmittedRun(
        _with_user(spec, state.user_id),
        session_state,
        has_start=written is not None,
        is_queued=is_queued,
        may_begin=is_queued,
    )
    return admitted, state.owner
