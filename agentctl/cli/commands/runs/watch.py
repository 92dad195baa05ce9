"""`agentctl runs watch`: follow a run until it ends.

In the formats table and tsv stdout is the text of the run as it arrives; tools, steps and members
go to stderr. `jsonl` is one event in each line, `json` the record of the run at its end, `name` the
run id.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.options import (
    AgentId,
    ComponentRef,
    DbId,
    Output,
    RunId,
    SessionOption,
    TeamId,
    WorkflowId,
    component_of_run,
    resolve_component,
)
from agentctl.cli.show import columns
from agentctl.cli.show.answer import RunOutput, report_run_end
from agentctl.cli.show.output import Format, resolve_format, write_bytes
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.transcript import Transcript
from agentctl.cli.target import Target, with_target
from agentctl.errors import AgentctlError, RunFailed, TooManyRequests, Unavailable
from agentctl.operations import ResumeRequest

if TYPE_CHECKING:
    import asyncio

    from agentctl.operations import StreamEvent
    from agentctl.records.document import Document
    from agentctl.records.runs import RunRecord

__all__ = ["Idle", "watch_run", "with_idle_markers"]

QUEUE_SIZE = 64
"""Events that were received and not shown yet, at most."""


class Idle(Enum):
    """Stands where an event would."""

    SILENCE = "silence"


async def with_idle_markers(
    events: AsyncIterator[StreamEvent], seconds: float
) -> AsyncGenerator[StreamEvent | Idle, None]:
    """The events, and `Silence.SILENCE` whenever none has come for so many seconds.

    What `events` raises is raised behind the last event. It is read, and closed, by one task.
    """
    import asyncio

    queue: asyncio.Queue[StreamEvent | Exception | None] = asyncio.Queue(QUEUE_SIZE)
    reading = asyncio.create_task(_read(events, queue))
    try:
        while True:
            item: StreamEvent | Exception | Idle | None = Idle.SILENCE
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


async def _read(
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


IDLE_SECONDS = 1.5
"""After so long without an event it is asked whether there will be any."""

RECONNECT_DELAYS = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0)
"""Seconds before each attempt to go on with a stream that was cut off: a restart is over by then.
An event that arrives starts them anew."""

_EVENTS_KEPT = "kept of runs that were started with --stream or --background only"

_FINAL_STATUSES = ("COMPLETED", "ERROR", "CANCELLED")


@with_target()
async def watch_run(
    target: Target,
    run_id: RunId,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="NUMBER", min=0, help="Begin behind this event, from 0"),
    ] = None,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Follow a run as it works, from its beginning to its end.

    Ctrl-C leaves the run alive. Exit code 1 when it ends as ERROR or is cancelled. With --session
    and --agent, --team or --workflow the run is not looked up first.
    """
    form = resolve_format(output)
    given = resolve_component(agent, team, workflow)
    both = given is not None and session is not None
    watched = _WatchedRun(target, run_id, given, session, db, both)
    watch = await _start_watch(watched, form, -1 if after is None else after)
    await _until_end(watch)
    if form in ("json", "name"):
        columns.show_run(await watched.document(), form)
    report_run_end(target, run_id, watch.answer.end)


@dataclass(slots=True)
class _WatchedRun:
    """The run that is looked at, and through which target.

    Attributes:
        component, session_id: of the run; None until it was looked up, unless they were given.
        by_component: whether both were given: the caller may be allowed no more.
    """

    target: Target
    run_id: str
    component: ComponentRef | None
    session_id: str | None
    db: str | None
    by_component: bool

    async def document(self) -> Document[RunRecord]:
        """The run's record as it is now."""
        operations = self.target.operations
        if not self.by_component or self.component is None:
            return await operations.get_run(self.run_id, db_id=self.db)
        return await operations.get_component_run(
            *self.component, self.run_id, session_id=self.session_id
        )

    def events(self, after: int) -> AsyncIterator[StreamEvent]:
        """The events of the run behind one of them."""
        assert self.component is not None
        request = ResumeRequest(self.session_id, after)
        return self.target.operations.resume_run(*self.component, self.run_id, request)

    def command(self, words: str, after: int = -1) -> str:
        """A command about the run."""
        more = f" --db {self.db}" if self.db else ""
        behind = f" --after {after}" if after >= 0 else ""
        return self.target.command(f"{words} {self.run_id}{behind}{more}")


