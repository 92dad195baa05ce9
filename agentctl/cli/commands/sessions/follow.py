"""`agentctl sessions get --follow`: a transcript that goes on with live and new runs.

A live run is drawn from its events, each part once it is complete. Runs that work at the same time
are shown one after the other, in their order in the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.cli.run_streams import RECONNECT_DELAYS, RunWatch, WatchedRun, follow_streams
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target
from agentctl.errors import Forbidden, TooManyRequests, Unavailable
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import Record, component_of_run
from agentctl.records.runs import FINAL_STATUSES
from agentctl.requests import RunView, SessionLocator
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.runs import Causes, SessionRuns, read_members

if TYPE_CHECKING:
    from agentctl.cli.show.transcript.live import LiveTranscript
    from agentctl.cli.show.transcript.pages import TranscriptPage

POLL_SECONDS = 1.0
"""Seconds between two looks for new runs."""


@dataclass(slots=True)
class _Followed:
    """A session that is followed.

    Attributes:
        form: the form in which runs are read.
        page: receives the runs.
        after: the last run that was shown; None for none.
        number: the number of the next run.
        is_broken: True if the events of a run that is partly drawn cannot be read.
    """

    target: Target
    session_id: str
    where: SessionLocator
    form: RunView
    page: TranscriptPage
    after: str | None
    number: int
    is_broken: bool = False

    async def show_new_runs(self) -> None:
        """Show the runs after the last one, each until its end."""
        runs = SessionRuns(self.target.operations, self.session_id, self.where, self.form)
        async for run in runs.read(self.after):
            await self._show_run(run)
            self.after, self.number = str(run["run_id"]), self.number + 1

    async def _show_run(self, run: Record) -> None:
        from agentctl.cli.show.transcript.draw import INDENT, Printer
        from agentctl.cli.show.transcript.live import LiveTranscript

        if run["status"] not in FINAL_STATUSES:
            if isinstance(self.page, Printer):
                self.page.start_run(run, self.number)
                kind, _ = component_of_run(run)
                lines = LiveTranscript(self.page, kind, str(run["run_id"]), indent=INDENT)
                await self._follow_events(run, lines)
                self.page.end_run(build_drawn_run(await self._wait_for_end(run)))
                return
            run = await self._wait_for_end(run)
        children = await read_members(self.target.operations, run, self.where, self.form)
        drawn = build_drawn_run(run, children)
        await Causes(self.target.operations, self.where.db_id).add_to(drawn)
        self.page.print_run(drawn, self.number)

    async def _follow_events(self, run: Record, lines: LiveTranscript) -> None:
        run_id, component = str(run["run_id"]), component_of_run(dict(run))
        watched = WatchedRun(
            self.target, run_id, component, self.session_id, self.where.db_id, by_component=False
        )
        try:
            await follow_streams(RunWatch(watched, "text", -1, dict(run), lines))
        except Unavailable:
            self.is_broken = True
            raise
        except Forbidden as refused:
            note(f"run {run_id} is shown when it has ended: {refused.detail}")
            lines.conclude(await self._wait_for_end(run))
        finally:
            lines.flush()

    async def _wait_for_end(self, run: Record) -> Record:
        import asyncio

        operations, run_id = self.target.operations, str(run["run_id"])
        while True:
            document = await operations.get_session_run(
                self.session_id, run_id, self.where, form=self.form
            )
            record = document.value
            if record["status"] in FINAL_STATUSES:
                return record
            async with showing_progress(f"waiting for the end of run {run_id}"):
                await asyncio.sleep(POLL_SECONDS)


async def follow_session(
    target: Target,
    session: Record,
    where: SessionLocator,
    page: TranscriptPage,
    last: int | None,
    form: RunView,
) -> None:
    """Print a session and its newest `last` runs, None: all; then its live and new runs.

    It ends with an interrupt. The runs go on.

    Raises:
        RunFailed: a local run has no worker.
        NotFound: the session was deleted.
        Unavailable: the server does not answer for a while.
    """
    import asyncio

    session_id = str(session["session_id"])
    runs = SessionRuns(target.operations, session_id, where, form)
    part = await runs.find_last(last, session)
    page.print_session(session, part.describe())
    followed = _Followed(target, session_id, where, form, page, part.after, part.first)
    delays = iter(RECONNECT_DELAYS)
    try:
        while True:
            try:
                await followed.show_new_runs()
                delays = iter(RECONNECT_DELAYS)
                async with showing_progress("waiting for the next run, Ctrl-C ends this"):
                    await asyncio.sleep(POLL_SECONDS)
            except (Unavailable, TooManyRequests) as failure:
                delay = next(delays, None)
                if target.local is not None or delay is None or followed.is_broken:
                    raise
                note(f"{failure.detail}; trying again in {delay:g} s")
                await asyncio.sleep(delay)
    except asyncio.CancelledError:
        note(f"interrupted: session {session_id} and its runs go on")
        raise
