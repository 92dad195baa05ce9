"""Admission of runs: the session and the run's row are written in one transaction, before any
work starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from agentctl import errors
from agentctl.records.ids import new_id
from agentctl.records.times import now
from agentctl.runs.live import RunSpec
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.records import build_session_data
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import idempotency, run_reads, runs, sessions
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
    """The idempotency key of the submission already has a run; nothing was written.

    Args:
        run_id: that run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class Submission:
    """A request for a root run, checked as far as possible without the database.

    Attributes:
        background: True for a background run; stored in the row.
        recorded: True if the events are stored for followers.
        survives_disconnect: True if the run continues when its client disconnects.
        actor: the principal that starts it, as rows name it.
        visibility: the existing sessions that the run may use.
        idempotency: identity of a request with an idempotency key (docs/contract.md "Runs"), or
            None.
        extra_write: builds further writes for the transaction of the row; None for none.
        metadata: metadata of the request as a JSON object, or None.
        dependencies: dependencies of the request as a JSON object, or None; they are not stored.
        output_schema: checked JSON Schema of the request for its result, or None.
        session_state: top-level keys of the session's state to replace, or None.
        state_bytes: maximum size of the state after that; a larger one may only become smaller.
        claims: verified claims of the caller as JSON, or None.
        earlier_messages: neutral messages that the request gives to the component.
        request_id: the id of the request, or None.
        run_id: id of the new run.
    """

    component: Component
    session_id: str
    user_id: str | None
    message: str
    background: bool
    recorded: bool
    survives_disconnect: bool
    actor: str
    visibility: Visibility
    idempotency: Idempotency | None = None
    extra_write: Callable[[], Work[None]] | None = None
    metadata: str | None = None
    output_schema: str | None = None
    dependencies: str | None = None
    session_state: dict[str, Any] | None = None
    state_bytes: int = 0
    claims: bytes | None = None
    earlier_messages: tuple[Mapping[str, Any], ...] = ()
    request_id: str | None = None
    run_id: str = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class AdmittedRun:
    """The values of a committed row that its run needs.

    Attributes:
        user_id: the user of the run: the owner of its session.
        session_state: the state of the session as JSON at the admission of a root run, or None.
        is_first: True if the session was created with the run.
    """

    user_id: str | None
    session_state: str | None = None
    is_first: bool = False


@unit
def admit_run(submission: Submission, catalog: Catalog, worker_id: str) -> Steps[AdmittedRun]:
    """Get or create the session and write the row of a root run.

    The `session_state` of the request replaces top-level keys of the session's state in the same
    transaction (docs/contract.md "Runs").

    Raises:
        NotFound: the session is not visible to the caller.
        Conflict: the session is of another kind, or it is busy and the component rejects that.
        IdempotentReplay: the request was made before.
        TooLarge: the state of the session would be too large.
        ValidationFailed: its idempotency key was used for another request.
    """
    if submission.idempotency is not None:
        yield from _claim_key(submission.run_id, submission.idempotency)
    component = submission.component
    given = submission.session_state
    given_text = orjson.dumps(given).decode() if given is not None else None
    # A background run waits for its claim: the response to its start shows it as PENDING.
    status: Literal["PENDING", "RUNNING"] = "PENDING" if submission.background else "RUNNING"
    name = " ".join(submission.message.split())[:SESSION_NAME_LENGTH]
    new = sessions.build_session(
        submission.session_id,
        component.kind,
        user_id=submission.user_id,
        now=now(),
        component_id=component.id,
        component_name=component.name,
        component_data=orjson.dumps(build_session_data(catalog, component)).decode(),
        session_name=name,
        session_state=given_text,
        first_status=status,
    )
    session = yield from sessions.get_or_create_for_run(new, submission.visibility)
    if isinstance(session, sessions.UnusableSession):
        if not submission.visibility.sees(session.row.user_id):
            raise errors.NotFound("Session not found")
        raise errors.Conflict(f"The session is for {session.row.session_type} runs")
    if component.on_busy == "reject":
        busy = yield from run_reads.list_live_in_session(submission.session_id)
        if busy:
            raise errors.Conflict(f"The session is busy with run {busy[0]}")
    row = NewRun(
        run_id=submission.run_id,
        session_id=submission.session_id,
        parent_run_id=None,
        component_type=component.kind,
        component_id=component.id,
        # Not the caller: the owner of the session sees all runs in it (docs/decisions/0007).
        user_id=session.user_id,
        background=submission.background,
        input=submission.message,
        owner=worker_id,
        created_at=now(),
        session_name=name,
        metadata=submission.metadata,
        session_state=given_text,
        status=status,
        request_id=submission.request_id,
    )
    if (yield from runs.create(row, 1 if session is new else None)) is None:
        raise errors.NotFound("Session not found")
    state = session.session_state
    if given and session is not new:
        state = yield from sessions.merge_state(submission.session_id, given)
        limit = max(submission.state_bytes, len((session.session_state or "").encode()))
        if len((state or "").encode()) > limit:
            raise errors.TooLarge(f"The session state would be larger than {limit} bytes")
    if submission.extra_write is not None:
        yield from submission.extra_write()
    return AdmittedRun(session.user_id, state, is_first=session is new)


@unit
def _claim_key(run_id: str, request: Idempotency) -> Steps[None]:
    earlier = yield from idempotency.claim_key(
        request.principal, request.key, request.body_hash, run_id, now()
    )
    if earlier is None:
        return
    if earlier.body_hash != request.body_hash:
        raise errors.ValidationFailed("The Idempotency-Key was used for another request")
    raise IdempotentReplay(earlier.run_id)


@unit
def admit_child_run(spec: RunSpec, user_id: str | None, worker_id: str) -> Steps[AdmittedRun]:
    """Write the row of a child: the run of a member, or background work of the session.

    Its user is that of the root.

    Raises:
        NotFound: the session was deleted meanwhile.
    """
    row = NewRun(
        run_id=spec.run_id,
        session_id=spec.session_id,
        parent_run_id=spec.parent_run_id,
        component_type=spec.component.kind,
        component_id=spec.component.id,
        user_id=user_id,
        background=spec.purpose is not None,
        input=spec.message,
        owner=worker_id,
        created_at=now(),
        purpose=spec.purpose,
        status="RUNNING" if spec.is_claimed else "PENDING",
        request_id=spec.request_id,
    )
    if (yield from runs.create(row)) is None:
        raise errors.NotFound("Session not found")
    return AdmittedRun(user_id)


@unit
def admit_once(run_id: str, admission: Work[AdmittedRun]) -> Steps[AdmittedRun]:
    """Admit a run unless an earlier attempt with an unknown outcome did."""
    admitted = yield from find_admitted(run_id)
    if admitted is not None:
        return admitted.run
    return (yield from admission)


class FoundRun(NamedTuple):
    """An admitted run, and the worker that owns it."""

    run: AdmittedRun
    owner: str | None


@unit
def find_admitted(run_id: str) -> Steps[FoundRun | None]:
    """Return a run whose row was committed, None if there is no row."""
    state = yield from run_reads.get_state(run_id)
    if state is None:
        return None
    session_state = yield from sessions.get_state(state.session_id)
    return FoundRun(AdmittedRun(state.user_id, session_state), state.owner)
