"""The events of a run for a person or a program, from its first to its last, over several streams.

A stream that breaks is resumed. A stream without events is checked: its run may have no worker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from agentctl.cli.approvals import build_waiting
from agentctl.cli.show.event_lines import (
    TEXT_FORMATS,
    EventLines,
    create_event_lines,
    with_activity,
    write_event,
)
from agentctl.cli.show.output import Format
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, InvalidResponse, RunFailed, TooManyRequests, Unavailable
from agentctl.interface.requests import FULL_VIEW, SUMMARY_VIEW, ResumeRequest
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import ComponentRef
from agentctl.records.phase import describe_wait
from agentctl.records.runs import FINAL_STATUSES

if TYPE_CHECKING:
    import asyncio

    from agentctl.cli.show.transcript.live import LiveTranscript
    from agentctl.interface.requests import RunView, StreamEvent
    from agentctl.records.document import Document
    from agentctl.records.runs import RunRecord

IDLE_SECONDS = 1.5
"""Seconds without an event after which the command checks if the run still has a worker."""

QUEUE_SIZE = 64
"""The number of events that are received before they are shown."""

DECISION_POLL_SECONDS = 1.0
"""Seconds between two reads of a run that waits for a decision."""

RECONNECT_DELAYS = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each attempt to resume an interrupted stream: enough time for a restart. An event
resets the sequence, except after many short streams."""

SHORT_STREAM_SECONDS = 5.0
MAXIMUM_SHORT_STREAMS = 20
"""Streams in a row, each shorter than `SHORT_STREAM_SECONDS`, after which an event no longer resets
the delays: a server that sends one event for each connection would otherwise never end a watch."""


class Idle(Enum):
    """A marker in place of an event: no event has arrived for a while."""

    IDLE = "idle"


async def with_idle_markers(
    events: AsyncIterator[StreamEvent], seconds: float
) -> AsyncGenerator[StreamEvent | Idle, None]:
    """Yield the events, and `Idle.IDLE` each time none has arrived for `seconds`.

    An exception of `events` is raised after the last event. One task reads and closes `events`.
    """
    import asyncio

    queue: asyncio.Queue[StreamEvent | Exception | None] = asyncio.Queue(QUEUE_SIZE)
    reading = asyncio.create_task(_read_events(events, queue))
    try:
        while True:
            item: StreamEvent | Exception | Idle | None = Idle.IDLE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    item = await queue.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read_events(
    events: AsyncIterator[StreamEvent], queue: asyncio.Queue[StreamEvent | Exception | None]
) -> None:
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                await queue.put(event)
    except Exception as failure:
        await queue.put(failure)
    else:
        await queue.put(None)


@dataclass(slots=True)
class WatchedRun:
    """A run and its target.

    Attributes:
        component, session_id: of the run; None until its record is read, unless given.
        by_component: both were given: the caller may have no right to read the record by id.
    """

    target: Target
    run_id: str
    component: ComponentRef | None
    session_id: str | None
    db: str | None
    by_component: bool

    async def read_document(self, form: RunView = FULL_VIEW) -> Document[RunRecord]:
        operations = self.target.operations
        if not self.by_component or self.component is None:
            return await operations.get_run(self.run_id, db_id=self.db, form=form)
        return await operations.get_component_run(
            *self.component, self.run_id, session_id=self.session_id, form=form
        )

    def events(self, after: int) -> AsyncIterator[StreamEvent]:
        assert self.component is not None
        request = ResumeRequest(self.session_id, after)
        return self.target.operations.follow_run(*self.component, self.run_id, request)

    def command(self, words: str, after: int = -1) -> str:
        resume = f" --after {after}" if after >= 0 else ""
        db = f" --db {self.db}" if self.db else ""
        where = ""
        if self.by_component and self.component is not None:
            where = f" --{self.component[0]} {self.component[1]} --session {self.session_id}"
        return self.target.command(f"{words} {self.run_id}{resume}{where}{db}")


