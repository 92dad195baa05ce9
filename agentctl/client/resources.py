"""The methods of a client, by noun."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, TypeVar

from typing_extensions import TypedDict, Unpack

from agentctl.client import calls
from agentctl.errors import NotFound, UsageError
from agentctl.interface import requests
from agentctl.interface.declarations import find_address
from agentctl.interface.operations.approvals import ApprovalsFamily
from agentctl.interface.operations.cancels import cancel_until_stopped
from agentctl.interface.operations.components import ComponentsFamily
from agentctl.interface.operations.files import FilesFamily
from agentctl.interface.operations.memories import MemoriesFamily
from agentctl.interface.operations.runs import RunsFamily
from agentctl.interface.operations.sessions import SessionsFamily
from agentctl.interface.operations.system import SystemFamily
from agentctl.interface.operations.usage import UsageFamily
from agentctl.interface.requests.administration import UsageFilter
from agentctl.interface.requests.approvals import (
    ApprovalFilter,
    ContinueRequest,
    Ruling,
    build_ruling,
)
from agentctl.interface.requests.files import FileContent, FileFilter, FileUpload
from agentctl.interface.requests.memories import MemoryFilter, MemoryPatch, NewMemory
from agentctl.records.approvals import ApprovalRecord, Verb
from agentctl.records.document import Document
from agentctl.records.events import Event, parse_event
from agentctl.records.files import FileRecord
from agentctl.records.kinds import KINDS, ComponentKind, component_of_run
from agentctl.records.memories import MemoryRecord
from agentctl.records.run_messages import LateMessage, RunMessageRecord
from agentctl.records.runs import CancelRecord, FailureRecord, RunRecord
from agentctl.records.sessions import SessionDetail, SessionSummary
from agentctl.records.text import new_id

Repeat = TypeVar("Repeat", bound=requests.RetryRequest)

Run = str | Mapping[str, Any]
"""A run as an argument: its id; or its record or the data of its event, which saves a request."""


class RunOptions(TypedDict, total=False):
    """The options of a run to start: one of `agent`, `team` and `workflow`, and its input.

    The others are those of `interface.requests.RunRequest`. Without an `idempotency_key` the client
    creates one, so that the server starts one run, however often the request is sent.
    """

    agent: str
    team: str
    workflow: str
    message: str | None
    input: dict[str, Any] | None
    session_id: str | None
    user_id: str | None
    background: bool
    idempotency_key: str | None
    metadata: dict[str, Any] | None
    session_state: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    dependencies: dict[str, Any] | None
    client_tools: list[dict[str, Any]] | None
    tool_choice: str | None
    files: tuple[str, ...]


class LocatedRun(NamedTuple):
    """The ids of a run that its routes have, and the id of its session."""

    kind: ComponentKind
    component_id: str
    run_id: str
    session_id: str


async def _locate(resource: calls.Resource[Any], run: Run) -> LocatedRun:
    if isinstance(run, str):
        run = (await resource._operations.runs.get(run, form=requests.SUMMARY_VIEW)).value
    return LocatedRun(*component_of_run(run), run["run_id"], run["session_id"])


def _repeating(
    request: Callable[calls.P, Repeat],
    operation: Callable[
        [Any, ComponentKind, str, str, Repeat], Coroutine[Any, Any, Document[RunRecord]]
    ],
) -> calls.Method[Concatenate[Run, calls.P], RunRecord]:
    """Return the method of an operation that repeats a run, with the fields of its request."""
    find_method = attrgetter(find_address(operation))

    async def call(
        self: calls.Resource[Any], run: Run, /, *args: calls.P.args, **options: calls.P.kwargs
    ) -> Any:
        repeat = request(*args, **options)
        repeat = replace(repeat, idempotency_key=repeat.idempotency_key or new_id())
        located = await _locate(self, run)
        repeat_run = find_method(self._operations)
        document = await repeat_run(located.kind, located.component_id, located.run_id, repeat)
        return document.value

    return calls.Method(calls.describe(call, operation, request, "run"))


class RunMethods(calls.Resource[calls.Mode]):
    """Runs: start, follow, cancel, continue and repeat them."""

    get = calls.declared(RunsFamily.get)
    list = calls.declared_rows(requests.RunFilter, RunsFamily.list, RunRecord)
    failures = calls.declared_rows(requests.RunFilter, RunsFamily.list_failures, FailureRecord)
    retry = _repeating(requests.RetryRequest, RunsFamily.retry)
    fork = _repeating(requests.ForkRequest, RunsFamily.fork)

    @calls.Method
    async def start(self, **run: Unpack[RunOptions]) -> RunRecord:
        """Start a run and return its record: at its end or pause, with `background` at once."""
        kind, component_id, request = _build_run_request(run)
        return (await self._operations.runs.create(kind, component_id, request)).value

    @calls.StreamMethod
    async def stream(self, **run: Unpack[RunOptions]) -> AsyncGenerator[Event, None]:
        """Start a run and yield its events, each once, over any number of connections.

        The run continues if the caller stops reading; `cancel` stops it. A run that waits for a
        decision ends the stream with its event `RunPaused`.
        """
        kind, component_id, request = _build_run_request(run)
        events: Any = self._operations.runs.stream(kind, component_id, request)
        async with aclosing(events):
            async for event in events:
                yield parse_event(event.name, event.data, event.seq)

    @calls.StreamMethod
    async def follow(
        self, run: Run, *, after: int = requests.BEFORE_FIRST_EVENT
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run after the event with the number `after`, as `stream` does."""
        located = await _locate(self, run)
        request = requests.ResumeRequest(located.session_id, after)
        events: Any = self._operations.runs.follow(
            located.kind, located.component_id, located.run_id, request
        )
        async with aclosing(events):
            async for event in events:
                yield parse_event(event.name, event.data, event.seq)

    @calls.Method
    async def cancel(
        self, run: Run, *, wait: float = 10.0, reason: str | None = None
    ) -> CancelRecord:
        """Cancel a run, and wait until it has stopped, for at most `wait` seconds.

        In the result, `cancel` is `stopped`, `requested` if it has not stopped yet, or
        `already_final` if it had ended before.
        """
        located = await _locate(self, run)
        connection = self._operations.connection
        document = await cancel_until_stopped(
            self._operations,
            (located.kind, located.component_id),
            located.run_id,
            requests.CancelRequest(located.session_id, wait, reason),
            partial(connection.wait_to_repeat, is_safe=True),
        )
        return document.value

    @calls.Method
    async def send(
        self, run: Run, message: str, *, late: LateMessage = "next_run"
    ) -> RunMessageRecord:
        """Send a message to a run that works, and return its record.

        Args:
            late: the fate of a message that no model call of the run gets any more.
        """
        run_id = run if isinstance(run, str) else run["run_id"]
        request = requests.MessageRequest(message, late, new_id())
        return (await self._operations.runs.send_message(run_id, request)).value

    messages = calls.declared(RunsFamily.list_messages)

    @calls.Method
    async def continue_run(
        self,
        run: Run,
        decisions: Sequence[Ruling],
        *,
        background: bool = False,
        dependencies: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> RunRecord:
        """Decide, as the user of a paused run, what it waits for.

        It returns the record at its end or next pause, with `background` at once.
        `interface.requests.approvals.build_ruling` builds a decision.
        """
        key = idempotency_key or new_id()
        request = ContinueRequest(tuple(decisions), background, dependencies, key)
        located = await _locate(self, run)
        document = await self._operations.runs.continue_run(
            located.kind, located.component_id, located.run_id, request
        )
        return document.value


def _build_run_request(run: RunOptions) -> tuple[ComponentKind, str, requests.RunRequest]:
    values: dict[str, Any] = dict(run)
    components = [(kind, values.pop(kind)) for kind in KINDS if kind in values]
    if len(components) != 1:
        raise UsageError("a run needs one of agent, team and workflow")

    values["idempotency_key"] = values.get("idempotency_key") or new_id()
    kind, component_id = components[0]
    return kind, component_id, requests.RunRequest(**values)


class ApprovalMethods(calls.Resource[calls.Mode]):
    """Approvals: what paused runs wait for, and decisions about it."""

    list = calls.declared_rows(ApprovalFilter, ApprovalsFamily.list, ApprovalRecord)

    @calls.Method
    async def get(self, approval_id: str) -> ApprovalRecord:
        """Get an approval.

        Raises:
            errors.NotFound: there is none that the caller can see.
        """
        page = await self._operations.approvals.list(ApprovalFilter(id_prefix=approval_id))
        for approval in page.value["data"]:
            if approval["approval_id"] == approval_id:
                return approval
        raise NotFound("Approval not found")

    @calls.Method
    async def decide(
        self,
        approval: ApprovalRecord,
        decision: Verb,
        value: Any = None,
        *,
        note: str | None = None,
    ) -> ApprovalRecord:
        """Decide about an approval, as its record was read: the decision names that call.

        The run continues after the last decision that it waits for.

        Args:
            value: edited arguments to `approve`, the answer to `answer`, the result to `complete`.
        """
        return await self._decide(approval, build_ruling(approval, decision, value, note))

    @calls.Method
    async def approve(
        self,
        approval: ApprovalRecord,
        *,
        arguments: dict[str, Any] | None = None,
        note: str | None = None,
    ) -> ApprovalRecord:
        """Let a call be made, with edited `arguments` if they are given; see `decide`."""
        return await self._decide(approval, build_ruling(approval, "approve", arguments, note))

    @calls.Method
    async def reject(self, approval: ApprovalRecord, *, note: str | None = None) -> ApprovalRecord:
        """Refuse a call; the model reads the note. See `decide`."""
        return await self._decide(approval, build_ruling(approval, "reject", note=note))

    async def _decide(self, approval: ApprovalRecord, ruling: Ruling) -> ApprovalRecord:
        document = await self._operations.approvals.decide(
            approval["component_type"],
            approval["component_id"],
            approval["approval_id"],
            ruling,
            new_id(),
        )
        return document.value


class SessionMethods(calls.Resource[calls.Mode]):
    """Sessions."""

    get = calls.declared(SessionsFamily.get)
    list = calls.declared_rows(requests.SessionFilter, SessionsFamily.list, SessionSummary)
    runs = calls.declared(SessionsFamily.list_runs)
    create = calls.declared_fields(requests.NewSession, SessionsFamily.create)
    rename = calls.declared(SessionsFamily.rename)
    summarize = calls.declared(SessionsFamily.summarize)
    delete = calls.declared(SessionsFamily.delete)
    export = calls.declared_stream(SessionsFamily.export)

    @calls.Method
    async def update(self, session_id: str, changes: dict[str, Any]) -> SessionDetail:
        """Replace any of `session_name`, `session_state` and `metadata` of a session."""
        patch = requests.SessionPatch(changes)
        return (await self._operations.sessions.update(session_id, patch)).value


class FileMethods(calls.Resource[calls.Mode]):
    """Files."""

    get = calls.declared(FilesFamily.get)
    list = calls.declared_rows(FileFilter, FilesFamily.list, FileRecord)
    download = calls.declared_stream(FilesFamily.get_content)
    delete = calls.declared(FilesFamily.delete)

    @calls.Method
    async def upload(
        self,
        source: Path | bytes,
        *,
        name: str | None = None,
        session_id: str | None = None,
        user_id: str | None = None,
        db_id: str | None = None,
        media_type: str = "",
    ) -> FileRecord:
        """Upload a file; `name` is by default that of the path, and required for bytes.

        Raises:
            UsageError: there is no name, or an empty one, for bytes.
        """
        if not name:
            if isinstance(source, bytes):
                raise UsageError("bytes need a name")
            name = Path(source).name
        upload = FileUpload(name, session_id, user_id, db_id)
        content = FileContent(source)
        document = await self._operations.files.upload(
            upload, content, media_type=media_type, size=content.size
        )
        return document.value


class MemoryMethods(calls.Resource[calls.Mode]):
    """Memories."""

    get = calls.declared(MemoriesFamily.get)
    list = calls.declared_rows(MemoryFilter, MemoriesFamily.list, MemoryRecord)
    create = calls.declared_fields(NewMemory, MemoriesFamily.create)
    delete = calls.declared(MemoriesFamily.delete)

    @calls.Method
    async def update(
        self, memory_id: str, *, memory: str | None = None, topics: Sequence[str] | None = None
    ) -> MemoryRecord:
        """Replace the text or the topics of a memory."""
        patch = MemoryPatch(memory, None if topics is None else tuple(topics))
        return (await self._operations.memories.update(memory_id, patch)).value


class SystemMethods(calls.Resource[calls.Mode]):
    """The server and the caller."""

    info = calls.declared(SystemFamily.get_info)
    ready = calls.declared(SystemFamily.get_readiness)
    me = calls.declared(SystemFamily.get_me)
    models = calls.declared(SystemFamily.get_models)
    deployment = calls.declared(SystemFamily.get_deployment)
    budgets = calls.declared(UsageFamily.list_budgets)
    usage = calls.declared_fields(UsageFilter, UsageFamily.get)


class ComponentMethods(calls.Resource[calls.Mode]):
    """Agents, teams and workflows."""

    list = calls.declared(ComponentsFamily.list)
    get = calls.declared(ComponentsFamily.get)
