"""Runs of a session with the runs of their members, read page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentctl.errors import Forbidden, NotFound
from agentctl.interface.requests import (
    MAXIMUM_LIMIT,
    SUMMARY_VIEW,
    RunView,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.records.kinds import Record
from agentctl.records.text import format_count
from agentctl.transcripts.model import DrawnRun, build_drawn_run

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

PAGE_RUNS = 20
"""Runs that are in memory at a time."""

CONCURRENT_READS = 8
"""Runs of members that are read at the same time."""

MAXIMUM_MEMBERS = 1_000
"""Members of one run that are read."""


@dataclass(frozen=True, slots=True)
class RunRange:
    """A range of the top-level runs of a session, up to the newest."""

    after: str | None
    """The run before the first run of the range; None if it begins with the session."""

    first: int
    """The number of the first run, from 1."""

    total: int
    """The number of all top-level runs."""

    def describe(self) -> str:
        """Return the number of all runs and of the shown runs: `40 runs, the last 3 shown`."""
        text = format_count(self.total, "run")
        if self.first > 1:
            text += f", the last {self.total - self.first + 1} shown"
        return text


class SessionRuns:
    """The top-level runs of a session, oldest first."""

    def __init__(
        self, operations: Operations, session_id: str, where: SessionLocator, form: RunView
    ) -> None:
        self._operations = operations
        self._form = form
        self._session_id = session_id
        self._where = where

    async def find_last(self, count: int | None, session: Record) -> RunRange:
        """Return the range of the newest `count` runs, None: of all.

        Only the summaries of these runs are read, from the newest on.

        Args:
            session: the summary of the session, read before.
        """
        total = session.get("turn_count")
        if total is None:
            # A server of an earlier version, or one that has answered with a whole session.
            total = len([run async for run in self._read(None, MAXIMUM_LIMIT, SUMMARY_VIEW)])
        if count is None or total <= count:
            return RunRange(None, 1, total)

        # Newest first, with the run before the range.
        newest_ids: list[str] = []
        while len(newest_ids) <= count:
            limit = min(count + 1 - len(newest_ids), MAXIMUM_LIMIT)
            before = newest_ids[-1] if newest_ids else None
            page = await self._read_page(limit, SUMMARY_VIEW, before=before, order="desc")
            newest_ids += [run["run_id"] for run in page]
            if len(page) < limit:
                # Runs were deleted since the session was read.
                return RunRange(None, 1, total)

        # Runs that began since the session was read have later numbers.
        last_id = (session.get("last_run") or {}).get("run_id")
        if last_id in newest_ids:
            total += newest_ids.index(last_id)
        return RunRange(newest_ids[-1], total - count + 1, total)

    def read(self, after: str | None) -> AsyncIterator[Record]:
        """Yield the runs after a run, with one page in memory."""
        return self._read(after, PAGE_RUNS, self._form)

    async def draw(self, run_range: RunRange) -> AsyncIterator[tuple[int, DrawnRun]]:
        """Yield the runs of a range with their numbers and members."""
        number = run_range.first
        async for run in self.read(run_range.after):
            children = await read_members(self._operations, run, self._where, self._form)
            yield number, build_drawn_run(run, children)
            number += 1

    async def _read(self, after: str | None, limit: int, form: RunView) -> AsyncIterator[Record]:
        while True:
            page = await self._read_page(limit, form, after=after)
            for run in page:
                if run["parent_run_id"] is None:
                    yield run
            if len(page) < limit:
                return
            after = page[-1]["run_id"]

    async def _read_page(
        self, limit: int, form: RunView, *, order: Literal["asc", "desc"] = "asc", **bound: Any
    ) -> list[Record]:
        query = SessionRunsQuery(self._where, limit, parent="none", order=order, form=form, **bound)
        page = await self._operations.sessions.list_runs(self._session_id, query)
        return list(page.value)


class CausesReader:
    """The causes of failed runs, for a caller that may read them.

    Args:
        operations: of the caller. An older server has no causes.
    """

    def __init__(self, operations: Operations, db_id: str | None) -> None:
        self._operations = operations
        self._db_id = db_id
        # None until the server was asked.
        self._is_allowed: bool | None = None

    async def add_to(self, run: DrawnRun) -> None:
        """Read the causes of a run that has failed, with those of its members."""
        if run.record.get("status") != "ERROR" or self._is_allowed is False:
            return
        try:
            if self._is_allowed is None:
                # A denied request would be an entry of the audit log.
                me = (await self._operations.system.get_me()).value
                self._is_allowed = "get_run_causes" in me["operations"]
            if self._is_allowed:
                run_id = str(run.record["run_id"])
                causes = await self._operations.runs.get_causes(run_id, db_id=self._db_id)
                run.causes = causes.value["causes"]
        except (Forbidden, NotFound):
            self._is_allowed = False


async def list_model_calls(
    operations: Operations, run_id: str, db_id: str | None = None
) -> list[Record]:
    """Return all model calls of a run, oldest first."""
    calls: list[Record] = []
    total = 1
    while len(calls) < total:
        after = calls[-1]["id"] if calls else None
        page = (await operations.runs.list_model_calls(run_id, db_id=db_id, after=after)).value
        calls = [*calls, *page["model_calls"]]
        total = page["total"]
    return calls


async def read_members(
    operations: Operations, run: Record, where: SessionLocator, form: RunView
) -> dict[str, list[Record]]:
    """Read the runs below a run, and return them by the id of their parent."""
    members_of: dict[str, list[Record]] = {}
    session_id = str(run["session_id"])
    free = asyncio.Semaphore(CONCURRENT_READS)

    async def read_run(run_id: str) -> Record | None:
        try:
            async with free:
                document = await operations.sessions.get_run(session_id, run_id, where, form=form)
        except NotFound:
            # The run was deleted in the meantime.
            return None
        return dict(document.value)

    parents = [run]
    seen_ids = {str(run["run_id"])}
    while parents and len(seen_ids) < MAXIMUM_MEMBERS:
        member_ids = [run_id for parent in parents for run_id in parent.get("member_runs") or []]
        new_ids = [run_id for run_id in dict.fromkeys(member_ids) if run_id not in seen_ids]
        seen_ids.update(new_ids)

        members = await asyncio.gather(*map(read_run, new_ids[:MAXIMUM_MEMBERS]))
        parents = [member for member in members if member is not None]
        for member in parents:
            members_of.setdefault(str(member["parent_run_id"]), []).append(member)

    return members_of
