"""Admission of runs: the session and the run's row are written in one transaction, before any
work starts; and the start of a leg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import orjson

from agentctl import errors
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import NewRun
from agentctl.records.sessions import SESSION_NOT_FOUND, SessionRow
from agentctl.records.text import cut_text
from agentctl.records.times import now
from agentctl.runs.desk.turns import check_queue, enqueue
from agentctl.runs.log.fold import write_start_checkpoint
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.records import dump_session_data
from agentctl.runtime.components.versions import describe_version
from agentctl.runtime.context import EarlierRun
from agentctl.runtime.pauses import Leg
from agentctl.runtime.transcript.history import StateChanges
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import (
    approvals,
    component_versions,
    files,
    idempotency,
    queue,
    quotas,
    run_reads,
    runs,
    sessions,
)
from agentctl.store.repositories.component_versions import VersionRow
from agentctl.store.repositories.steps import StepRow
from agentctl.store.visibility import EVERYONE, Visibility

SESSION_NAME_LENGTH = 60
"""Characters of the first message that become the name of a session.

docs/contract.md "Sessions".
"""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """The identity of a repeatable request: two requests with equal fields are the same request."""

    principal: str
    """The caller: a key counts for its principal only."""

    key: str
    """The header `Idempotency-Key`."""

    body_hash: str
    """The hash of all that the request asks for; with another one, the key is refused."""


class IdempotentReplay(Exception):
    """The idempotency key of the submission already has a run; nothing was written."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class Submission:
    """A request for a root run, checked as far as possible without the database."""

    spec: RunSpec
    component: Component

    visibility: Visibility
    """The existing sessions that the run may use."""

    outlives_caller: bool
    """True if the run continues when its client disconnects."""

    idempotency: Idempotency | None = None
    """The identity of a request with an idempotency key (docs/contract.md "Runs"), or None."""

    is_new_session: bool | None = None
    """True if the session must not exist, False if it must; None if both are fine."""

    extra_write: Callable[[], Work[None]] | None = None
    """Builds further writes for the transaction of the row; None without further writes."""

    files: Sequence[str] = ()
    """The ids of the files that the session of the run gets."""

    copies: Mapping[str, str] = field(default_factory=dict)
    """The ids of files of another session, each with the id of its copy in this session."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The outcome of the start of a run: it begins, it waits, or it was started before."""

    spec: RunSpec
    """The specification, with the user of the row: the owner of its session."""

    owner: str | None = None
    """The worker in its row; None if it waits in the queue."""

    session_state: str | None = None
    """The state of the session as JSON at the admission of a root run, or None."""

    is_first: bool = False
    """True if the session was created with the run."""

    has_start: bool = False
    """True if the run has a start checkpoint."""

    is_queued: bool = False
    """True if it waits in the queue: no process executes it yet."""

    may_begin: bool = False
    """True if it waits, and any server may begin it now."""

    earlier_run_id: str | None = None
    """The run that an earlier request with the same idempotency key has started.

    None for a new run. Nothing was written for a repeated request.
    """

    @property
    def run_id(self) -> str:
        """The run that the caller gets: the new one, or the one of the earlier request."""
        return self.earlier_run_id or self.spec.run_id

    @property
    def is_repeated(self) -> bool:
        """True if an earlier request has started the run."""
        return self.earlier_run_id is not None


