"""Runs that a command follows: their events from the first to the last one, over several streams.

A stream that breaks is resumed. A stream without events is checked: its run may have no worker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from agentctl.cli.approvals import build_waiting
from agentctl.cli.show.event_lines import TEXT_FORMATS, EventLines, with_activity, write_event
from agentctl.cli.show.output import Format
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, InvalidResponse, RunFailed, TooManyRequests, Unavailable
from agentctl.interface.requests import FULL_VIEW, SUMMARY_VIEW, ResumeRequest, RunView, StreamEvent
from agentctl.records.kinds import ComponentRef, Record, component_of_run
from agentctl.records.phase import describe_wait
from agentctl.records.runs import FINAL_STATUSES, RunRecord

if TYPE_CHECKING:
    import asyncio

    from agentctl.cli.show.transcript.live import LiveTranscript
    from agentctl.records.document import Document

IDLE_SECONDS = 1.5
"""Seconds without an event after which the command checks if the run still has a worker."""

QUEUE_SIZE = 64
"""The number of events that are received before they are shown."""

FIRST_POLL_SECONDS = 0.1

LAST_POLL_SECONDS = 2.0
"""The pause between two reads of a run doubles from the first to the last of these."""

DECISION_POLL_SECONDS = 1.0
"""Seconds between two reads of a run that waits for a decision."""

RECONNECT_DELAYS = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each attempt to resume an interrupted stream: enough time for a restart.

An event resets the sequence, except after many short streams.
"""

SHORT_STREAM_SECONDS = 5.0
"""A stream that ends earlier is short."""

MAXIMUM_SHORT_STREAMS = 20
"""Short streams in a row after which an event no longer resets the delays.

A server that sends one event for each connection would otherwise never end a watch.
"""


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


