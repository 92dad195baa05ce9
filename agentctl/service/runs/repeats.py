"""The operations that repeat a run: retry and fork (docs/contract.md "Retry and fork")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import orjson

from agentctl import errors
from agentctl.auth.policy import authorize_call
from agentctl.config.files import Files
from agentctl.config.quotas import Quotas
from agentctl.interface.requests import ForkRequest, RetryRequest, RunRequest, StreamEvent
from agentctl.records.document import Document
from agentctl.records.kinds import KINDS, ComponentKind, ComponentRef
from agentctl.records.messages import parse_messages
from agentctl.records.routes import operation_ids
from agentctl.records.run_spec import Origin, RepeatPlan
from agentctl.records.runs import RunRecord, RunRow
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.follow.follow import flatten
from agentctl.runs.life.admission import Submission
from agentctl.runs.life.repeats import (
    StoredOrigin,
    build_plan,
    can_continue,
    copy_files,
    find_open_calls,
    load_origin,
    needs_confirmation,
    plan_retry,
)
from agentctl.runs.life.supervision import HISTORY_BYTES
from agentctl.runs.log.fold import find_root_id
from agentctl.runs.states import is_final
from agentctl.runtime.component import Component
from agentctl.runtime.files import dump_references, get_reference
from agentctl.runtime.transcript.history import complete_history, mark_kept
from agentctl.service.audit_log import AuditedCall
from agentctl.service.family import find_repeated
from agentctl.service.runs.run_input import check_files
from agentctl.service.runs.runs import RunOperations, Started
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import files as file_rows
from agentctl.store.repositories import run_reads
from agentctl.store.repositories.files import FileRow


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A run to start."""

    component: Component
    request: RunRequest
    origin: Origin

    runs_code: bool
    """True if the code of an agent in code runs again."""

    is_new_session: bool
    """True if its session must not exist yet."""

    files: Sequence[Mapping[str, Any]] = ()
    """The references of the files of its message."""


