"""The remote backend: every operation is one HTTP request (docs/contract.md "Routes")."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, get_origin

import orjson

from agentctl import errors
from agentctl.interface.declarations import Declaration, find_declaration
from agentctl.interface.operations import ROUTES, Operations
from agentctl.interface.operations.runs import RunsFamily
from agentctl.interface.requests import BEFORE_FIRST_EVENT, ForkRequest, ResumeRequest, StreamEvent
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.records.events import LAST_NAMES
from agentctl.records.kinds import ComponentKind
from agentctl.remote import failures
from agentctl.remote.address import check_credential, parse_address
from agentctl.remote.connection import (
    DEFAULT_TIMEOUTS,
    Connection,
    ReceivedDocument,
    Request,
    Shape,
    Timeouts,
    TokenSource,
)
from agentctl.remote.events import EventParser
from agentctl.remote.failures import parse_object
from agentctl.remote.queries import build_request

_SEQUENCE = re.compile(r"[0-9]{1,18}")

RESUMES = 20
"""Number of attempts to resume a stream that ended early, at least."""


class RemoteOperations(Operations):
    """The operations of the server at a URL, as an async context manager.

    Args:
        url: the URL of the server, with the path under which it is mounted, if any.
        token: a bearer token, sent to the origin of `url` only; None sends none.
        allow_insecure: send the token over plain http to another machine.
        retries: the number of times that a failed request is sent again, if that is safe. Without
            retries a stream that breaks is an error, and only a stream that a server ends is
            resumed.

    Attributes:
        connection: the HTTP connection; it is open within the block.

    Raises:
        errors.UsageError: the URL is not valid, or the token must not or cannot be sent.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        allow_insecure: bool = False,
        source: TokenSource | None = None,
        retries: int = 0,
    ) -> None:
        address = parse_address(url)
        if token is not None:
            check_credential(address, token, allow_insecure=allow_insecure)
        self._timeouts = timeouts
        self.connection = Connection(address, token, timeouts, source, retries)

    def __repr__(self) -> str:
        return f"RemoteOperations({self.connection.address.base!r})"

    async def __aenter__(self) -> RemoteOperations:
        self.connection.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    def execute(self, method: Any, arguments: Mapping[str, Any]) -> Any:
        declared = find_declaration(method, arguments.get("kind"))
        if declared.result_form == "bytes":
            return self._read_bytes(declared, arguments)
        if declared.result_form == "events":
            return self._resume(declared, arguments)
        if not method.declared:
            return self._start(declared, arguments)
        return self._fetch(declared, arguments)

    async def _fetch(self, declared: Declaration, arguments: Mapping[str, Any]) -> Any:
        request = build_request(declared, arguments)
        if declared.record is None:
            await self.connection.send(request)
            return None
        shape: Shape = "array" if get_origin(declared.record) is list else "object"
        return ReceivedDocument(await self.connection.fetch(request, shape), declared.record)

    def _resume(
        self, declared: Declaration, arguments: Mapping[str, Any]
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of a run that exists, after the position of the request."""
        source = arguments["component_id"], arguments["run_id"]
        request = build_request(declared, arguments)
        after = arguments["request"].after
        return self._follow(arguments["kind"], request, after, source, declared)

    def _start(
        self, declared: Declaration, arguments: Mapping[str, Any]
    ) -> AsyncIterator[StreamEvent]:
        """Send the request of an operation with `stream`, and yield the events of its run."""
        kind = arguments["kind"]
        request = arguments["request"]
        plain_request = build_request(declared, arguments)
        sent_request = replace(
            plain_request,
            body={**(plain_request.body or {}), "stream": True},
            may_have_no_events=isinstance(request, ContinueRequest),
        )

        if isinstance(request, ForkRequest):
            targets = {"agent": request.agent_id, "team": request.team_id}
            kind = next(
                (target for target, target_id in targets.items() if target_id is not None), kind
            )

        return self._follow(kind, sent_request, BEFORE_FIRST_EVENT)

    async def _follow(
        self,
        kind: ComponentKind,
        request: Request,
        after: int,
        source: tuple[str, str] | None = None,
        resumed_by: Declaration | None = None,
    ) -> AsyncGenerator[StreamEvent]:
        """Yield the events of a run up to the last one of this leg.

        A server that stops ends its streams, and another server continues a durable run: the stream
        is resumed there.

        Args:
            after: place of the last event that the caller has.
            source: the ids of the component and of the run; None to take them from the first event.
            resumed_by: the operation that resumes the stream; None for `runs.resume`.
        """
        event: StreamEvent | None = None
        session_id: str | None = None
        retries = self.connection.retries
        failure_count = 0

        while True:
            seq_before = after
            failure: errors.AgentctlError | None = None
            try:
                async with contextlib.aclosing(self._events(request, after)) as events:
                    async for event in events:
                        if event.seq <= after:
                            # The server has sent it again, although the request names it.
                            continue
                        after = event.seq
                        if session_id is None:
                            source, session_id = _find_source(kind, event, source)
                        yield event
            except (errors.Unavailable, errors.TooManyRequests) as broken:
                failure = broken

            if event is not None and _is_last(kind, event, source):
                return

            # After the last event of a run there are none, so an empty stream is complete.
            is_empty = event is None and failure is None
            if is_empty and (request.may_have_no_events or after > BEFORE_FIRST_EVENT):
                return

            limit = retries
            is_safe = request.is_repeatable and event is None
            if source is not None and session_id is not None:
                if retries or failure_count or failure is None:
                    # The run itself is known: a stream of it is resumed more often than a request.
                    limit = max(RESUMES, retries)

                failure = _build_early_end_error(failure)
                is_safe = True
                arguments = {
                    "component_id": source[0],
                    "run_id": source[1],
                    "request": ResumeRequest(session_id, after),
                }
                declared = resumed_by or find_declaration(RunsFamily.resume, kind)
                request = build_request(declared, arguments)

            # A stream that has brought further events has made progress.
            failure_count = 1 if after > seq_before else failure_count + 1
            failure = failure or _build_early_end_error(None)
            await self.connection.wait_to_repeat(
                failure, failure_count, is_safe=is_safe, limit=limit
            )

    async def _events(self, request: Request, after: int) -> AsyncGenerator[StreamEvent]:
        """Yield the events of one stream. An event without a number follows the one before it.

        Raises:
            errors.Unavailable: the server sends an event or a comment too slowly, in however many
                pieces.
        """
        async with self.connection.stream(request) as chunks:
            parser = EventParser()
            blocks = 0
            # Begin of the event or comment that is incomplete.
            began = time.monotonic()

            async for chunk in chunks:
                for received in parser.feed(chunk):
                    number = received.id or ""
                    after = int(number) if _SEQUENCE.fullmatch(number) else after + 1
                    yield StreamEvent(after, received.name, received.data)

                if parser.blocks > blocks or not parser.incomplete:
                    blocks = parser.blocks
                    began = time.monotonic()
                elif time.monotonic() - began > self._timeouts.whole:
                    raise failures.build_slow_response_error(self.connection.address)

    async def _read_bytes(
        self, declared: Declaration, arguments: Mapping[str, Any]
    ) -> AsyncIterator[bytes]:
        request = build_request(declared, arguments)
        async with self.connection.open_raw(request) as response:
            chunks = self.connection.read_chunks(response)
            if response.status_code not in (200, 206):
                body = b"".join([chunk async for chunk in chunks])
                self.connection.check_status(response, body)
            async for chunk in chunks:
                yield chunk


def _find_source(
    kind: ComponentKind, event: StreamEvent, source_so_far: tuple[str, str] | None
) -> tuple[tuple[str, str] | None, str | None]:
    """Return the ids of the component and of the run that an event names, and its session.

    Both are None for an event of a member before the ids of its root run are known. The session is
    None for a malformed event.
    """
    try:
        data = orjson.loads(event.data)
        source = source_so_far or (data[f"{kind}_id"], data["run_id"])
        if source_so_far is None and data.get("parent_run_id") is not None:
            return None, None
        return source, data["session_id"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return source_so_far, None


def _is_last(kind: ComponentKind, event: StreamEvent, source: tuple[str, str] | None) -> bool:
    """Return True for the last event of a leg of a run, and not of the run of a member."""
    if event.name not in LAST_NAMES[kind]:
        return False
    try:
        run_id = orjson.loads(event.data)["run_id"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return True
    return source is None or run_id == source[1]


def _build_early_end_error(failure: errors.AgentctlError | None) -> errors.AgentctlError:
    """Return the error of a stream without its last event; a retry may not help as before."""
    if failure is not None and failure.retry_after is None:
        return failure
    closed = "the server, or a proxy in front of it, closed the connection"
    return errors.Unavailable(
        "The stream ended before the run did",
        cause=closed if failure is None else failure.cause,
        hint="check the status of the run with: agentctl runs list",
    )


@contextlib.asynccontextmanager
async def open_remote(
    url: str, token: str | None, *, read_timeout: float | None = None, **options: Any
) -> AsyncIterator[RemoteOperations]:
    """Open the operations of a server.

    The other options are described at `RemoteOperations`.

    Raises:
        errors.Unavailable: the server cannot be reached or does not respond.
        errors.UsageError: see `RemoteOperations`; or the server is a server of AgentOS.
    """
    timeouts = DEFAULT_TIMEOUTS if read_timeout is None else Timeouts(read=read_timeout)
    remote = RemoteOperations(url, token, timeouts=timeouts, **options)

    async with remote as operations:
        raw = await operations.connection.probe(ROUTES["get_info"].template)
        info = (raw is not None and parse_object(raw)) or {}

        # AgentOS has many paths of agentctl, so that a command would show wrong records. A server
        # of agentctl with the setting `compatibility` has both members.
        if "agno_version" in info and "interface_version" not in info:
            raise errors.UsageError(
                f"{url} is a server of AgentOS, not of agentctl",
                hint="use its own command, agnoctl; docs/agentos.md has the way to move its data",
            )
        yield operations
