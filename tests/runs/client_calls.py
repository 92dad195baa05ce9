"""Calls of clients to processes that may die, with checks of the responses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentctl import errors
from agentctl.interface.requests import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.runs import RunRow
from agentctl.records.times import format_rfc3339
from agentctl.runs.states import is_final
from tests.runs.database_invariants import InvariantChecker
from tests.runs.simulated_processes import Process

__all__ = [
    "Call",
    "CancelCall",
    "DeleteCall",
    "FollowCall",
    "RequestedRun",
    "StartCall",
    "check_cancel",
    "check_numbers",
    "component_of",
    "event_data",
    "is_end",
]

ENDS = ("Completed", "Cancelled", "Error")


@dataclass
class RequestedRun:
    """A request for a run, sent once or, with an idempotency key, several times.

    Attributes:
        given: ids of the runs in the responses.
    """

    kind: ComponentKind
    component_id: str
    request: RunRequest
    stream: bool
    given: set[str] = field(default_factory=set)


class Call:
    """One call of a client, as a task of a process.

    Attributes:
        has_response: True if the client got a response. It gets none if the process dies first or
            if the client disconnects.
        error: the exception that the call raised.
    """

    def __init__(self, process: Process, checker: InvariantChecker) -> None:
        self.process = process
        self.checker = checker
        self.has_response = False
        self.left = False
        self.error: errors.AgentctlError | None = None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = self.process.spawn(self._run())

    def disconnect(self) -> None:
        """Disconnect the client."""
        assert self.task is not None
        if not self.task.done():
            self.left = True
            self.task.cancel()

    @property
    def done(self) -> bool:
        return self.task is not None and self.task.done()

    async def _run(self) -> None:
        try:
            await self.work()
        except errors.AgentctlError as error:
            self.error = error
        self.has_response = self.process.alive and not self.left

    def work(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def check(self) -> None:
        """Compare the response with the stored data, once the call is done."""
        assert self.task is not None
        if not self.task.cancelled():
            failure = self.task.exception()
            if failure is not None and not self.left and self.process.alive:
                raise failure
        if not self.has_response:
            return
        if self.error is not None:
            self.check_error(self.error)
        else:
            self.check_response()

    def check_error(self, error: errors.AgentctlError) -> None:
        if isinstance(error, errors.Unavailable) and self.process.stopping:
            return
        raise AssertionError(f"{self} was refused") from error

    def check_response(self) -> None:
        raise NotImplementedError

    def stored_run(self, run_id: str) -> RunRow | None:
        """Return the run as the checker read it last; None if it was deleted."""
        assert run_id in self.checker.created, f"{run_id} was acknowledged and is not there"
        return self.checker.runs.get(run_id)


class StartCall(Call):
    """Starts a run, and waits for it or follows it.

    Attributes:
        run_id: set once the client knows it.
    """

    def __init__(self, process: Process, checker: InvariantChecker, asked: RequestedRun) -> None:
        super().__init__(process, checker)
        self.asked = asked
        self.run_id: str | None = None
        self.record: dict[str, Any] = {}
        self.events: list[StreamEvent] = []

    async def work(self) -> None:
        asked = self.asked
        if asked.stream:
            events = self.process.operations.runs.stream(
                asked.kind, asked.component_id, asked.request
            )
            async for event in events:
                if self.process.alive:
                    self.events.append(event)
                    self.run_id = self.run_id or event_data(event)["run_id"]
            return
        answer = await self.process.operations.runs.create(
            asked.kind, asked.component_id, asked.request
        )
        if self.process.alive:
            self.record = dict(answer.value)
            self.run_id = self.record["run_id"]

    def check(self) -> None:
        if self.run_id is not None:
            self.asked.given.add(self.run_id)
            assert len(self.asked.given) == 1, "one request has made two runs"
            check_numbers(self.stored_run(self.run_id), self.run_id, self.events, -1)
        super().check()

    def check_error(self, error: errors.AgentctlError) -> None:
        request = self.asked.request
        if isinstance(error, errors.Conflict):
            busy = self.asked.component_id == "sole"
            assert busy or (request.idempotency_key is not None and self._gone()), error
        elif isinstance(error, errors.NotFound):
            assert self._gone(), error
        else:
            super().check_error(error)

    def _gone(self) -> bool:
        """Return True if its run may have been deleted."""
        return bool(self.checker.deleted)

    def check_response(self) -> None:
        if self.asked.stream:
            if self.run_id is not None:
                check_complete(self, self.run_id, self.events)
            return
        assert self.run_id is not None
        run = self.stored_run(self.run_id)
        if not self.asked.request.background:
            assert is_final(self.record["status"]), self.record
        if run is not None and is_final(self.record["status"]):
            check_same_end(self.record, run)


class FollowCall(Call):
    """Follows a run after an event."""

    def __init__(
        self, process: Process, checker: InvariantChecker, run: RunRow, after: int
    ) -> None:
        super().__init__(process, checker)
        self.run = run
        self.run_id = run.run_id
        self.after = after
        self.events: list[StreamEvent] = []

    async def work(self) -> None:
        request = ResumeRequest(self.run.session_id, self.after)
        kind, component_id = component_of(self.run)
        async for event in self.process.operations.runs.resume(
            kind, component_id, self.run_id, request
        ):
            if self.process.alive:
                self.events.append(event)

    def check(self) -> None:
        check_numbers(self.stored_run(self.run_id), self.run_id, self.events, self.after)
        super().check()

    def check_error(self, error: errors.AgentctlError) -> None:
        if isinstance(error, errors.NotFound) and not self.events:
            assert self.run_id in self.checker.deleted
        else:
            super().check_error(error)

    def check_response(self) -> None:
        check_complete(self, self.run_id, self.events, self.after)


class CancelCall(Call):
    """Cancels a run.

    Attributes:
        before: the stored row at the time of the request.
        orphaned: True if its worker was dead at that time.
    """

    def __init__(
        self, process: Process, checker: InvariantChecker, run: RunRow, wait: float, reason: str
    ) -> None:
        super().__init__(process, checker)
        self.run = run
        self.request = CancelRequest(run.session_id, wait, reason)
        self.before: RunRow | None = None
        self.orphaned = False
        self.record: dict[str, Any] = {}

    async def work(self) -> None:
        self.before = self.checker.read_run(self.run.run_id)
        kind, component_id = component_of(self.run)
        answer = await self.process.operations.runs.cancel(
            kind, component_id, self.run.run_id, self.request
        )
        self.record = dict(answer.value)

    def check_error(self, error: errors.AgentctlError) -> None:
        if isinstance(error, errors.NotFound):
            assert self.run.run_id in self.checker.deleted
        else:
            super().check_error(error)

    def check_response(self) -> None:
        run = self.stored_run(self.run.run_id)
        if run is not None and self.before is not None:
            check_cancel(self.record, self.before, run)
            if self.orphaned and not is_final(self.before.status):
                assert self.record["cancel"] != "requested", "its worker was dead"


class DeleteCall(Call):
    """Deletes a session."""

    def __init__(
        self, process: Process, checker: InvariantChecker, session_id: str, *, cancel: bool
    ) -> None:
        super().__init__(process, checker)
        self.session_id = session_id
        self.cancel = cancel

    async def work(self) -> None:
        await self.process.operations.sessions.delete(self.session_id, cancel=self.cancel)

    def check_error(self, error: errors.AgentctlError) -> None:
        if not isinstance(error, errors.NotFound | errors.Conflict):
            super().check_error(error)

    def check_response(self) -> None:
        """Do nothing: the checker detects the deleted runs."""


def check_cancel(answer: dict[str, Any], before: RunRow, run: RunRow) -> None:
    """Compare the response to a cancel with the stored rows before and after it."""
    outcome = answer["cancel"]
    status = answer["status"]
    if is_final(before.status):
        assert (outcome, status) == ("already_final", before.status), (answer, before)
    if outcome == "requested":
        assert not is_final(status), answer
        assert run.cancel_requested_at is not None, (answer, run)
        return
    assert is_final(run.status), (answer, run)
    check_same_end(answer, run)
    assert answer["reason"] == run.cancel_reason, (answer, run)
    if outcome == "stopped":
        assert status == "CANCELLED", answer
    elif not is_final(before.status):
        # It finished first: a run that another request stopped counts as stopped.
        assert outcome == "already_final", answer


def check_same_end(record: dict[str, Any], run: RunRow) -> None:
    """Check that the reported final status is the stored one."""
    assert record["status"] == run.status, (record, run)
    assert run.finished_at is not None
    assert record["finished_at"] == format_rfc3339(run.finished_at), (record, run)


def component_of(run: RunRow) -> tuple[ComponentKind, str]:
    kind: Any = run.component_type
    return kind, run.component_id


def event_data(event: StreamEvent) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(event.data)
    return data


def is_end(run_id: str, event: StreamEvent) -> bool:
    """Return True if an event is the last one of a run."""
    names = {f"{kind.event_prefix}{end}" for kind in KINDS.values() for end in ENDS}
    return event.name in names and bool(event_data(event)["run_id"] == run_id)


def check_numbers(run: RunRow | None, run_id: str, events: list[StreamEvent], after: int) -> None:
    """Check that event numbers grow by one and that no event follows the last one.

    Only the number of the last event may have a gap: that of an orphaned run, or of a run without
    content whose events were not stored.

    Args:
        run: the stored row; None if it was deleted.
    """
    expected = after + 1
    for event in events[:-1]:
        assert not is_end(run_id, event), (run_id, events)
        assert event.seq == expected, (run_id, expected, events)
        expected += 1
    for end in events[-1:]:
        lost = run is None or run.attempt > 1
        assert (
            end.seq == expected
            or (is_end(run_id, end) and lost and end.seq > expected)
            or (is_end(run_id, end) and (expected, end.seq) == (0, 1))
        ), (run_id, expected, events)


def check_complete(call: Call, run_id: str, events: list[StreamEvent], after: int = -1) -> None:
    """Check that a follower that read all events has the last event."""
    run = call.stored_run(run_id)
    if run is None or call.process.stopping:
        return
    if not events:
        assert after >= 0, f"{run_id} was followed and said nothing"
        return
    end = events[-1]
    assert is_end(run_id, end), (run_id, end)
    assert end.name.endswith(run.status.title()), (run, end)
