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
PageEvents = AsyncGenerator[list[PageEvent]]
GivenT = TypeVar("GivenT", bound=PageRequest)


class PageFace(Face):
    """The face that responds to the requests of a protocol for pages, below one path."""

    def __init__(
        self, prefix: str, routes: Mapping[str, PageRoute], exchange: type[PageExchange[Any]]
    ) -> None:
        self.paths = (prefix,)
        self.prefixes = (f"{prefix}/",)
        self._routes = routes
        self._table = RouteTable({name: each.route for name, each in routes.items()})
        self._exchange = exchange

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        match, _ = match_route(call, self._table)
        route = self._routes[match.operation]
        response = await self._exchange(call, route, match.path_params).respond()
        await response(scope, receive, send)


class PageExchange(Generic[GivenT]):
    """One request, for a component. A protocol is a subclass.

    Attributes:
        headers: further header fields of streams.
        ending: bytes after the last event of a stream.
        operation: the operation that the request executes.
    """

    headers: ClassVar[Mapping[str, str]] = {}
    ending: ClassVar[bytes] = b""

    def __init__(self, call: Call, route: PageRoute, path: Mapping[str, str]) -> None:
        self.call = call
        self.verb, self.kind, _, self.operation = route
        self.path = path
        self.component_id = path["component_id"]
        self.operations = call.operations
        self.stream: PageStream | None = None

    def read_request(self, body: object) -> GivenT:
        """Return the request of a parsed body; ValidationFailed for a field that is not valid."""
        raise NotImplementedError

    def build_stream(
        self, given: GivenT, resumed: ResumedRun | None, after: set[str]
    ) -> PageStream:
        """Return the stream of a request: of a new run, or of the next leg of a paused one."""
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
        given = self.read_request(await self.call.json())

        keys = self.call.headers.getlist("Idempotency-Key")
        if len(keys) > 1:
            raise BadRequest("The header field Idempotency-Key is given more than once")
        key = keys[0] if keys else None

        if not given.continues:
            self.operations.runs.require_open(self.kind, self.component_id)
        known = await self.operations.conversations.find_waiting(
            self.kind,
            self.component_id,
            given.thread_id,
            [answer.approval_id for answer in given.answers],
        )

        if given.continues:
            self.operation = operation_ids(self.kind).continue_run
            events = self._continue(given, ResumedRun(given, known), key)
        else:
            check_no_interrupt(known)
            stream = self.stream = self.build_stream(given, None, set())
            events = self.translate(stream, await self.start(given, key))

        first = await wait_for_first_events(self.call.receive, events)
        assert self.stream is not None
        return self.send(self.stream, first, events)

    def send(
        self, stream: PageStream, first: list[PageEvent] | None, events: PageEvents
    ) -> Response:
        """Return the response with a stream; without first events it only follows a run."""
        ids = {"session_id": stream.thread_id, "run_id": stream.root_id}
        add_log_context(**ids)
        headers = {"X-Session-ID": ids["session_id"], "X-Run-ID": ids["run_id"], **self.headers}
        return EventStreamResponse(first, events, self._encode, headers)

    def _encode(self, events: list[PageEvent]) -> bytes:
        return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) or self.ending

    async def start(self, given: GivenT, key: str | None) -> Portions:
        """Return the events of a new run, which starts with the first one."""
        database = self.operations.runs.find_database_id(self.kind, self.component_id)
        request = requests.RunRequest(
            message=given.message,
            files=await store_files(self.operations, given.files, database),
            session_id=given.thread_id,
            idempotency_key=key,
            session_state=given.state,
            dependencies=given.dependencies,
            client_tools=given.tools,
        )
        return self.operations.runs.stream_portions(
            self.kind, self.component_id, request, earlier=given.context
        )

    async def _continue(self, given: GivenT, resumed: ResumedRun, key: str | None) -> PageEvents:
        """Yield the events of the next leg of a run.

        A closed request ends the run, as that of a new run does.
        """
        caller = self.call.caller
        with caller.app_state.followed_runs.reserve(caller.owner):
            portions = await self._open_leg(given, resumed, key)
            stream = self.stream
            assert stream is not None
            try:
                async with contextlib.aclosing(self.translate(stream, portions)) as events:
                    async for portion in events:
                        yield portion
                        if stream.is_over:
                            return
            except (GeneratorExit, asyncio.CancelledError):
                goes_on = portions is not None and not stream.is_over
                if goes_on and key is None:
                    await self._leave(given, resumed.run_id)
                raise

    async def _open_leg(
        self, given: GivenT, resumed: ResumedRun, key: str | None
    ) -> Portions | None:
        """Store the decisions of a request; return the events of the run, and open its stream.

        The events are None if the run still waits for others. They begin with the first leg if the
        request is repeated, or if others have decided.
        """
        run_id = resumed.run_id
        after = set(resumed.decided)
        portions: Portions | None
        if resumed.decisions:
            request = ContinueRequest(
                tuple(resumed.decisions),
                dependencies=given.dependencies,
                idempotency_key=key or resumed.key,
            )
            continued = await self.operations.runs.begin_continuation(
                self.kind, self.component_id, run_id, request
            )
            portions = (
                None if continued is None else self.operations.runs.follow_continuation(continued)
            )
            if continued is not None and continued.after == requests.BEFORE_FIRST_EVENT:
                after |= {each.approval_id for each in resumed.decisions if each.approval_id}
        else:
            portions = await self.resume(run_id, given.thread_id)
        self.stream = self.build_stream(given, resumed, after)
        self.stream.root_id = run_id
        return portions

    async def resume(self, run_id: str, session_id: str) -> Portions:
        """Return the events of a run from the first one on."""
        request = requests.ResumeRequest(session_id=session_id)
        return await self.operations.runs.open_stream(
            "resume", self.kind, self.component_id, run_id, request
        )

    async def _leave(self, given: GivenT, run_id: str) -> None:
        """Cancel the run of a page that has left, unless `server.on_disconnect` is `detach`."""
        settings = self.call.caller.app_state.settings
        if settings.server.on_disconnect != "cancel":
            return
        request = requests.CancelRequest(given.thread_id, wait=0, reason=CLIENT_DISCONNECTED)
        # No one is left to read the error: the run has ended, or the database does not answer.
        with contextlib.suppress(AgentctlError):
            await self.operations.runs.cancel(self.kind, self.component_id, run_id, request)

    async def translate(self, stream: PageStream, portions: Portions | None) -> PageEvents:
        """Yield the events of a stream, each portion as soon as it is there.

        Without portions the run still waits.
        """
        if portions is None:
            state = await self._read_state(stream)
            started = [*stream.start(state)]
            await self._wait(stream)
            ending = stream.finish(state) if stream.is_over else stream.abort()
            yield [*started, *ending]
            return
        is_started = is_finished = False
        async with contextlib.aclosing(portions):
            async for portion in portions:
                events: list[PageEvent] = []
                if not is_started:
                    first = portion[0]
                    is_started = True
                    opening = parse_event(first.name, first.data, first.seq)
                    stream.root_id = stream.root_id or opening.run_id
                    stream.version = opening.data.get("version")
                    events += stream.start(await self._read_state(stream))
                for sent in portion:
                    events += stream.read(sent)
                if stream.is_over and not (is_finished or stream.replays):
                    is_finished = True
                    events += stream.finish(await self._read_state(stream))
                if events:
                    yield events
        if is_started and not is_finished:
            if not stream.is_over:
                await self._wait(stream)
            yield [*(stream.finish(None) if stream.is_over else stream.abort())]

    async def _wait(self, stream: PageStream) -> None:
        """End a stream with what its run still waits for, if it does."""
        find = partial(
            self.operations.conversations.find_waiting,
            self.kind,
            self.component_id,
            stream.thread_id,
        )
        known = await read_after_change(find, stream.root_id)
        asked = [each for each in known if each["root_run_id"] == stream.root_id]
        if asked:
            stream.wait(asked)

    async def _read_state(self, stream: PageStream) -> dict[str, Any] | None:
        """Return the state of the session; None if the stream has none, or for other readers."""
        if not stream.has_state:
            return None
        read = partial(
            self.operations.conversations.read_state, self.kind, self.component_id, stream.thread_id
        )
        return await read_after_change(read, stream.root_id)
