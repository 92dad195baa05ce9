"""The operations on messages to runs that work (docs/contract.md "Messages to a run")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import orjson

from agentctl import errors
from agentctl.auth.policy import authorize_call
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_LIMIT,
    MessageRequest,
    RunRequest,
)
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import KINDS
from agentctl.records.routes import operation_ids
from agentctl.records.run_messages import (
    LateMessage,
    RunMessagePage,
    RunMessageRecord,
    RunMessageRow,
)
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import RunState
from agentctl.records.times import format_optional_time, format_rfc3339, now
from agentctl.runs.desk.messages import StoredMessage, dump_next_run, send_message
from agentctl.runs.life.admission import (
    Admission,
    Idempotency,
    IdempotentReplay,
    Submission,
    claim_key,
)
from agentctl.service.audit_log import AppendEntry, AuditedCall
from agentctl.service.documents import paging
from agentctl.service.family import find_repeated
from agentctl.service.runs.run_input import RunStarts, check_start
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import events, idempotency, run_messages, run_reads, sessions
from agentctl.store.visibility import EVERYONE


class FoundRun(NamedTuple):
    """A visible run and its database."""

    database: Database
    state: RunState


@dataclass(frozen=True, slots=True)
class SteeredRun:
    """A run that got the message of a request for another run (`on_busy = "steer"`)."""

    run_id: str
    message_id: str

    after: int
    """The number of an event of the run before the delivery of the message."""


class MessageOperations(RunStarts):
    """Operations on messages to runs."""

    async def send_message(
        self, run_id: str, request: MessageRequest
    ) -> Document[RunMessageRecord]:
        async with self.audit("send_message", run_id=run_id) as call:
            found = await self._find_any_run(run_id)
            state = found.state

            place = {KINDS[state.component_type].id_field: state.component_id}
            authorize_call(self.principal, operation_ids(state.component_type).create_run, place)
            if request.late not in get_args(LateMessage):
                raise errors.ValidationFailed("late must be next_run or refuse")

            fields = ["message", run_id, request.message, request.late]
            identity = self.build_idempotency(request.idempotency_key, fields)
            if await find_repeated(found.database, identity):
                return await self._repeat_message(call, found, identity)

            start = RunRequest(
                message=request.message, session_id=state.session_id, background=True
            )
            component = self.lookups.component(state.component_type, state.component_id)
            submission = await self.build_submission(component, start, (), stream=False)
            try:
                row = await self._store_message(
                    call, found, submission, late=request.late, identity=identity
                )
            except IdempotentReplay:
                return await self._repeat_message(call, found, identity)
            return build_document(build_message_record(row, state.session_id))

    async def _repeat_message(
        self, call: AuditedCall, found: FoundRun, identity: Idempotency | None
    ) -> Document[RunMessageRecord]:
        """Return the message of an earlier request with the same key."""
        assert identity is not None
        call.omit_entry()
        row = await found.database.read(_find_claimed(identity))
        if row is None:
            raise errors.Conflict("The message of this Idempotency-Key was deleted")
        return build_document(build_message_record(row, found.state.session_id))

    async def steer(
        self, call: AuditedCall, database: Database, submission: Submission
    ) -> SteeredRun | Admission | None:
        """Send the message of a new run to the run that its session is busy with.

        Returns:
            The run that got the message, or the run of an earlier request with the same key. None
            if the new run has to begin or to wait: nothing works in the session, a run of another
            component does, it takes no messages, or the request has more than a message.
        """
        spec = submission.spec
        if not _is_message_alone(spec):
            return None

        found = await self._find_busy_run(database, submission)
        if found is None or await self._changes_state(database, spec):
            return None

        if await self.hosting.catalog.find_message_obstacle(submission.component) is not None:
            return None

        # The events that follow include its delivery, and the pause of a run that is paused.
        last_seq = await database.read(events.get_last_seq(found.state.run_id))
        call.add_resource("run", found.state.run_id)

        # Any server may begin the run that the message becomes. The state is what it is then.
        next_spec = replace(
            spec, session_state=None, background=True, recorded=True, survives_disconnect=True
        )
        try:
            row = await self._store_message(
                call,
                found,
                replace(submission, spec=next_spec),
                late="next_run",
                identity=submission.idempotency,
                is_start=True,
            )
        except IdempotentReplay as replayed:
            call.omit_entry()
            return Admission(spec, earlier_run_id=replayed.run_id)

        return SteeredRun(row.run_id, row.message_id, max(last_seq - 1, BEFORE_FIRST_EVENT))

    async def _find_busy_run(self, database: Database, submission: Submission) -> FoundRun | None:
        """Return the newest open run of the session if it may get the message of another one."""
        spec = submission.spec
        open_run_ids = await database.read(run_reads.list_open_in_session(spec.session_id))
        if not open_run_ids:
            return None
        newest_id = open_run_ids[-1]
        state = await database.read(run_reads.get_state(newest_id, submission.visibility))
        if state is None or state.cancel_requested_at is not None:
            return None
        if (state.component_type, state.component_id) != (spec.component_type, spec.component_id):
            return None
        return FoundRun(database, state)

    async def _changes_state(self, database: Database, spec: RunSpec) -> bool:
        """Return True if a request would change the state of its session.

        Pages send the whole state with each message, so it is mostly the stored one.
        """
        changes: dict[str, Any] = orjson.loads(spec.session_state or "{}")
        if not changes:
            return False
        session = await database.read(sessions.get(spec.session_id, EVERYONE))
        stored = sessions.parse_state(None if session is None else session.session_state)
        return {**stored, **changes} != stored

    async def find_steered(self, database: Database, message_id: str) -> SteeredRun | None:
        """Return the run that got the message of an earlier request; None if it became none."""
        row = await database.read(run_messages.get(message_id))
        return None if row is None else SteeredRun(row.run_id, message_id, BEFORE_FIRST_EVENT)

    async def read_answering_run(
        self, database: Database, steered: SteeredRun
    ) -> tuple[str, RunMessageRow]:
        """Return the id of the run that has a message of `steer`, as far as known, and its row.

        Raises:
            NotFound: the message was deleted with its run.
        """
        row = await database.read(run_messages.get(steered.message_id))
        if row is None:
            raise errors.NotFound("Run not found")
        return (row.message_id if row.status == "next_run" else row.run_id), row

    async def _store_message(
        self,
        call: AuditedCall,
        found: FoundRun,
        submission: Submission,
        *,
        late: LateMessage,
        identity: Idempotency | None,
        is_start: bool = False,
    ) -> RunMessageRow:
        """Store a message to a run, and notify the process that executes the run.

        Args:
            submission: the run that the message becomes if no model call gets it.
            is_start: as of `runs.desk.messages.send_message`.

        Raises:
            IdempotentReplay: the identity has a message already.
            Conflict, TooManyRequests: as of `runs.desk.messages.send_message`.
        """
        hosting = self.hosting
        database, state = found
        component = submission.component
        spec = replace(submission.spec, user_id=state.user_id)
        if hosting.engine.tracer is not None:
            spec = hosting.engine.tracer.place(spec)

        row = RunMessageRow(
            message_id=spec.run_id,
            run_id=state.run_id,
            seq=0,
            status="waiting",
            late=late,
            created_at=now(),
            created_by=self.principal.actor,
            request_id=spec.request_id,
            settled_at=None,
            attempt=None,
            model_call_id=None,
            reason=None,
            content=spec.input,
            next_run=dump_next_run(spec, component.name),
        )
        call.add_resource("session", state.session_id)
        call.add_created("message", row.message_id)

        note = await self.prepare_keyed_entry(call, database, identity)
        await check_start(hosting, self.principal, database, submission)
        await hosting.versions.store((component,))
        obstacle = await hosting.catalog.find_message_obstacle(component)
        with call.change():
            sent = await database.write(
                _send_once(row, obstacle, note, identity, is_start=is_start)
            )

        hosting.engine.handle_message(database, sent)
        return sent.row

    async def list_messages(
        self, run_id: str, *, after: str | None = None, limit: int = MAXIMUM_LIMIT
    ) -> Document[RunMessagePage]:
        async with self.audit("get_run_messages", run_id=run_id):
            paging.check_limit(limit)
            database, state = await self._find_any_run(run_id)
            rows, total = await database.read(_read_page(run_id, after, limit))
            messages = [build_message_record(row, state.session_id) for row in rows]
            return build_document({"run_id": run_id, "messages": messages, "total": total})

    async def require_any(self, run_id: str) -> None:
        """Check that the caller sees a run.

        Raises:
            NotFound: there is none.
        """
        await self._find_any_run(run_id)

    async def _find_any_run(self, run_id: str) -> FoundRun:
        """Return a visible run in any database.

        Raises:
            NotFound: there is none.
        """
        for database in self.hosting.databases.values():
            state = await database.read(run_reads.get_state(run_id, self.lookups.visibility))
            if state is not None:
                return FoundRun(database, state)
        raise errors.NotFound("Run not found")


@unit
def _send_once(
    row: RunMessageRow,
    obstacle: str | None,
    note: AppendEntry | None,
    identity: Idempotency | None,
    *,
    is_start: bool,
) -> Steps[StoredMessage]:
    if identity is not None:
        yield from claim_key(row.message_id, identity)
    sent = yield from send_message(row, obstacle=obstacle, is_start=is_start)
    if note is not None:
        yield from note()
    return sent


@unit
def _find_claimed(identity: Idempotency) -> Steps[RunMessageRow | None]:
    earlier = yield from idempotency.get_claim(identity.principal, identity.key, now())
    if earlier is None:
        return None
    return (yield from run_messages.get(earlier.run_id))


@unit
def _read_page(
    run_id: str, after: str | None, limit: int
) -> Steps[tuple[list[RunMessageRow], int]]:
    seq = 0
    if after is not None:
        message = yield from run_messages.get(after)
        if message is None or message.run_id != run_id:
            raise errors.NotFound("Message not found")
        seq = message.seq
    rows = yield from run_messages.list_page(run_id, seq, limit)
    return rows, (yield from run_messages.count(run_id))


def _is_message_alone(spec: RunSpec) -> bool:
    """Return True if a request has nothing that a run gets only when it begins."""
    parts = (
        spec.files,
        spec.input_object,
        spec.metadata,
        spec.output_schema,
        spec.client_tools,
        spec.tool_choice,
        spec.dependencies,
    )
    return (
        all(part in (None, "{}") for part in parts)
        and not spec.stop
        and not spec.earlier_messages
        and spec.session_history
    )


def build_message_record(row: RunMessageRow, session_id: str) -> RunMessageRecord:
    """Return the record of a message."""
    return RunMessageRecord(
        message_id=row.message_id,
        run_id=row.run_id,
        session_id=session_id,
        content=row.content,
        status=row.status,
        late=row.late,
        reason=row.reason,
        model_call_id=row.model_call_id,
        next_run_id=row.message_id if row.status == "next_run" else None,
        created_at=format_rfc3339(row.created_at),
        created_by=row.created_by,
        settled_at=format_optional_time(row.settled_at),
    )
