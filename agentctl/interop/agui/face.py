"""The routes below `/agui`: requests start runs, or continue paused ones (docs/decisions/0062)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentctl.errors import AgentctlError, BadRequest
from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    CancelRequest,
    ResumeRequest,
    RunRequest,
    StreamEvent,
)
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interop.agui.events import AguiEvent, AguiStream, encode
from agentctl.interop.agui.input import AguiRequest, read_input
from agentctl.interop.agui.interrupts import ResumedRun, check_no_interrupt
from agentctl.interop.agui.settings import PREFIX, ROUTE_KINDS, TABLE
from agentctl.light_dataclass import dataclass
from agentctl.records.events import parse_event
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.log_context import add_log_context
from agentctl.records.routes import operation_ids
from agentctl.runs.states import CLIENT_DISCONNECTED
from agentctl.server.answers import EventStreamResponse, wait_for_first_events
from agentctl.server.requests import read_json_body
from agentctl.server.routing import Face, match_route
from agentctl.server.state import Call
from agentctl.work.tasks import read_after_change

Portions = AsyncGenerator[list[StreamEvent]]


class AgUiFace(Face):
    """The face that responds below `/agui`."""

    def serves(self, path: str) -> bool:
        return path == PREFIX or path.startswith(f"{PREFIX}/")

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        match, _ = match_route(call, TABLE)
        kind = ROUTE_KINDS[match.operation]
        exchange = Exchange(call, kind, match.path_params["component_id"])
        response = await exchange.respond()
        await response(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, for a component."""

    call: Call
    kind: ComponentKind
    component_id: str

    async def respond(self) -> Response:
        """Return the stream of the run. If it raises an error, nothing was started or decided."""
        operations = self.call.operations
        ids = operation_ids(self.kind)
        operation = ids.create_run
        path = {KINDS[self.kind].id_field: self.component_id}

        try:
            operations.require(operation, **path)
            operations.require_component(self.kind, self.component_id)
            given = read_input(await read_json_body(self.call))
            keys = self.call.headers.getlist("Idempotency-Key")
            if len(keys) > 1:
                raise BadRequest("The header field Idempotency-Key is given more than once")
            key = keys[0] if keys else None
            known = await operations.find_waiting(
                self.kind,
                self.component_id,
                given.thread_id,
                [answer.interrupt_id for answer in given.answers],
            )
            if given.continues:
                operation = ids.continue_run
                events = self._continue(given, ResumedRun(given, known), key)
            else:
                check_no_interrupt(known)
                events = self._start(given, key)
            first = await wait_for_first_events(self.call.receive, events)
        except ClientDisconnect:
            raise
        except Exception as error:
            await operations.record_refusal(operation, path, error)
            raise

        started = first[0]["metadata"]["agentctl"]
        add_log_context(**started)
        headers = {"X-Session-ID": started["session_id"], "X-Run-ID": started["run_id"]}
        return EventStreamResponse(first, events, encode, headers)

    def _start(self, given: AguiRequest, key: str | None) -> AsyncGenerator[list[AguiEvent]]:
        request = RunRequest(
            message=given.message,
            session_id=given.thread_id,
            idempotency_key=key,
            session_state=given.state,
            dependencies=given.forwarded,
            client_tools=given.tools,
        )
        portions = self.call.operations.stream_run_portions(
            self.kind, self.component_id, request, earlier=given.context
        )
        stream = AguiStream(given.thread_id, given.run_id, attributes=given.has_version)
        return self._translate(stream, portions)

    async def _continue(
        self, given: AguiRequest, continuation: ResumedRun, key: str | None
    ) -> AsyncGenerator[list[AguiEvent]]:
        """Yield the events of the next leg of a run.

        A closed request ends the run, as that of a new run does.
        """
        caller = self.call.caller
        with caller.app_state.followed_runs.reserve(caller.owner):
            stream, portions = await self._open_leg(given, continuation, key)
            try:
                async with contextlib.aclosing(self._translate(stream, portions)) as events:
                    async for portion in events:
                        yield portion
                        if stream.is_over:
                            return
            except (GeneratorExit, asyncio.CancelledError):
                goes_on = portions is not None and not stream.is_over
                if goes_on and key is None:
                    await self._cancel(given, continuation.run_id)
                raise

    async def _open_leg(
        self, given: AguiRequest, continuation: ResumedRun, key: str | None
    ) -> tuple[AguiStream, Portions | None]:
        """Store the decisions of a request; return its stream and the events of the run.

        The events are None if the run still waits for others. They begin with the first leg if the
        request is repeated, or if others have decided.
        """
        operations, run_id = self.call.operations, continuation.run_id
        after = set(continuation.decided)
        portions: Portions | None
        if continuation.decisions:
            request = ContinueRequest(
                tuple(continuation.decisions),
                dependencies=given.forwarded,
                idempotency_key=key or continuation.key,
            )
            continued = await operations.begin_continuation(
                self.kind, self.component_id, run_id, request
            )
            portions = None if continued is None else operations.follow_continuation(continued)
            if continued is not None and continued.after == BEFORE_FIRST_EVENT:
                after |= {each.approval_id for each in continuation.decisions if each.approval_id}
        else:
            portions = await operations.open_resumed_stream(
                self.kind, self.component_id, run_id, ResumeRequest(session_id=given.thread_id)
            )
        stream = AguiStream(
            given.thread_id, given.run_id, attributes=given.has_version, after=frozenset(after)
        )
        stream.root_id = run_id
        return stream, portions

    async def _cancel(self, given: AguiRequest, run_id: str) -> None:
        """Cancel the run of a page that has left, unless `server.on_disconnect` is `detach`."""
        settings = self.call.caller.app_state.settings
        if settings.server.on_disconnect != "cancel":
            return
        request = CancelRequest(given.thread_id, wait=0, reason=CLIENT_DISCONNECTED)
        # No one is left to read the error: the run has ended, or the database does not answer.
        with contextlib.suppress(AgentctlError):
            await self.call.operations.cancel_run(self.kind, self.component_id, run_id, request)

    async def _translate(
        self, stream: AguiStream, portions: Portions | None
    ) -> AsyncGenerator[list[AguiEvent]]:
        """Yield the events of a stream, each portion as soon as it is there.

        Without portions the run still waits.
        """
        thread_id = stream.thread_id
        if portions is None:
            root_id = stream.root_id or ""
            state = await self._read_state(thread_id, root_id)
            started = [*stream.start(root_id, state)]
            await self._wait(stream)
            ending = stream.finish(state) if stream.is_over else stream.abort()
            yield [*started, *ending]
            return
        root_id = ""
        async with contextlib.aclosing(portions):
            async for portion in portions:
                events: list[AguiEvent] = []
                if not root_id:
                    first = portion[0]
                    root_id = (
                        stream.root_id or parse_event(first.name, first.data, first.seq).run_id
                    )
                    events += stream.start(root_id, await self._read_state(thread_id, root_id))
                was_over = stream.is_over
                for sent in portion:
                    events += stream.read(sent)
                if stream.is_over and not was_over:
                    events += stream.finish(await self._read_state(thread_id, root_id))
                if events:
                    yield events
        if root_id and not stream.is_over:
            await self._wait(stream)
            yield [*(stream.finish(None) if stream.is_over else stream.abort())]

    async def _wait(self, stream: AguiStream) -> None:
        """End a stream with what its run still waits for, if it does."""
        find = partial(
            self.call.operations.find_waiting, self.kind, self.component_id, stream.thread_id
        )
        known = await read_after_change(find, stream.root_id or "")
        asked = [each for each in known if each["root_run_id"] == stream.root_id]
        if asked:
            stream.wait(asked)

    async def _read_state(self, session_id: str, run_id: str) -> dict[str, Any] | None:
        """Return the state of the session; None if the caller may not read sessions."""
        read = partial(self.call.operations.read_state, self.kind, self.component_id, session_id)
        return await read_after_change(read, run_id)