class RepeatOperations(RunOperations):
    """Operations on runs, including operations that repeat a run."""

    async def retry(
        self, kind: ComponentKind, component_id: str, run_id: str, request: RetryRequest
    ) -> Document[RunRecord]:
        started = await self._retry(kind, component_id, run_id, request, stream=False)
        return await self.read_started(started)

    def stream_retried(
        self, kind: ComponentKind, component_id: str, run_id: str, request: RetryRequest
    ) -> AsyncIterator[StreamEvent]:
        return flatten(self.stream_retry_portions(kind, component_id, run_id, request))

    def stream_retry_portions(
        self, kind: ComponentKind, component_id: str, run_id: str, request: RetryRequest
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Stream a retry (`stream_retried`), and yield all available events at once."""
        return self.stream_started(
            lambda: self._retry(kind, component_id, run_id, request, stream=True)
        )

    async def fork(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ForkRequest
    ) -> Document[RunRecord]:
        started = await self._fork(kind, component_id, run_id, request, stream=False)
        return await self.read_started(started)

    def stream_forked(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ForkRequest
    ) -> AsyncIterator[StreamEvent]:
        return flatten(self.stream_fork_portions(kind, component_id, run_id, request))

    def stream_fork_portions(
        self, kind: ComponentKind, component_id: str, run_id: str, request: ForkRequest
    ) -> AsyncGenerator[list[StreamEvent]]:
        """Stream a fork (`stream_forked`), and yield all available events at once."""
        return self.stream_started(
            lambda: self._fork(kind, component_id, run_id, request, stream=True)
        )

    async def _retry(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        request: RetryRequest,
        *,
        stream: bool,
    ) -> Started:
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).retry_run, **path) as call:
            component = self.lookups.component(kind, component_id)
            database, stored = await self._load_origin(kind, component_id, run_id, "retry")

            catalog = self.hosting.catalog

            origin = plan_retry(stored, component, catalog)
            start = self._build_request(stored, request, stored.row.session_id)
            runs_code = catalog.is_hosted(component)
            repeat = _Repeat(component, start, origin, runs_code, False, stored.files)
            return await self._start_repeat(call, database, stored, repeat, request, stream=stream)

    async def _fork(
        self,
        kind: ComponentKind,
        component_id: str,
        run_id: str,
        request: ForkRequest,
        *,
        stream: bool,
    ) -> Started:
        path = {KINDS[kind].id_field: component_id, "run_id": run_id}
        async with self.audit(operation_ids(kind).fork_run, **path) as call:
            target_kind, target_id = _find_target((kind, component_id), request)
            target = {KINDS[target_kind].id_field: target_id}
            authorize_call(self.principal, operation_ids(target_kind).create_run, target)

            database, stored = await self._load_origin(kind, component_id, run_id, "fork")
            component = self.lookups.component(target_kind, target_id)
            if (target_kind, target_id) != (kind, component_id):
                call.add_resource(target_kind, target_id)
            repeat = await self._plan_fork(kind, database, stored, component, request)
            return await self._start_repeat(call, database, stored, repeat, request, stream=stream)

    async def _load_origin(
        self, kind: ComponentKind, component_id: str, run_id: str, verb: str
    ) -> tuple[Database, StoredOrigin]:
        database, _ = await self.lookups.find_run(kind, component_id, run_id, None)
        stored = await database.read(load_origin(run_id, self.lookups.visibility), size="large")
        if stored is None:
            raise errors.NotFound("Run not found")

        row = stored.row
        if row.parent_run_id is not None:
            root = await database.read(find_root_id(row))
            raise errors.Conflict(f"The run is part of run {root}: {verb} that one")
        if not is_final(row.status):
            raise errors.Conflict(
                f"The run has not ended: it is {row.status}", command=f"agentctl runs wait {run_id}"
            )
        return database, stored

    def _build_request(
        self, stored: StoredOrigin, request: RetryRequest, session_id: str
    ) -> RunRequest:
        row = stored.row
        return RunRequest(
            message=row.input,
            input=_load_object(row.input_object),
            session_id=session_id,
            background=request.background,
            idempotency_key=request.idempotency_key,
            metadata=_load_object(row.metadata),
            output_schema=request.output_schema,
            dependencies=request.dependencies,
        )

    async def _plan_fork(
        self,
        kind: ComponentKind,
        database: Database,
        stored: StoredOrigin,
        component: Component,
        request: ForkRequest,
    ) -> _Repeat:
        row = stored.row
        messages = stored.messages
        is_new = request.session_id != row.session_id
        session_id = request.session_id or new_id()

        kept_messages = mark_kept(_cut_messages(messages, request.at), row.run_id)
        start = self._build_request(stored, request, session_id)

        has_prompt = True
        files = stored.files
        if request.message is not None:
            # A new message takes the place of the message of the origin, and of its files.
            start = replace(start, message=request.message, input=None)
            files = []
        elif kept_messages and kept_messages[-1]["role"] == "user":
            # The last message that is kept is the question: it becomes the message of the run.
            last = messages[request.at - 1]
            if "origin_run_id" in last or "message_id" in last:
                # It is not the message of the run, but one of its origin, or sent while it worked.
                start = replace(start, message=kept_messages[-1]["content"], input=None)
                files = kept_messages[-1].get("files", [])

            kept_messages = kept_messages[:-1]
        elif kept_messages:
            has_prompt = False
            is_after_call = kept_messages[-1]["role"] == "tool"
            if not is_after_call or not can_continue(component, self.hosting.catalog):
                raise errors.ValidationFailed(
                    f"message is required: the run cannot go on after message {request.at} alone"
                )

        if (component.kind, component.id) != (kind, row.component_id):
            # Another component may take no object, or an object of another schema.
            start = replace(start, input=None)

        if component.kind == "workflow" and request.at:
            raise errors.ValidationFailed("at must be 0: a workflow has no conversation")

        if is_new and request.at:
            kept_messages = (*await self._read_before(database, row, component), *kept_messages)

        before = None if is_new else row.seq
        origin = Origin(row.run_id, "fork", request.at, before, kept_messages, has_prompt)
        runs_code = self.hosting.catalog.is_hosted(component) and request.message is None
        return _Repeat(component, start, origin, runs_code, is_new, files)

    async def _read_before(
        self, database: Database, row: RunRow, component: Component
    ) -> tuple[dict[str, Any], ...]:
        """Return the messages of the session before a run, as far as the component gets history."""
        if not component.history_runs:
            return ()

        maximum = min(HISTORY_BYTES, self.hosting.settings.limits.run_bytes // 2)
        recent = run_reads.list_recent(
            row.session_id, component.history_runs, maximum, before_seq=row.seq
        )
        runs = run_reads.drop_until_too_large(await database.read(recent, size="run"))
        earlier_messages = [
            message for run in runs for message in parse_messages(run.messages) or ()
        ]
        history = complete_history(earlier_messages)
        return mark_kept([dict(message) for message in history], row.run_id)

    async def _start_repeat(
        self,
        call: AuditedCall,
        database: Database,
        stored: StoredOrigin,
        repeat: _Repeat,
        request: RetryRequest,
        *,
        stream: bool,
    ) -> Started:
        component = repeat.component
        start = repeat.request
        origin = repeat.origin
        source = database
        if repeat.is_new_session:
            database = self.lookups.database(component.database)
        else:
            component = replace(component, database=database.id)

        fields = {
            name: value
            for name, value in asdict(request).items()
            if value is not None and name not in ("confirm", "idempotency_key")
        }
        place = [origin.kind, component.kind, component.id, origin.run_id, stream, fields]
        identity = self.build_idempotency(request.idempotency_key, place)

        is_new = not await find_repeated(database, identity)
        if is_new:
            _check_confirmed(build_plan(stored, origin, runs_code=repeat.runs_code), request)

        with self.hosting.engine.admitting(component, background=start.background) as is_full:
            submission = await self.build_submission(
                component, start, (), stream=stream, identity=identity, has_files=bool(repeat.files)
            )

            check_files(self.hosting.catalog, component, map(get_reference, repeat.files))
            files = repeat.files
            copies = dict[str, str]()
            if repeat.is_new_session:
                origin, files, copies = copy_files(origin, files)

            submission = replace(
                submission,
                spec=replace(submission.spec, origin=origin, files=dump_references(files)),
                is_new_session=repeat.is_new_session,
                copies=copies,
            )

            prepare = None
            if is_new and copies and database is not source:
                prepare = partial(self._copy_to_database, source, database)
            run = await self.submit(call, database, submission, is_full=is_full, prepare=prepare)
        return Started(database, run, start)

    @contextlib.asynccontextmanager
    async def _copy_to_database(
        self, source: Database, target: Database, submission: Submission
    ) -> AsyncIterator[Submission]:
        """Copy the files of a user to another database, where the session of a run gets them.

        The copies of a run that is refused in the block are deleted.
        """
        settings = self.hosting.settings
        copies = submission.copies
        at = now()

        rows = await self._read_originals(source, submission)
        copied_rows = {
            row.file_id: replace(row, file_id=copies[row.file_id], session_id=None, created_at=at)
            for row in rows
        }
        await target.write(_create_files([*copied_rows.values()], settings.files, settings.quotas))

        # The two databases have no common transaction. An original that is still there now keeps
        # the bytes until the cleanup can see the copy. Without it they may be removed already, so
        # the copy counts as a copy of a file that was deleted before.
        kept_ids = {row.file_id for row in await self._read_originals(source, submission)}
        lost_ids = [
            row.file_id for original, row in copied_rows.items() if original not in kept_ids
        ]
        if lost_ids:
            await target.write(file_rows.delete_loose(lost_ids))

        copy_ids = [row.file_id for original, row in copied_rows.items() if original in kept_ids]
        try:
            yield replace(submission, files=copy_ids, copies={})
        except errors.AgentctlError:
            # Copies that a session has are not deleted: the run may have started all the same.
            with contextlib.suppress(errors.AgentctlError):
                await target.write(file_rows.delete_loose(copy_ids))
            raise

    async def _read_originals(self, source: Database, submission: Submission) -> list[FileRow]:
        """Return the files to copy that exist; missing files are left out, as deleted files are."""
        rows = await source.read(file_rows.get_all([*submission.copies], self.lookups.visibility))
        return [row for row in rows if row.user_id == submission.spec.user_id]


@unit
def _create_files(rows: Sequence[FileRow], settings: Files, quotas: Quotas) -> Steps[None]:
    for row in rows:
        reservation = yield from file_rows.reserve(row, settings, quotas)
        yield from file_rows.create(row, reservation)


def _load_object(text: str | None) -> dict[str, Any] | None:
    return None if text is None else orjson.loads(text)


def _find_target(of_run: ComponentRef, request: ForkRequest) -> ComponentRef:
    given_targets = list[ComponentRef]()
    if request.agent_id:
        given_targets.append(("agent", request.agent_id))
    if request.team_id:
        given_targets.append(("team", request.team_id))

    if len(given_targets) > 1:
        raise errors.ValidationFailed(
            "agent_id and team_id cannot be used together: give one of them"
        )
    return given_targets[0] if given_targets else of_run


def _cut_messages(messages: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    if not 0 <= at <= len(messages):
        raise errors.ValidationFailed(
            f"at must be 0 to {len(messages)}: the run has {len(messages)} messages"
        )
    around = find_open_calls(messages, at)
    if around is not None:
        before, after = around
        raise errors.ValidationFailed(
            f"at must not be {at}, between tool calls and their results: use {before} or {after}"
        )
    return messages[:at]


def _check_confirmed(plan: RepeatPlan, request: RetryRequest) -> None:
    if not needs_confirmation(plan) or request.confirm == plan["confirm"]:
        return
    raise errors.NeedsConfirmation(_describe(plan), plan=cast(dict[str, object], plan))


def _describe(plan: RepeatPlan) -> str:
    """Return the sentence of a 409."""
    reasons = []
    calls = plan["calls_total"]
    if calls:
        reasons.append(f"may repeat {calls} tool call{'' if calls == 1 else 's'}")
    if plan["runs_code"]:
        reasons.append("runs the code of the agent again")
    if plan["calls_unknown"]:
        reasons.append("may repeat calls that are not known, because the server of the run died")
    if plan["retries"]:
        reasons.append(f"follows the retry {plan['retries'][-1]}")
    return f"The {plan['kind']} {' and '.join(reasons)}: confirm it"
