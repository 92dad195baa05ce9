"""What makes a run begin: its session and its row, in one transaction, before any work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from agentctl import errors
from agentctl.records.ids import new_id
from agentctl.records.times import now
from agentctl.runs.live import LiveRun
from agentctl.runtime.catalog import Catalog, Component
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import idempotency, runs, sessions
from agentctl.store.repositories.sessions import SessionRow
from agentctl.store.visibility import Visibility

__all__ = [
    "Idempotency",
    "IdempotentReplay",
    "Submission",
    "admit_member_run",
    "admit_once",
    "admit_run",
]

SESSION_NAME_LENGTH = 60
"""Characters of a first message that become the session's name (contract.md 3)."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """What makes two requests the same one: who asks, under which key, for what."""

    principal: str
    key: str
    body_hash: str


class IdempotentReplay(Exception):
    """The key of the submission has a run already; nothing was written.

    Args:
        run_id: that run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class Submission:
    """A run to start, checked as far as it can be without the database.

    Attributes:
        background: whether it was started as such, for the record.
        recorded: whether its events are kept for those who follow it.
        goes_on: whether it goes on when its caller goes away.
        actor: who starts it, as records name them.
        visibility: the sessions that it may run in, if the one it names exists already.
        idempotency: of a request that may be repeated (contract.md 5), or None.
        note: makes what is to be written in the transaction of the row; None: nothing more.
        run_id: the id that the run is to have.
    """

    component: Component
    session_id: str
    user_id: str | None
    message: str
    background: bool
    recorded: bool
    goes_on: bool
    actor: str
    visibility: Visibility
    idempotency: Idempotency | None = None
    note: Callable[[], Work[None]] | None = None
    run_id: str = field(default_factory=new_id)


@unit
def admit_run(
    run: LiveRun, submission: Submission, catalog: Catalog, worker_id: str
) -> Steps[None]:
    """Open the session and write the row of a run that a caller starts.

    Raises:
        NotFound: the session is not the caller's.
        Conflict: the session is of another kind, or busy and the component wants it alone.
        Replayed: the request has been made before.
        ValidationFailed: its key was used for another request.
    """
    if submission.idempotency is not None:
        yield from _claim_key(run, submission.idempotency)
    component = run.component
    new = sessions.build_session(
        run.session_id,
        component.kind,
        user_id=run.user_id,
        now=now(),
        component_id=component.id,
        component_name=component.name,
        component_data=orjson.dumps(catalog.data(component)).decode(),
    )
    session = yield from sessions.get_or_create_for_run(new, submission.visibility)
    if isinstance(session, sessions.UnusableSession):
        raise _build_session_error(session.row, submission.visibility)
    # Whoever runs in it: what is in a session belongs to its owner, who is to see all of it.
    run.user_id = session.user_id
    if component.on_busy == "reject":
        busy = yield from runs.list_live_in_session(run.session_id)
        if busy:
            raise errors.Conflict(f"The session is busy with run {busy[0]}")
    name = " ".join(run.message.split())[:SESSION_NAME_LENGTH]
    yield from _create_row(run, worker_id, background=submission.background, session_name=name)
    if submission.note is not None:
        yield from submission.note()


@unit
def _claim_key(run: LiveRun, request: Idempotency) -> Steps[None]:
    """Take the key for this run. What fails later gives it back with everything else."""
    earlier = yield from idempotency.claim_key(
        request.principal, request.key, request.body_hash, run.run_id, now()
    )
    if earlier is None:
        return
    if earlier.body_hash != request.body_hash:
        raise errors.ValidationFailed("The Idempotency-Key was used for another request")
    raise IdempotentReplay(earlier.run_id)


@unit
def admit_member_run(run: LiveRun, worker_id: str) -> Steps[None]:
    """Write the row of a run that another run asks for.

    Raises:
        NotFound: the session was deleted meanwhile.
    """
    yield from _create_row(run, worker_id, background=False, session_name=None)


@unit
def admit_once(run: LiveRun, admission: Work[None]) -> Steps[None]:
    """Admit a run, unless it was admitted before without anybody being told."""
    if (yield from runs.get_state(run.run_id)) is None:
        yield from admission


@unit
def _create_row(
    run: LiveRun, worker_id: str, *, background: bool, session_name: str | None
) -> Steps[None]:
    row = runs.NewRun(
        run_id=run.run_id,
        session_id=run.session_id,
        parent_run_id=run.parent.run_id if run.parent is not None else None,
        component_type=run.component.kind,
        component_id=run.component.id,
        user_id=run.user_id,
        background=background,
        input=run.message,
        owner=worker_id,
        created_at=now(),
        session_name=session_name,
    )
    if (yield from runs.create(row)) is None:
        raise errors.NotFound("Session not found")


def _build_session_error(session: SessionRow, visibility: Visibility) -> errors.AgentctlError:
    if not visibility.sees(session.user_id):
        return errors.NotFound("Session not found")
    return errors.Conflict(f"The session holds {session.session_type} runs")