class _Watch:
    """One look at a run, from its first event to its last.

    Attributes:
        last: number of the last event that was shown; -1 before the first.
        known: whether the run has been seen through this target.
        state: the run's record when it was looked up last; empty: never.
    """

    def __init__(
        self, watched: _WatchedRun, form: Format, after: int, state: dict[str, Any]
    ) -> None:
        assert watched.component is not None
        self.watched = watched
        self.form = form
        self.last = after
        self.known = bool(state)
        self.state = state
        self.answer = RunOutput(
            watched.component[0],
            to_stdout=form in ("table", "tsv"),
            run_id=watched.run_id,
            whole=after < 0,
        )
        self.transcript = Transcript(self.answer)
        self._told = False

    def show(self, event: StreamEvent) -> None:
        """Show an event, once."""
        if event.seq <= self.last:
            return
        self.last, self.known = event.seq, True
        if self.form == "jsonl":
            write_bytes(event.data)
        if self.form in ("table", "tsv"):
            self.transcript.take(event)
        else:
            self.answer.take(event)

    def say(self, text: str) -> None:
        """Say something beside the transcript."""
        self.transcript.flush()
        note(text)

    async def handle_idle(self) -> None:
        """Nothing came for a while: say what can be expected.

        Raises:
            RunFailed: nothing will come, ever: the process that worked on the run is gone.
        """
        if not self._told and self.last < 0 and self.state.get("status") == "RUNNING":
            self._told = True
            parent = self.state.get("parent_run_id")
            where = f"in the stream of run {parent}" if parent else _EVENTS_KEPT
            self.say(f"no event has come: they are {where}; waiting for its end")
        await _check_worker(self.watched)

    def interrupted(self) -> None:
        """Ctrl-C: the run is none of ours."""
        watched = self.watched
        look, stop = watched.command("runs watch", self.last), watched.command("runs cancel")
        self.say(f"interrupted: run {watched.run_id} goes on")
        note(f"look again: {look}")
        note(f"stop it: {stop}")


async def _start_watch(watched: _WatchedRun, form: Format, after: int) -> _Watch:
    """Look the run up, unless it is known where it is."""
    if watched.by_component:
        return _Watch(watched, form, after, {})
    run = dict((await watched.document()).value)
    kind, component_id = watched.component = watched.component or component_of_run(run)
    watched.session_id = watched.session_id or str(run["session_id"])
    note(
        f"run {watched.run_id} of {kind} {component_id}, session {watched.session_id},"
        f" is {run['status']} {watched.target.place}"
    )
    return _Watch(watched, form, after, run)


async def _until_end(watch: _Watch) -> None:
    """Show what comes, over as many streams as it takes."""
    import asyncio

    try:
        async with _patience(watch):
            await _show_until_end(watch)
    except asyncio.CancelledError:
        if not watch.answer.end:
            watch.interrupted()
        raise
    finally:
        watch.transcript.flush()


@contextlib.asynccontextmanager
async def _patience(watch: _Watch) -> AsyncIterator[None]:
    """Where nothing is shown before the end, show at least that it is waited for."""
    if watch.form not in ("json", "name"):
        yield
        return
    async with showing_progress("waiting for the end of the run, Ctrl-C leaves it alive"):
        yield


async def _show_until_end(watch: _Watch) -> None:
    import asyncio

    pauses = iter(RECONNECT_DELAYS)
    while True:
        before = watch.last
        cause: AgentctlError | None = None
        try:
            await _show_stream(watch)
            if watch.answer.end or await _has_ended(watch):
                return
        except (Unavailable, TooManyRequests) as failure:
            if watch.watched.target.local is not None or not watch.known:
                raise
            cause = failure
        if watch.last > before:
            pauses = iter(RECONNECT_DELAYS)
        pause = next(pauses, None)
        if pause is None:
            raise _stream_lost(watch, cause)
        watch.say(f"the stream was cut off, going on with it in {pause:g} s")
        await asyncio.sleep(pause)


async def _show_stream(watch: _Watch) -> None:
    """Show one stream, as far as it goes."""
    heard = with_idle_markers(watch.watched.events(watch.last), IDLE_SECONDS)
    async with contextlib.aclosing(heard):
        async for event in heard:
            if isinstance(event, Idle):
                await watch.handle_idle()
            else:
                watch.show(event)


async def _has_ended(watch: _Watch) -> bool:
    """Whether a run whose stream had no end has one all the same."""
    watch.state = dict((await watch.watched.document()).value)
    if watch.state["status"] not in _FINAL_STATUSES:
        return False
    watch.answer.conclude(watch.state)
    return True


async def _check_worker(watched: _WatchedRun) -> None:
    """Locally nobody else may be there to tell that a run has no worker any more."""
    here = watched.target.local
    if here is None:
        return
    from agentctl.service.runs_doctor.find import is_orphaned

    if await is_orphaned(here.service.hosting, watched.run_id, watched.db):
        doctor = watched.target.command("runs doctor --fix")
        raise RunFailed(
            f"nobody works on run {watched.run_id} any more",
            cause="the process that did is gone, and could not write how the run ended",
            hint=f"write its end: {doctor}",
        )


def _stream_lost(watch: _Watch, cause: AgentctlError | None) -> Unavailable:
    """The stream was cut off once too often."""
    again = watch.watched.command("runs watch", watch.last)
    return Unavailable(
        "the stream was cut off, and could not be gone on with",
        cause=cause.detail if cause is not None else None,
        hint=f"the run may go on; look again: {again}",
    )
