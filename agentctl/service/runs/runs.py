"""The run operations (docs/contract.md "Runs")."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import orjson

from agentctl import errors
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    FULL_VIEW,
    MAXIMUM_CANCEL_WAIT,
    MAXIMUM_REASON_LENGTH,
    CancelRequest,
    EarlierMessage,
    RunRequest,
    RunView,
    StreamEvent,
)
from agentctl.records.document import Document
from agentctl.records.events import EventKind, find_event_kind, parse_event
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.runs import CancelRecord, RunDetails, RunRecord
from agentctl.records.text import check_text
from agentctl.runs.engine.cancel import LEAVE_SECONDS
from agentctl.runs.follow.follow import flatten, wait_in_queue, wait_until_final
from agentctl.runs.life.admission import Admission
from agentctl.runs.life.live import LiveRun
from agentctl.runs.states import CLIENT_DISCONNECTED, Ending, HandOver
from agentctl.service.documents import paging
from agentctl.service.documents.change_documents import build_cancel_document, build_start_document
from agentctl.service.documents.run_documents import read_run_details
from agentctl.service.reads.runs import RunReads
from agentctl.service.runs.run_messages import MessageOperations, SteeredRun, build_message_record
from agentctl.store.database import Database
from agentctl.store.repositories import run_reads
from agentctl.work.event_loop import (
    build_unread_outcome,
    read_after_change,
    retry_while_unavailable,
)


class Started(NamedTuple):
    """A run that a request, or an earlier request with its key, has started."""

    database: Database
    run: LiveRun | Admission | SteeredRun
    request: RunRequest

    @property
    def is_repeated(self) -> bool:
        """True if an earlier request with the same key has started the run."""
        return isinstance(self.run, Admission) and self.run.is_repeated


class RunOperations(RunReads, MessageOperations):
    """Operations on the runs of agents, teams and workflows; the reads are in `reads.runs`."""

    def require_open(self, kind: ComponentKind, component_id: str) -> None:
        """Refuse a run before its request is read, if it would be refused now.

        Raises:
            NotFound: the component is not configured.
            Halted: the component, or everything, is halted.
            Unavailable: the process shuts down, or live runs wait for connections.
        """
        component = self.lookups.component(kind, component_id)
        self.hosting.engine.check_open(self.lookups.database(component.database))
        self.hosting.gate.check_open(component)

    def find_database_id(self, kind: ComponentKind, component_id: str) -> str | None:
        """Return the id of the database with the files of a component; None for the default.

        Raises:
            NotFound: the component is not configured.
        """
        database = self.lookups.component_database(kind, component_id)
        return None if database is self.hosting.databases.system else database.id

    async def create(
        self,
        kind: ComponentKind,
        component_id: str,
        request: RunRequest,
        *,
        earlier: Sequence[EarlierMessage] = (),
    ) -> Document[RunRecord]:
        """Start a run and wait for its end; with `background` return when its row exists.

        If the caller leaves, the run is stopped, unless it is a background run or
        `server.on_disconnect` is `detach`. A repeated request returns the first run. If the message
        was sent to another run (`on_busy = "steer"`), that run is returned, and does not stop when
        the caller leaves.

        Raises:
            Conflict: the run of the first request was deleted.
        """
        return await self.read_started(
            await self._start(kind, component_id, request, earlier, stream=False)
        )

    async def read_started(self, started: Started) -> Document[RunRecord]:
        """Return the record of a started run after its end, or at once with `background`.

        If the database does not return a record, the record of the start is returned: an error
        would make the caller start the run again.
        """
        database, run, request = started
        if isinstance(run, SteeredRun):
            return await self._read_steered(database, run, waits=not request.background)

        if started.is_repeated:
            with _deleted_as_conflict():
                if not request.background:
                    return await self._wait_for_record(database, run.run_id)
                return await self.lookups.read_run(database, run.run_id)

        try:
            if request.background:
                return await self.lookups.read_run(database, run.run_id)

            if isinstance(run, Admission):
                async with self._cancelling_on_leave(started):
                    await wait_in_queue(
                        self.hosting.engine, database, self.hosting.changes, run.run_id
                    )
            else:
                try:
                    if isinstance(await asyncio.shield(run.ended), HandOver):
                        # If this process ends before the run, the answer is the record so far.
                        with contextlib.suppress(errors.Unavailable):
                            await self._wait_until_final(database, run.run_id)
                finally:
                    await self._leave(run, request)

            return await retry_while_unavailable(
                partial(self.lookups.read_run, database, run.run_id)
            )
        except errors.DatabaseDamaged as error:
            # The record of a run that nobody can read or end would only look like a live run.
            raise build_unread_outcome(run.spec.run_id, error) from error
        except errors.Unavailable:
            is_queued = isinstance(run, Admission)
            return Document(build_start_document(run.spec, is_queued=is_queued))

    def stream(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> AsyncGenerator[StreamEvent]:
        return flatten(self.stream_portions(kind, component_id, request))

    def stream_portions(
        self,
        kind: ComponentKind,
        component_id: str,
        request: RunRequest,
        *,
        earlier: Sequence[EarlierMessage] = (),
        run_id: str | None = None,
        opens_at_once: bool = False,
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Stream a run (`stream`), and yield all available events at once.

        Args:
            run_id: the id of the run, unless another run has it already; None for a new id.
            opens_at_once: True to get an empty portion first if the first event may be long in
                coming, because the message waits for another run.
        """
        return self.stream_started(
            lambda: self._start(kind, component_id, request, earlier, stream=True, run_id=run_id),
            opens_at_once=opens_at_once,
        )

    async def stream_started(
        self, start: Callable[[], Awaitable[Started]], *, opens_at_once: bool = False
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Start a run and yield its events, in portions; the run ends if its caller leaves.

        Args:
            opens_at_once: as of `stream_run_portions`.
        """
        started = await start()
        database, run, request = started
        if isinstance(run, SteeredRun):
            if opens_at_once:
                yield []
            async with contextlib.aclosing(self._stream_steered(database, run)) as steered_events:
                async for portion in steered_events:
                    yield portion
            return

        if started.is_repeated:
            with _deleted_as_conflict():
                await database.read(self.lookups.run_document(run.run_id))

        is_started = not started.is_repeated
        events = self.follow_events(database, run.run_id, BEFORE_FIRST_EVENT, is_started=is_started)
        if isinstance(run, LiveRun):
            try:
                async with contextlib.aclosing(events):
                    async for portion in events:
                        yield portion
                        # The caller has sent the portion when it asks for the next one.
                        self.hosting.engine.complete_start(run)
            finally:
                self.hosting.engine.complete_start(run)
                await self._leave(run, request)
            return

        leaving = self._cancelling_on_leave(started) if is_started else contextlib.nullcontext()
        async with leaving, contextlib.aclosing(events):
            async for portion in events:
                yield portion

    async def _read_steered(
        self, database: Database, steered: SteeredRun, *, waits: bool
    ) -> Document[RunRecord]:
        """Return the record of the run that has a message, with the record of the message.

        Args:
            waits: True to wait until the run has ended, or waits for a decision.
        """
        with _deleted_as_conflict():
            if waits:
                await self._wait_until_final(database, steered.run_id)
            run_id, row = await self.read_answering_run(database, steered)
            if waits and run_id != steered.run_id:
                await self._wait_until_final(database, run_id)
            document = await self.lookups.read_run(database, run_id)

        message = build_message_record(row, document.value["session_id"])
        return Document(b'%b,"sent_message":%b}' % (document.raw[:-1], orjson.dumps(message)))

    async def _stream_steered(
        self, database: Database, steered: SteeredRun
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Yield the events that follow the delivery of a message, or those of its own run.

        Of a run that refuses it, or pauses before, only the last events.
        """
        last_portion: list[StreamEvent] = []
        is_delivered = False

        with _deleted_as_conflict():
            run_id, _ = await self.read_answering_run(database, steered)

        if run_id == steered.run_id:
            events = self.follow_events(database, run_id, steered.after)
            async with contextlib.aclosing(events):
                async for portion in events:
                    shown = portion
                    if not is_delivered:
                        shown = _drop_until_delivered(portion, steered.message_id)
                        is_delivered = bool(shown)
                        last_portion = portion
                    if shown:
                        yield shown

            if is_delivered:
                return

            run_id, row = await self.read_answering_run(database, steered)
            if run_id == steered.run_id:
                # The events of some runs are not stored: what is left are content and end.
                yield last_portion if row.status == "delivered" else last_portion[-1:]
                return

        events = self.follow_events(database, run_id, BEFORE_FIRST_EVENT)
        async with contextlib.aclosing(events):
            async for portion in events:
                yield portion

    async def _wait_until_final(self, database: Database, run_id: str) -> None:
        await wait_until_final(self.hosting.engine, database, self.hosting.changes, run_id)

    async def _wait_for_record(self, database: Database, run_id: str) -> Document[RunRecord]:
        await self._wait_until_final(database, run_id)
        return await self.lookups.read_run(database, run_id)

    def _cancelling_on_leave(
        self, started: Started
    ) -> contextlib.AbstractAsyncContextManager[None]:
        if self._outlives_caller(started.request):
            return contextlib.nullcontext()
        return self.hosting.canceller.cancelling_on_leave(
            started.database, started.run.run_id, self.principal.actor
        )

    async def _leave(self, run: LiveRun, request: RunRequest) -> None:
        if run.ended.done() or self._outlives_caller(request):
            return
        run.stop(Ending.cancelled(self.principal.actor, CLIENT_DISCONNECTED))
        await asyncio.wait([run.ended], timeout=LEAVE_SECONDS)

    async def _start(
        self,
        kind: ComponentKind,
        component_id: str,
        request: RunRequest,
        earlier: Sequence[EarlierMessage],
        *,
        stream: bool,
        run_id: str | None = None,
    ) -> Started:
        """Start a run. A repeated request starts no run and has no audit entry."""
        path = {KINDS[kind].id_field: component_id}
        async with self.audit(operation_ids(kind).create_run, **path) as call:
            component = self.lookups.component(kind, component_id)
            engine = self.hosting.engine
            with engine.admitting(component, background=request.background) as is_full:
                submission = await self.build_submission(component, request, earlier, stream=stream)
                database = self.lookups.database(submission.component.database)
                if run_id is not None and await database.read(run_reads.get_state(run_id)) is None:
                    submission = replace(submission, spec=replace(submission.spec, run_id=run_id))
                run: LiveRun | Admission | SteeredRun | None = None
                if submission.component.on_busy == "steer":
                    run = await self.steer(call, database, submission)
                if run is None:
                    run = await self.submit(call, database, submission, is_full=is_full)

            started = Started(database, run, request)
            if not started.is_repeated:
                return started
            steered = await self.find_steered(database, run.run_id)
            return started if steered is None else started._replace(run=steered)

    async def get_of_component(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        *,
        session_id: str | None = None,
        form: RunView = FULL_VIEW,
    ) -> Document[RunRecord]:
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).get_run, **path):
            database, _ = await self.lookups.find_run(kind, component_id, run_id, session_id)
            paging.check_run_view(form)
            return await self.lookups.read_run(database, run_id, form)

    async def require(
        self, kind: ComponentKind, component_id: str, run_id: str, session_id: str | None
    ) -> None:
        await self.lookups.find_run(kind, component_id, run_id, session_id)

    async def find_session(self, kind: ComponentKind, component_id: str, run_id: str) -> str:
        _, state = await self.lookups.find_run(kind, component_id, run_id, None)
        return state.session_id

    async def read_details(
        self, kind: ComponentKind, component_id: str, run: RunRecord
    ) -> RunDetails:
        database = self.lookups.component_database(kind, component_id)
        if len(self.hosting.databases) > 1:
            # The run may have begun when the component had another one.
            database, _ = await self.lookups.find_run(kind, component_id, run["run_id"], None)
        return await read_after_change(lambda: database.read(read_run_details(run)), run["run_id"])

    async def cancel(
        self, kind: ComponentKind, component_id: str, run_id: str, request: CancelRequest
    ) -> Document[CancelRecord]:
        """Request the stop of a run, wait for its end, and return which of the two happened.

        Raises:
            BadRequest: the session is missing and the caller is not an administrator.
        """
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).cancel_run, **path) as call:
            session_id = request.session_id or self.principal.session_id
            if session_id is not None:
                call.add_resource("session", session_id)
            database, state = await self.lookups.find_named_run(
                kind, component_id, run_id, session_id, "cancel"
            )

            if not 0 <= request.wait <= MAXIMUM_CANCEL_WAIT:
                raise errors.ValidationFailed(
                    f"wait must be a number of seconds from 0 to {MAXIMUM_CANCEL_WAIT:g}"
                )

            if request.reason is not None:
                check_text("reason", request.reason)
                if len(request.reason) > MAXIMUM_REASON_LENGTH:
                    raise errors.ValidationFailed(
                        f"reason must be at most {MAXIMUM_REASON_LENGTH} characters"
                    )

            note = await call.prepare_entry(database)
            with call.change():
                result = await self.hosting.canceller.cancel(
                    database,
                    run_id,
                    actor=self.principal.actor,
                    reason=request.reason,
                    wait=request.wait,
                    extra_write=note,
                    known_state=state,
                )
            return Document(build_cancel_document(result))


def _drop_until_delivered(portion: list[StreamEvent], message_id: str) -> list[StreamEvent]:
    """Return the events from the delivery of a message on; none if it is not among them."""
    for index, event in enumerate(portion):
        if find_event_kind(event.name) is not EventKind.MESSAGE_DELIVERED:
            continue
        if parse_event(event.name, event.data).data["message_id"] == message_id:
            return portion[index:]
    return []


@contextlib.contextmanager
def _deleted_as_conflict() -> Iterator[None]:
    try:
        yield
    except errors.NotFound:
        raise errors.Conflict("The run of this Idempotency-Key was deleted") from None