class RunWatch:
    """The events of a run from its first to its last one, over several streams.

    Args:
        lines: writes the events; None for those of `runs watch`.

    Attributes:
        last: the number of the last event; -1 before the first.
        known: True once the target returned an event or the record of the run.
        state: the last record of the run that was read; empty without one.
    """

    def __init__(
        self,
        watched: WatchedRun,
        output_format: Format,
        after: int,
        state: dict[str, Any],
        lines: EventLines | LiveTranscript | None = None,
    ) -> None:
        assert watched.component is not None
        self.watched = watched
        self.output_format = output_format
        self.last = after
        self.known = bool(state)
        self.state = state
        if lines is None:
            kind, _ = watched.component
            lines = create_event_lines(kind, output_format, run_id=watched.run_id, whole=after < 0)
        self.lines = lines
        self.output = lines.output
        self._explained = False

    def show(self, event: StreamEvent) -> None:
        """Write an event, unless an earlier stream had it."""
        if event.seq <= self.last:
            return
        self.last, self.known = event.seq, True
        write_event(event, self.output_format, self.lines)

    def note(self, text: str) -> None:
        """Write a note. A block that is not complete is drawn below it."""
        self.lines.end_line()
        note(text)

    async def handle_idle(self) -> None:
        """Note why a running run has no events, once, and check that it has a worker."""
        if not self._explained and self.last < 0 and self.state.get("status") == "RUNNING":
            self._explained = True
            parent = self.state.get("parent_run_id")
            stored = "stored only for runs that were started with --stream or --background"
            where = f"in the stream of run {parent}" if parent else stored
            self.note(f"no events yet: they are {where}; waiting for the end of the run")
        product = self.watched.target.product
        if not self._explained and self.last < 0 and product is not None:
            self._explained = True
            self.note(f"{product} has no events of this run; waiting for its end")
        local = self.watched.target.local
        if local is None:  # a server ends the runs of dead workers itself
            return
        from agentctl.admin.runs_doctor.find import is_orphaned

        if await is_orphaned(local.service.hosting, self.watched.run_id, self.watched.db):
            raise RunFailed(
                f"run {self.watched.run_id} has no worker",
                cause="its process died before it could write the final status",
                hint=f"write it with: {self.watched.target.command('runs doctor --fix')}",
            )

    async def wait_for_decision(self) -> None:
        """Wait until the paused run continues or ends."""
        import asyncio

        paused_at = self.state.get("paused_at")
        waiting = build_waiting(self.watched.target, self.watched.run_id, self.state["approvals"])
        self.note(f"waiting: {waiting.detail}" + (f"; {waiting.hint}" if waiting.hint else ""))
        what = f"waiting for {describe_wait(self.state['approvals'])}"
        is_shown = self.output_format in (*TEXT_FORMATS, "jsonl")
        async with showing_progress(what) if is_shown else contextlib.nullcontext():
            while self.state["status"] == "PAUSED" and self.state.get("paused_at") == paused_at:
                await asyncio.sleep(DECISION_POLL_SECONDS)
                self.state = dict((await self.watched.read_document(SUMMARY_VIEW)).value)

    def note_interrupted(self) -> None:
        self.lines.flush()
        resume = self.watched.command("runs watch", self.last)
        note(f"interrupted: run {self.watched.run_id} continues")
        note(f"resume with: {resume}")
        note(f"cancel it with: {self.watched.command('runs cancel')}")


async def follow_streams(watch: RunWatch) -> None:
    """Write the events of a run until its end, and resume streams that break.

    Raises:
        Unavailable: a stream could not be resumed.
        RunFailed: the run is local and its worker died.
    """
    import asyncio

    delays, short_streams = iter(RECONNECT_DELAYS), 0
    while True:
        before, began = watch.last, time.monotonic()
        cause: AgentctlError | None = None
        try:
            await _show_stream(watch)
            if watch.output.end:
                return
            watch.state = dict((await watch.watched.read_document()).value)
            if watch.state["status"] in FINAL_STATUSES:
                watch.lines.conclude(watch.state)
                return
            if watch.state["status"] == "PAUSED":
                await watch.wait_for_decision()
                continue
        except (Unavailable, TooManyRequests) as failure:
            is_broken = isinstance(failure, InvalidResponse)  # the next stream would be, too
            if watch.watched.target.local is not None or not watch.known or is_broken:
                raise
            cause = failure
        is_short = time.monotonic() - began < SHORT_STREAM_SECONDS
        short_streams = short_streams + 1 if is_short else 0
        if watch.last > before and short_streams < MAXIMUM_SHORT_STREAMS:
            delays = iter(RECONNECT_DELAYS)
        delay = next(delays, None)
        if delay is None:
            raise Unavailable(
                "the stream was interrupted and could not be resumed",
                cause=cause.detail if cause is not None else None,
                hint="the run may continue; resume with: "
                + watch.watched.command("runs watch", watch.last),
            )
        watch.note(f"the stream was interrupted, resuming in {delay:g} s")
        await asyncio.sleep(delay)


async def _show_stream(watch: RunWatch) -> None:
    """Write the events of a run until its stream ends."""
    events = watch.watched.events(watch.last)
    if watch.output_format in TEXT_FORMATS:
        component = watch.watched.component[1] if watch.watched.component else "run"
        events = with_activity(events, component, lambda: watch.lines.in_line)
    marked = with_idle_markers(events, IDLE_SECONDS)
    async with contextlib.aclosing(marked):
        async for event in marked:
            if isinstance(event, Idle):
                await watch.handle_idle()
            else:
                watch.show(event)
