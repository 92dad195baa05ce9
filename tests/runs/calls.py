"""What clients ask of processes that may die meanwhile, and whether what they are told is so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import orjson

from agentctl import errors
from agentctl.operations import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.times import format_rfc3339
from agentctl.runs.states import is_final
from agentctl.store.repositories.runs import RunRow
from tests.runs.processes import Process
from tests.runs.witness import Witness

__all__ = [
    "Asked",
    "Call",
    "Cancelling",
    "Deleting",
    "Following",
    "Starting",
    "check_cancel",
    "check_numbers",
    "is_end",
    "named",
    "said",
]

ENDS = ("Completed", "Cancelled", "Error")


@dataclass
class Asked:
    """A run that somebody wants: one request, made once or, with a key, often.

    Attributes:
        given: the ids of the runs that it was answered with.
    """

    kind: ComponentKind
    component_id: str
    request: RunRequest
    stream: bool
    given: set[str] = field(default_factory=set)


class Call:
    """One thing that a client asks of a process, as a task of it.

    Attributes:
        heard: whether the client has an answer; it has none when the process dies first, or when
            it went away itself.
        error: what was raised to it.
    """

    def __init__(self, process: Process, witness: Witness) -> None:
        self.process = process
        self.witness = witness
        self.heard = False
        self.left = False
        self.error: errors.AgentctlError | None = None
        self.task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.task = self.process.spawn(self._made())

    def leave(self) -> None:
        """The client goes away."""
        assert self.task is not None
        if not self.task.done():
            self.left = True
            self.task.cancel()

    @property
    def done(self) -> bool:
        return self.task is not None and self.task.done()

    async def _made(self) -> None:
        try:
            await self.work()
        except errors.AgentctlError as error:
            self.error = error
        self.heard = self.process.alive and not self.left

    def work(self) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def check(self) -> None:
        """Hold what was heard against what is stored. Once, when it is done."""
        assert self.task is not None
        if not self.task.cancelled():
            failure = self.task.exception()
            if failure is not None and not self.left and self.process.alive:
                raise failure
        if not self.heard:
            return
        if self.error is not None:
            self.refused(self.error)
        else:
            self.answered()

    def refused(self, error: errors.AgentctlError) -> None:
        if isinstance(error, errors.Unavailable) and self.process.stopping:
            return
        raise AssertionError(f"{self} was refused") from error

    def answered(self) -> None:
        raise NotImplementedError

    def stored(self, run_id: str) -> RunRow | None:
        """The run as the witness saw it last; None when it was deleted."""
        assert run_id in self.witness.born, f"{run_id} was acknowledged and is not there"
        return self.witness.runs.get(run_id)


class Starting(Call):
    """Start a run, and wait for it or follow it as the request says.

    Attributes:
        run_id: once the client knows it.
    """

    def __init__(self, process: Process, witness: Witness, asked: Asked) -> None:
        super().__init__(process, witness)
        self.asked = asked
        self.run_id: str | None = None
        self.record: dict[str, Any] = {}
        self.events: list[StreamEvent] = []

    async def work(self) -> None:
        asked = self.asked
        if asked.stream:
            events = self.process.port.stream_run(asked.kind, asked.component_id, asked.request)
            async for event in events:
                if self.process.alive:
                    self.events.append(event)
                    self.run_id = self.run_id or said(event)["run_id"]
            return
        answer = await self.process.port.create_run(asked.kind, asked.component_id, asked.request)
        if self.process.alive:
            self.record = dict(answer.value)
            self.run_id = self.record["run_id"]

    def check(self) -> None:
        if self.run_id is not None:
            self.asked.given.add(self.run_id)
            assert len(self.asked.given) == 1, "one request has made two runs"
            check_numbers(self.stored(self.run_id), self.run_id, self.events, -1)
        super().check()

    def refused(self, error: errors.AgentctlError) -> None:
        request = self.asked.request
        if isinstance(error, errors.Conflict):
            busy = self.asked.component_id == "sole"
            assert busy or (request.idempotency_key is not None and self._gone()), error
        elif isinstance(error, errors.NotFound):
            assert self._gone(), error
        else:
            super().refused(error)

    def _gone(self) -> bool:
        """Whether its run may have been deleted."""
        return bool(self.witness.deleted)

    def answered(self) -> None:
        if self.asked.stream:
            if self.run_id is not None:
                check_complete(self, self.run_id, self.events)
            return
        assert self.run_id is not None
        run = self.stored(self.run_id)
        if not self.asked.request.background:
            assert is_final(self.record["status"]), self.record
        if run is not None and is_final(self.record["status"]):
            assert_agree(self.record, run)


class Following(Call):
    """Follow a run from behind some event on."""

    def __init__(self, process: Process, witness: Witness, run: RunRow, after: int) -> None:
        super().__init__(process, witness)
        self.run = run
        self.run_id = run.run_id
        self.after = after
        self.events: list[StreamEvent] = []

    async def work(self) -> None:
        request = ResumeRequest(self.run.session_id, self.after)
        kind, component_id = named(self.run)
        async for event in self.process.port.resume_run(kind, component_id, self.run_id, request):
            if self.process.alive:
                self.events.append(event)

    def check(self) -> None:
        check_numbers(self.stored(self.run_id), self.run_id, self.events, self.after)
        super().check()

    def refused(self, error: errors.AgentctlError) -> None:
        if isinstance(error, errors.NotFound) and not self.events:
            assert self.run_id in self.witness.deleted
        else:
            super().refused(error)

    def answered(self) -> None:
        check_complete(self, self.run_id, self.events, self.after)


class Cancelling(Call):
    """Ask a run to stop.

    Attributes:
        before: the run as it was stored when the request was made.
        orphaned: whether its worker was dead then.
    """

    def __init__(
        self, process: Process, witness: Witness, run: RunRow, wait: float, reason: str
    ) -> None:
        super().__init__(process, witness)
        self.run = run
        self.request = CancelRequest(run.session_id, wait, reason)
        self.before: RunRow | None = None
        self.orphaned = False
        self.record: dict[str, Any] = {}

    async def work(self) -> None:
        self.before = self.witness.run(self.run.run_id)
        kind, component_id = named(self.run)
        answer = await self.process.port.cancel_run(
            kind, component_id, self.run.run_id, self.request
        )
        self.record = dict(answer.value)

    def refused(self, error: errors.AgentctlError) -> None:
        if isinstance(error, errors.NotFound):
            assert self.run.run_id in self.witness.deleted
        else:
            super().refused(error)

    def answered(self) -> None:
        run = self.stored(self.run.run_id)
        if run is not None and self.before is not None:
            check_cancel(self.record, self.before, run)
            if self.orphaned and not is_final(self.before.status):
                assert self.record["cancel"] != "requested", "its worker was dead"


class Deleting(Call):
    """Delete a session."""

    def __init__(
        self, process: Process, witness: Witness, session_id: str, *, cancel: bool
    ) -> None:
        super().__init__(process, witness)
        self.session_id = session_id
        self.cancel = cancel

    async def work(self) -> None:
        await self.process.port.delete_session(self.session_id, cancel=self.cancel)

    def refused(self, error: errors.AgentctlError) -> None:
        if not isinstance(error, errors.NotFound | errors.Conflict):
            super().refused(error)

    def answered(self) -> None:
        """That its runs are gone is seen by the witness, which knows who may delete."""


def check_cancel(answer: dict[str, Any], before: RunRow, run: RunRow) -> None:
    """Hold the answer to a cancel against the run as it was stored before and is stored now."""
    outcome, status = answer["cancel"], answer["status"]
    if is_final(before.status):
        assert (outcome, status) == ("already_final", before.status), (answer, before)
    if outcome == "requested":
        assert not is_final(status), answer
        assert run.cancel_requested_at is not None, (answer, run)
        return
    assert is_final(run.status), (answer, run)
    assert_agree(answer, run)
    assert answer["reason"] == run.cancel_reason, (answer, run)
    if outcome == "stopped":
        assert status == "CANCELLED", answer
    elif not is_final(before.status):
        # It finished first: one that was stopped by another request is one that was stopped.
        assert outcome == "already_final", answer


def assert_agree(record: dict[str, Any], run: RunRow) -> None:
    """The end that somebody was told of is the one that is stored."""
    assert record["status"] == run.status, (record, run)
    assert run.finished_at is not None
    assert record["finished_at"] == format_rfc3339(run.finished_at), (record, run)


def named(run: RunRow) -> tuple[ComponentKind, str]:
    kind: Any = run.component_type
    return kind, run.component_id


def said(event: StreamEvent) -> dict[str, Any]:
    data: dict[str, Any] = orjson.loads(event.data)
    return data


def is_end(run_id: str, event: StreamEvent) -> bool:
    """Whether an event is the last one of a run."""
    names = {f"{kind.event_prefix}{end}" for kind in KINDS.values() for end in ENDS}
    return event.name in names and bool(said(event)["run_id"] == run_id)


def check_numbers(run: RunRow | None, run_id: str, events: list[StreamEvent], after: int) -> None:
    """Numbers grow by one from the one asked for; nothing comes behind an end.

    Only the end itself may be further off: that of a run that was lost, or of one without content
    whose events were not kept, as stored (`run`; None: it was deleted).
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
    """Who followed a run until there was nothing more has its end."""
    run = call.stored(run_id)
    if run is None or call.process.stopping:
        return
    if not events:
        assert after >= 0, f"{run_id} was followed and said nothing"
        return
    end = events[-1]
    assert is_end(run_id, end), (run_id, end)
    assert end.name.endswith(run.status.title()), (run, end)
