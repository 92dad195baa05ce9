"""`agentctl sessions get --follow`: a session with its live runs, until an interrupt.

A live run is drawn from its events, each part once it is complete. Runs that work at the same time
are shown one after the other, in their order in the session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentctl.cli.follow import Retries, WatchedRun
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.transcript.pages import TranscriptPage
from agentctl.cli.target import Target
from agentctl.errors import Forbidden, TooManyRequests, Unavailable
from agentctl.interface.requests import RunView, SessionLocator
from agentctl.records.kinds import Record, component_of_run
from agentctl.records.runs import FINAL_STATUSES
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.runs import CausesReader, SessionRuns, read_members

if TYPE_CHECKING:
    from agentctl.cli.show.transcript.live import LiveTranscript

POLL_SECONDS = 1.0
"""Seconds between two looks for new runs."""


class SessionFollower:
    """Prints a session and its newest runs; then its live and new runs, until an interrupt."""

    def __init__(
        self,
        target: Target,
        session: Record,
        where: SessionLocator,
        page: TranscriptPage,
        form: RunView,
    ) -> None:
        self._target = target
        self._session = session
        self._where = where
        self._page = page
        self._form = form
        self._session_id = str(session["session_id"])
        self._runs = SessionRuns(target.operations, self._session_id, where, form)

        # True once the events of a run that is partly drawn cannot be read.
        self._is_broken = False

    async def follow(self, last: int | None) -> None:
        """Print the newest `last` runs of a session (None: all), then new runs as they arrive."""
        part = await self._runs.find_last(last, self._session)
        self._page.print_session(self._session, part.describe())
        after = part.after
        number = part.first
        retries = Retries(self._target)
        try:
            while True:
                try:
                    async for run in self._runs.read(after):
                        await self._show_run(run, number)
                        after = str(run["run_id"])
                        number += 1

                    retries.reset()
                    async with showing_progress("waiting for the next run, Ctrl-C ends this"):
                        await asyncio.sleep(POLL_SECONDS)
                except (Unavailable, TooManyRequests) as failure:
                    if self._is_broken:
                        raise
                    await retries.wait(failure, "trying again")
        except asyncio.CancelledError:
            note(f"interrupted: session {self._session_id} and its runs continue")
            raise

    async def _show_run(self, run: Record, number: int) -> None:
        from agentctl.cli.show.transcript.draw import INDENT, Printer
        from agentctl.cli.show.transcript.live import LiveTranscript

        if run["status"] not in FINAL_STATUSES:
            if isinstance(self._page, Printer):
                self._page.start_run(run, number)
                kind, _ = component_of_run(run)
                lines = LiveTranscript(self._page, kind, str(run["run_id"]), indent=INDENT)
                await self._follow_events(run, lines)
                self._page.end_run(build_drawn_run(await self._wait_for_end(run)))
                return
            run = await self._wait_for_end(run)

        children = await read_members(self._target.operations, run, self._where, self._form)
        drawn = build_drawn_run(run, children)
        await CausesReader(self._target.operations, self._where.db_id).add_to(drawn)
        self._page.print_run(drawn, number)

    async def _follow_events(self, run: Record, lines: LiveTranscript) -> None:
        """Draw a live run by its events; by its record if the caller may not follow it."""
        followed = WatchedRun(self._target, str(run["run_id"]), db=self._where.db_id)
        followed.use(run)
        try:
            await followed.follow("text", lines)
        except Unavailable:
            self._is_broken = True
            raise
        except Forbidden as refused:
            note(f"run {run['run_id']} is shown when it has ended: {refused.detail}")
            lines.conclude(await self._wait_for_end(run))
        finally:
            lines.flush()

    async def _wait_for_end(self, run: Record) -> Record:
        read = self._target.operations.sessions.get_run
        run_id = str(run["run_id"])
        while True:
            document = await read(self._session_id, run_id, self._where, form=self._form)
            if document.value["status"] in FINAL_STATUSES:
                return document.value
            async with showing_progress(f"waiting for the end of run {run_id}"):
                await asyncio.sleep(POLL_SECONDS)