class HeldSlots:
    """The slots of root runs that are about to start: each block holds one."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


class StoredVersions:
    """Stores the versions of the components of this process, each once."""

    def __init__(self, catalog: Catalog, databases: Databases) -> None:
        self._catalog = catalog
        self._databases = databases
        self._stored: set[tuple[str, str]] = set()

    async def store(self, components: Iterable[Component]) -> None:
        """Store the versions of some components, unless they are stored.

        Raises:
            Unavailable: the system database does not answer.
        """
        new_rows = list[VersionRow]()
        for component in components:
            identity = (component.id, component.key)
            if identity in self._stored:
                continue

            new_row = await self._build_new_row(component)
            if new_row is not None:
                new_rows.append(new_row)
            self._stored.add(identity)

        if new_rows:
            await self._databases.system.write(component_versions.add(new_rows))

    async def _build_new_row(self, component: Component) -> VersionRow | None:
        """Build the row of a version; None if the component has none, or its row is stored."""
        description = describe_version(self._catalog, component)
        if description is None:
            return None

        listing = component_versions.list_known(component.kind, component.id)
        known_versions = await self._databases.system.read(listing)
        if description.version in known_versions:
            return None
        return VersionRow(
            0, component.kind, component.id, description.version, now(), description.configuration
        )


def admit_run(
    submission: Submission, catalog: Catalog, worker_id: str, *, is_full: bool = False
) -> Work[Admission]:
    """Get or create the session and write the row of a root run.

    The `session_state` of the request replaces top-level keys of the session's state in the same
    transaction (docs/contract.md "Runs"). The `session_state` of a queued run does so when the run
    begins.

    Args:
        is_full: True if all slots of the process are taken: the run has to wait.

    Raises:
        NotFound: the session or a file is not visible to the caller.
        Conflict: the session is of another kind, or it is busy and the component rejects that.
        TooManyRequests: the run has to wait, and the queue is full.
        QuotaExceeded: the owner of the session has as much as the quotas allow.
        TooLarge: the state of the session would be too large.
        IdempotentReplay: the key of the request has a run already.
    """
    # The row of the session is built once: a transaction that is repeated inserts the same row.
    new_session = _build_session(submission, catalog, is_full)
    return _admit_run(submission, catalog, worker_id, new_session, is_full)


def _build_session(submission: Submission, catalog: Catalog, is_full: bool) -> SessionRow:
    """Build the session that a run creates, unless it exists."""
    spec = submission.spec
    component = submission.component
    return sessions.build_session(
        spec.session_id,
        component.kind,
        user_id=spec.user_id,
        now=now(),
        component_id=component.id,
        component_name=component.name,
        component_data=dump_session_data(catalog, component),
        session_name=_name_session(spec),
        session_state=spec.session_state,
        first_status=runs.get_first_status(spec, is_queued=is_full),
    )


def _name_session(spec: RunSpec) -> str:
    """Return the beginning of a message; if it has no text, the name of its first file."""
    text = " ".join(spec.input.split())
    if not text and spec.files is not None:
        text = str(orjson.loads(spec.files)[0]["name"])
    return cut_text(text, SESSION_NAME_LENGTH)


@unit
def _admit_run(
    submission: Submission, catalog: Catalog, worker_id: str, new_session: SessionRow, is_full: bool
) -> Steps[Admission]:
    spec = submission.spec
    component = submission.component
    if submission.idempotency is not None:
        # The key first: a repeat returns its run, even if that run keeps the session busy.
        yield from claim_key(spec.run_id, submission.idempotency)

    session = yield from _get_session(submission, new_session)
    is_first = session is new_session
    turn = yield from _find_turn(submission, is_full)
    if turn is not None:
        yield from check_queue(spec)

    # Not the caller: the owner of the session sees all runs in it (docs/contract.md "Runs").
    spec = _with_user(spec, session.user_id)

    if submission.files:
        yield from _bind_files(submission.files, session)
    for file_id, copy_id in submission.copies.items():
        yield from files.copy(file_id, copy_id, session.session_id, session.user_id)

    owner = worker_id if turn is None else None
    row = NewRun(spec, owner, now(), new_session.session_name, turn)
    if (yield from runs.create(row, 1 if is_first else None)) is None:
        raise errors.NotFound(SESSION_NOT_FOUND)

    state = session.session_state
    if not is_first and spec.session_state:
        changes = orjson.loads(spec.session_state)
        limit = catalog.settings.limits.state_bytes
        state = yield from _change_state(session, changes, limit, is_stored=turn is None)

    if submission.extra_write is not None:
        yield from submission.extra_write()
    # After the rows: the check counts what this transaction has added.
    yield from quotas.check_added(
        catalog.settings.quotas, spec.user_id, "sessions" if is_first else None
    )

    if turn is None and not spec.durable:
        return Admission(spec, owner, state, is_first)

    # Another process can begin the run, or continue it.
    yield from write_start_checkpoint(spec, component.name, is_first=is_first)
    if turn is None:
        return Admission(spec, owner, state, is_first, has_start=True)

    may_begin = yield from enqueue(spec, component.name, row.created_at)
    return Admission(
        spec, owner, state, is_first, has_start=True, is_queued=True, may_begin=may_begin
    )


def _get_session(submission: Submission, new_session: SessionRow) -> Steps[SessionRow]:
    """Return the session of a run, which is locked; `new_session` itself if it did not exist."""
    session = yield from sessions.get_or_create_for_run(new_session, submission.visibility)
    if isinstance(session, sessions.UnusableSession):
        stored = session.row
        if not submission.visibility.sees(stored.user_id):
            raise errors.NotFound(SESSION_NOT_FOUND)
        raise errors.Conflict(
            f"The session {stored.session_id} is for runs of {stored.session_type}s, not of"
            f" {submission.component.kind}s",
            cause=f"its first run was one of the {stored.session_type} {stored.component_id}",
            hint="choose another session: --session NEW",
        )

    is_new = session is new_session
    if is_new and submission.is_new_session is False:
        raise errors.NotFound(SESSION_NOT_FOUND)
    if not is_new and submission.is_new_session:
        raise errors.Conflict(f"The session {new_session.session_id} already exists")
    return session


def _bind_files(file_ids: Sequence[str], session: SessionRow) -> Steps[None]:
    """Give files to a session.

    Raises:
        NotFound: a file is of another user or session, or was deleted meanwhile.
    """
    rows = yield from files.get_all(file_ids, EVERYONE)
    session_id = session.session_id

    # In one order: a transaction that binds some of them as well waits, and is no deadlock.
    for row in sorted(rows, key=attrgetter("file_id")):
        is_of_session = row.session_id == session_id
        if row.session_id is None:
            is_of_session = yield from files.bind(row.file_id, session_id)
        if row.user_id != session.user_id or not is_of_session:
            raise errors.NotFound("File not found")

    if len(rows) < len(file_ids):
        raise errors.NotFound("File not found")


def _find_turn(submission: Submission, is_full: bool) -> Steps[int | None]:
    """Return how a run waits in the queue of its session, which is locked; None if it begins."""
    on_busy = submission.component.on_busy
    if on_busy == "allow":
        return queue.AFTER_QUEUE if is_full else None

    open_run_ids = yield from run_reads.list_open_in_session(submission.spec.session_id)
    if open_run_ids and on_busy == "reject":
        raise errors.Conflict(f"The session is busy with run {open_run_ids[0]}")
    return queue.AFTER_RUNS if open_run_ids or is_full else None


def _change_state(
    session: SessionRow, changes: Mapping[str, Any], limit: int, *, is_stored: bool
) -> Steps[str | None]:
    """Replace keys of the state of a session, or only check that this is possible.

    Args:
        limit: maximum size in bytes.
        is_stored: False to only check.

    Returns:
        The state with the changes.
    """
    if is_stored:
        state = yield from sessions.merge_state(session.session_id, changes)
    else:
        state = orjson.dumps({**sessions.parse_state(session.session_state), **changes}).decode()

    # A state that is larger already, as the limit was lowered, can be replaced by a smaller one.
    limit = max(limit, len((session.session_state or "").encode()))
    if len((state or "").encode()) > limit:
        raise errors.TooLarge(f"The session state would be larger than {limit} bytes")
    return state


def _with_user(spec: RunSpec, user_id: str | None) -> RunSpec:
    if spec.user_id == user_id:
        return spec
    return replace(spec, user_id=user_id)


def build_key_conflict() -> errors.ValidationFailed:
    """Build the error of a request whose key was used for another request."""
    return errors.ValidationFailed("The Idempotency-Key was used for another request")


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
        raise build_key_conflict()
    raise IdempotentReplay(earlier.run_id)


class RunLost(Exception):
    """Another process has the run, or its cancel was requested; nothing was written."""


@unit
def admit_child_run(spec: RunSpec, worker_id: str) -> Steps[Admission]:
    """Write the row of a child: the run of a member, or background work of the session.

    Raises:
        NotFound: the session was deleted meanwhile.
    """
    if (yield from runs.create(NewRun(spec, worker_id, now()))) is None:
        raise errors.NotFound(SESSION_NOT_FOUND)
    return Admission(spec, worker_id)


@unit
def admit_durable_member(
    spec: RunSpec, component_name: str, step: Work[bool], worker_id: str
) -> Steps[Admission]:
    """Write the row of a member of a durable run, its checkpoint, and the step of its parent.

    Args:
        step: stores the begin in the journal of the parent (`RunJournal.begin_member`).

    Raises:
        RunLost: this process does not execute the parent any more.
    """
    if not (yield from step):
        raise RunLost

    admission = yield from admit_child_run(spec, worker_id)
    yield from write_start_checkpoint(spec, component_name, is_first=False)
    return replace(admission, has_start=True)


@unit
def admit_once(spec: RunSpec, admit: Work[Admission]) -> Steps[Admission]:
    """Admit a run unless an earlier attempt with an unknown outcome did."""
    admission = yield from find_admission(spec)
    if admission is not None:
        return admission
    return (yield from admit)


@unit
def find_admission(spec: RunSpec) -> Steps[Admission | None]:
    """Return the admission of a run whose row was committed; None without a row."""
    state = yield from run_reads.get_state(spec.run_id)
    if state is None:
        return None

    session_state = yield from sessions.get_state(state.session_id)
    checkpoint_attempt = yield from approvals.get_checkpoint_attempt(spec.run_id)
    is_queued = state.queued_at is not None
    return Admission(
        _with_user(spec, state.user_id),
        state.owner,
        session_state,
        has_start=checkpoint_attempt is not None,
        is_queued=is_queued,
        # A search for it that finds nothing costs less than a run that nobody begins.
        may_begin=is_queued,
    )


@dataclass(frozen=True, slots=True)
class LegInput:
    """The point from which a leg begins; the defaults are the values of a first leg."""

    attempt: int = 1

    leg: Leg | None = None
    """The state and the decisions for the component; None if the run begins."""

    transcript: Transcript = field(default_factory=Transcript)
    """The results of the legs before it."""

    has_checkpoint: bool = False
    """True if the run has a checkpoint."""

    first_event: int = 0
    """Number of its first event."""

    steps: Sequence[StepRow] = ()
    """The journal of a durable run, in the order of the steps."""

    first_step: int = 0
    """Number of the first step after the checkpoint."""

    session_changes: StateChanges | None = None
    """The changes of the state of the session since the checkpoint."""

    changed_at: int = 0
    """The time of these changes, microseconds UTC."""

    earlier_runs: Sequence[EarlierRun] = ()
    """The earlier runs of the session, as the first leg has read them."""

    summary: str | None = None
    """The summary of the session, as the first leg has read it."""

    previous_instructions: str | None = None
    """The system message of the session's previous run."""

    is_first: bool = False
    """True if the session was created with the run."""

    version_change: str | None = None
    """JSON of the change of the version of its component; None without a change."""

    has_messages: bool = False
    """True if messages were sent to the run."""