class Retries:
    """The attempts to reach a server again that does not answer: enough for a restart."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.reset()

    def reset(self) -> None:
        """Begin again after an answer."""
        self._delays = iter(RECONNECT_DELAYS)

    async def wait(self, failure: AgentctlError, what: str) -> None:
        """Note a failure and `what` follows, and wait; raise it if there is no further attempt."""
        import asyncio

        delay = next(self._delays, None)
        if self._target.local is not None or delay is None:
            raise failure
        note(f"{failure.detail}; {what} in {delay:g} s")
        await asyncio.sleep(delay)


class WatchedRun:
    """A run whose record or events are read until its end.

    Args:
        component: the component of the run; None if it is not known.
        session_id: the session of the run; None if it is not known. With both, the record is not
            read by the id of the run, which the caller may have no right to.

    Attributes:
        last: the number of the last event; -1 before the first.
        state: the last record of the run that was read; empty without one.
    """

    lines: EventLines | LiveTranscript

    def __init__(
        self,
        target: Target,
        run_id: str,
        component: ComponentRef | None = None,
        session_id: str | None = None,
        db: str | None = None,
    ) -> None:
        self.target = target
        self.run_id = run_id
        self.db = db
        self.component = component
        self.session_id = session_id
        self.by_component = component is not None and session_id is not None
        self.last = -1
        self.state: dict[str, Any] = {}
        self._is_known = False
        self._is_explained = False

    async def read_document(self, form: RunView = FULL_VIEW) -> Document[RunRecord]:
        """Read the record of the run."""
        operations = self.target.operations
        if not self.by_component or self.component is None:
            return await operations.runs.get(self.run_id, db_id=self.db, form=form)
        return await operations.runs.get_of_component(
            *self.component, self.run_id, session_id=self.session_id, form=form
        )

    def use(self, record: Record) -> ComponentRef:
        """Take the state of the run from its record; return its component."""
        self.state = dict(record)
        self._is_known = True
        self.component = self.component or component_of_run(self.state)
        self.session_id = self.session_id or str(record["session_id"])
        return self.component

    def command(self, words: str, after: int = -1) -> str:
        """Return a command line about the run."""
        resume = f" --after {after}" if after >= 0 else ""
        db = f" --db {self.db}" if self.db else ""
        where = ""
        if self.by_component and self.component is not None:
            where = f" --{self.component[0]} {self.component[1]} --session {self.session_id}"
        return self.target.command(f"{words} {self.run_id}{resume}{where}{db}")

    async def wait_for_end(self, deadline: float | None, form: RunView) -> RunRecord:
        """Return the record once the run has ended, waits for a decision, or the time has passed.

        Args:
            deadline: monotonic seconds; None: no limit.
        """
        import asyncio

        pause = FIRST_POLL_SECONDS
        while True:
            record = (await self.read_document(SUMMARY_VIEW)).value
            left = pause if deadline is None else deadline - time.monotonic()
            if is_settled(record) or left <= 0:
                return record if form is SUMMARY_VIEW else (await self.read_document(form)).value
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, LAST_POLL_SECONDS)

    async def follow(self, output_format: Format, lines: EventLines | LiveTranscript) -> None:
        """Write the events after `last` until the end of the run, and resume streams that break.

        Raises:
            Unavailable: a stream could not be resumed.
            RunFailed: the run is local and its worker died.
        """
        import asyncio

        self.lines = lines
        delays = iter(RECONNECT_DELAYS)
        short_streams = 0
        while True:
            before = self.last
            began = time.monotonic()
            cause: AgentctlError | None = None
            try:
                await self._show_stream(output_format)
                if lines.output.end:
                    return

                # The stream has ended without the last event.
                self.state = dict((await self.read_document()).value)
                if self.state["status"] in FINAL_STATUSES:
                    lines.conclude(self.state)
                    return
                if self.state["status"] == "PAUSED":
                    await self._wait_for_decision(output_format)
                    continue
            except (Unavailable, TooManyRequests) as failure:
                # The next stream would be broken, too.
                is_broken = isinstance(failure, InvalidResponse)
                if self.target.local is not None or not self._is_known or is_broken:
                    raise
                cause = failure

            is_short = time.monotonic() - began < SHORT_STREAM_SECONDS
            short_streams = short_streams + 1 if is_short else 0
            if self.last > before and short_streams < MAXIMUM_SHORT_STREAMS:
                delays = iter(RECONNECT_DELAYS)
            delay = next(delays, None)
            if delay is None:
                raise Unavailable(
                    "the stream was interrupted and could not be resumed",
                    cause=cause.detail if cause is not None else None,
                    hint="the run may continue; resume with: "
                    + self.command("runs watch", self.last),
                )
            self._note(f"the stream was interrupted, resuming in {delay:g} s")
            await asyncio.sleep(delay)

    async def _show_stream(self, output_format: Format) -> None:
        """Write the events of the run until its stream ends; an event only once."""
        assert self.component is not None
        request = ResumeRequest(self.session_id, self.last)
        events = self.target.operations.runs.follow(*self.component, self.run_id, request)
        if output_format in TEXT_FORMATS:
            _, component_id = self.component
            events = with_activity(events, component_id, lambda: self.lines.in_line)

        marked_events = with_idle_markers(events, IDLE_SECONDS)
        async with contextlib.aclosing(marked_events):
            async for event in marked_events:
                if isinstance(event, Idle):
                    await self._handle_idle()
                elif event.seq > self.last:
                    self.last = event.seq
                    self._is_known = True
                    write_event(event, output_format, self.lines)

    def _note(self, text: str) -> None:
        # A block that is not complete is drawn below the note.
        self.lines.end_line()
        note(text)

    async def _handle_idle(self) -> None:
        """Note why a running run has no events, once, and check that it has a worker."""
        if not self._is_explained and self.last < 0 and self.state.get("status") == "RUNNING":
            self._is_explained = True
            parent = self.state.get("parent_run_id")
            stored = "stored only for runs that were started with --stream or --background"
            where = f"in the stream of run {parent}" if parent else stored
            self._note(f"no events yet: they are {where}; waiting for the end of the run")

        local = self.target.local
        if local is None:
            # A server ends the runs of dead workers itself.
            return

        from agentctl.admin.runs_doctor.find import is_orphaned

        if await is_orphaned(local.service.hosting, self.run_id, self.db):
            raise RunFailed(
                f"run {self.run_id} has no worker",
                cause="its process died before it could write the final status",
                hint=f"write it with: {self.target.command('doctor --runs --fix')}",
            )

    async def _wait_for_decision(self, output_format: Format) -> None:
        """Wait until the paused run continues or ends."""
        import asyncio

        paused_at = self.state.get("paused_at")
        waiting = build_waiting(self.target, self.run_id, self.state["approvals"])
        self._note(f"waiting: {waiting.detail}" + (f"; {waiting.hint}" if waiting.hint else ""))
        what = f"waiting for {describe_wait(self.state['approvals'])}"
        is_shown = output_format in (*TEXT_FORMATS, "jsonl")
        async with showing_progress(what) if is_shown else contextlib.nullcontext():
            # It may continue and pause again between two reads.
            while self.state["status"] == "PAUSED" and self.state.get("paused_at") == paused_at:
                await asyncio.sleep(DECISION_POLL_SECONDS)
                self.state = dict((await self.read_document(SUMMARY_VIEW)).value)

    def note_interrupted(self) -> None:
        """Note that the run continues, and how to resume or cancel it."""
        self.lines.flush()
        note(f"interrupted: run {self.run_id} continues")
        note(f"resume with: {self.command('runs watch', self.last)}")
        note(f"cancel it with: {self.command('runs cancel')}")


def is_settled(record: RunRecord) -> bool:
    """Return True if the run has ended, or continues only after a decision."""
    return record["status"] == "PAUSED" or record["status"] in FINAL_STATUSES
