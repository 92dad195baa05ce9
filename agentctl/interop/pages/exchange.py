"""Requests of pages: they start runs, or continue paused ones (decision 62)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentctl.errors import AgentctlError, BadRequest
from agentctl.interface import requests
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interop.pages.request import PageRequest, ResumedRun, check_no_interrupt
from agentctl.interop.pages.stream import PageEvent, PageStream
from agentctl.interop.routes import PageRoute
from agentctl.records.events import parse_event
from agentctl.records.kinds import KINDS
from agentctl.records.logs import add_log_context
from agentctl.records.routes import RouteTable, operation_ids
from agentctl.runs.states import CLIENT_DISCONNECTED
from agentctl.server.answers import Call, EventStreamResponse, wait_for_first_events
from agentctl.server.given_files import store_files
from agentctl.server.routing import Face, match_route
from agentctl.work.event_loop import read_after_change

Portions = AsyncGenerator[list[requests.StreamEvent]]
"""Events of a run, as they become known together."""

PageEvents = AsyncGenerator[list[PageEvent]]
"""Events of a page, as they are sent together."""

RequestT = TypeVar("RequestT", bound=PageRequest)


class PageFace(Face):
    """The face that responds to the requests of a protocol for pages, below one path."""

    def __init__(
        self, prefix: str, routes: Mapping[str, PageRoute], exchange: type[PageExchange[Any]]
    ) -> None:
        self.paths = (prefix,)
        self.prefixes = (f"{prefix}/",)
        self._routes = routes
        self._table = RouteTable({name: page_route.route for name, page_route in routes.items()})
        self._exchange = exchange

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        match, _ = match_route(call, self._table)
        route = self._routes[match.operation]
        response = await self._exchange(call, route, match.path_params).respond()
        await response(scope, receive, send)


class PageExchange(Generic[RequestT]):
    """One request, for a component. A protocol is a subclass."""

    headers: ClassVar[Mapping[str, str]] = {}
    """Further header fields of streams."""

    ending: ClassVar[bytes] = b""
    """Bytes after the last event of a stream."""

    def __init__(self, call: Call, route: PageRoute, path: Mapping[str, str]) -> None:
        self.call = call
        self.verb = route.verb
        self.kind = route.kind
        self.path = path
        self.component_id = path["component_id"]
        self.operations = call.operations

        self.operation = route.operation
        """The operation that the request executes, for its policy and its audit entry."""

        self.stream: PageStream | None = None
        """The stream of the response; None until it is known."""

    def read_request(self, body: object) -> RequestT:
        """Return the request of a parsed body; ValidationFailed for a field that is not valid."""
        raise NotImplementedError

    def build_stream(
        self, page_request: RequestT, resumed: ResumedRun | None, after: set[str]
    ) -> PageStream:
        """Return the stream of a request: of a new run, or of the next leg of a paused run.

        Args:
            resumed: the paused run; None for a new run.
            after: ids of approvals: the events up to the pause that has them are not shown.
        """
        raise NotImplementedError

    async def respond(self) -> Response:
        """Respond to the request, and record it if it is refused."""
        path = {KINDS[self.kind].id_field: self.component_id}
        try:
            # `match_route` has refused path parameters that cannot be ids.
            self.operations.access.admit(self.operation, path)
            self.operations.components.require(self.kind, self.component_id)
            return await self.handle()
        except ClientDisconnect:
            raise
        except Exception as error:
            await self.operations.access.record_refusal(self.operation, path, error)
            raise

    async def handle(self) -> Response:
        """Respond to a request whose caller may execute `operation` on the component."""
        return await self._open()

    async def _open(self) -> Response:
        """Return the stream of a run. If it raises an error, nothing was started or decided."""
        page_request = self.read_request(await self.call.json())

        keys = self.call.headers.getlist("Idempotency-Key")
        if len(keys) > 1:
            raise BadRequest("The header field Idempotency-Key is given more than once")
        key = keys[0] if keys else None

        if not page_request.continues:
            self.operations.runs.require_open(self.kind, self.component_id)
        known_approvals = await self.operations.conversations.find_waiting(
            self.kind,
            self.component_id,
            page_request.thread_id,
            [answer.approval_id for answer in page_request.answers],
        )

        if page_request.continues:
            self.operation = operation_ids(self.kind).continue_run
            resumed = ResumedRun(page_request, known_approvals)
            events = self._continue(page_request, resumed, key)
        else:
            check_no_interrupt(known_approvals)
            stream = self.build_stream(page_request, None, set())
            self.stream = stream
            events = self.translate(stream, await self.start(page_request, key))

        first = await wait_for_first_events(self.call.receive, events)
        assert self.stream is not None
        return self.send(self.stream, first, events)

    def send(
        self, stream: PageStream, first: list[PageEvent] | None, events: PageEvents
    ) -> Response:
        """Return the response with a stream; without first events it only follows a run."""
        add_log_context(session_id=stream.thread_id, run_id=stream.root_id)
        headers = {"X-Session-ID": stream.thread_id, "X-Run-ID": stream.root_id, **self.headers}
        return EventStreamResponse(first, events, self._encode, headers)

    def _encode(self, events: list[PageEvent]) -> bytes:
        """Return the bytes of a portion; an empty portion is the end of the stream."""
        if not events:
            return self.ending
        return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events)

    async def start(self, page_request: RequestT, key: str | None) -> Portions:
        """Return the events of a new run. The run starts when the first event is awaited."""
        database = self.operations.runs.find_database_id(self.kind, self.component_id)
        request = requests.RunRequest(
            message=page_request.message,
            files=await store_files(self.operations, page_request.files, database),
            session_id=page_request.thread_id,
            idempotency_key=key,
            session_state=page_request.state,
            dependencies=page_request.dependencies,
            client_tools=page_request.tools,
        )
        return self.operations.runs.stream_portions(
            self.kind, self.component_id, request, earlier=page_request.context
        )

    async def _continue(
        self, page_request: RequestT, resumed: ResumedRun, key: str | None
    ) -> PageEvents:
        """Yield the events of the next leg of a run.

        If the page closes the request before the end, the run is cancelled, like a new run.
        """
        caller = self.call.caller
        with caller.app_state.followed_runs.reserve(caller.owner):
            portions = await self._open_leg(page_request, resumed, key)
            stream = self.stream
            assert stream is not None
            try:
                async with contextlib.aclosing(self.translate(stream, portions)) as events:
                    async for portion in events:
                        yield portion
                        if stream.is_over:
                            return
            except (GeneratorExit, asyncio.CancelledError):
                is_at_work = portions is not None and not stream.is_over
                # With a key the page can repeat the request, and get the same run.
                if is_at_work and key is None:
                    await self._leave(page_request, resumed.run_id)
                raise

    async def _open_leg(
        self, page_request: RequestT, resumed: ResumedRun, key: str | None
    ) -> Portions | None:
        """Store the decisions of a request; return the events of the run, and open its stream.

        The events are None if the run still waits for the decisions of other people. They begin
        with the first leg if the request is repeated, or if other people have decided everything.
        """
        run_id = resumed.run_id
        after = set(resumed.decided)
        portions: Portions | None = None

        if resumed.decisions:
            request = ContinueRequest(
                tuple(resumed.decisions),
                dependencies=page_request.dependencies,
                idempotency_key=key or resumed.key,
            )
            continued = await self.operations.runs.begin_continuation(
                self.kind, self.component_id, run_id, request
            )
            if continued is not None:
                portions = self.operations.runs.follow_continuation(continued)
                if continued.after == requests.BEFORE_FIRST_EVENT:
                    # The page has the events before these decisions.
                    after |= {
                        ruling.approval_id for ruling in resumed.decisions if ruling.approval_id
                    }
        else:
            portions = await self.resume(run_id, page_request.thread_id)

        self.stream = self.build_stream(page_request, resumed, after)
        self.stream.root_id = run_id
        return portions

    async def resume(self, run_id: str, session_id: str) -> Portions:
        """Return all events of a run, also the later ones."""
        request = requests.ResumeRequest(session_id=session_id)
        return await self.operations.runs.open_stream(
            "resume", self.kind, self.component_id, run_id, request
        )

    async def _leave(self, page_request: RequestT, run_id: str) -> None:
        """Cancel the run of a page that has left, unless `server.on_disconnect` is `detach`."""
        settings = self.call.caller.app_state.settings
        if settings.server.on_disconnect != "cancel":
            return
        request = requests.CancelRequest(page_request.thread_id, wait=0, reason=CLIENT_DISCONNECTED)
        # No one is left to read the error: the run has ended, or the database does not answer.
        with contextlib.suppress(AgentctlError):
            await self.operations.runs.cancel(self.kind, self.component_id, run_id, request)

    async def translate(self, stream: PageStream, portions: Portions | None) -> PageEvents:
        """Yield the events of a stream, each portion as soon as it is there.

        Args:
            portions: the events of the run; None if the run still waits.
        """
        if portions is None:
            state = await self._read_state(stream)
            events = list(stream.start(state))
            await self._end_by_pause(stream)
            events += stream.finish(state) if stream.is_over else stream.abort()
            yield events
            return

        is_started = False
        is_finished = False
        async with contextlib.aclosing(portions):
            async for portion in portions:
                events = []
                if not is_started:
                    is_started = True
                    first = portion[0]
                    opening = parse_event(first.name, first.data, first.seq)
                    stream.root_id = stream.root_id or opening.run_id
                    stream.version = opening.data.get("version")
                    events += stream.start(await self._read_state(stream))

                for stream_event in portion:
                    events += stream.read(stream_event)

                if stream.is_over and not is_finished and not stream.replays:
                    is_finished = True
                    events += stream.finish(await self._read_state(stream))
                if events:
                    yield events

        # The events ended without the end of the stream: the run waits, or its process is gone.
        if is_started and not is_finished:
            if not stream.is_over:
                await self._end_by_pause(stream)
            yield list(stream.finish(None) if stream.is_over else stream.abort())

    async def _end_by_pause(self, stream: PageStream) -> None:
        """End a stream with the approvals that its run still waits for, if there are any."""
        find_waiting = partial(
            self.operations.conversations.find_waiting,
            self.kind,
            self.component_id,
            stream.thread_id,
        )
        known_approvals = await read_after_change(find_waiting, stream.root_id)
        approvals = [
            approval for approval in known_approvals if approval["root_run_id"] == stream.root_id
        ]
        if approvals:
            stream.wait(approvals)

    async def _read_state(self, stream: PageStream) -> dict[str, Any] | None:
        """Return the state of the session; None if the stream or the caller may not have it."""
        if not stream.has_state:
            return None
        read_state = partial(
            self.operations.conversations.read_state, self.kind, self.component_id, stream.thread_id
        )
        return await read_after_change(read_state, stream.root_id)
