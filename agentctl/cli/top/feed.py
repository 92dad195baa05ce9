"""The runs that the screen shows, read again and again."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agentctl.cli.options import find_component
from agentctl.cli.paging import read_pages
from agentctl.cli.show.transcript.model import clean_line
from agentctl.cli.show.transcript.texts import describe_run
from agentctl.errors import NotFound
from agentctl.records.runs import FINAL_STATUSES
from agentctl.requests import MAXIMUM_LIMIT, Page, RunFilter

if TYPE_CHECKING:
    from agentctl.operations import Operations
    from agentctl.records.document import Document
    from agentctl.records.runs import RunPage

__all__ = ["Feed", "Row", "matches"]

ENDED_SECONDS = 60.0
"""Seconds for which an ended run stays on the screen."""

TALLY_SECONDS = 300.0
"""Seconds for which an ended run is counted."""

_LARGE_FIELDS = ("messages", "tools", "content", "reasoning_content", "output")
_FILTER_KEYS = ("agent", "team", "workflow", "user", "session", "status")

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the list.

    Attributes:
        run: its record, without large fields.
        level: 0, or 1 for a run of a member below its parent.
    """

    run: Run
    level: int

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])

    @property
    def is_live(self) -> bool:
        return self.run.get("status") not in FINAL_STATUSES


@dataclass(slots=True)
class Feed:
    """The live runs that match a filter, and those that ended in the last minute.

    Attributes:
        runs: records by run id, newest first.
    """

    operations: Operations
    filter: RunFilter
    runs: dict[str, Run] = field(default_factory=dict)
    _ended: dict[str, float] = field(default_factory=dict)
    _tally: deque[tuple[float, str]] = field(default_factory=deque)

    async def refresh(self) -> None:
        """Read the live runs, and the records of runs that have ended since the last time.

        Raises:
            AgentctlError: the runs cannot be read; the previous ones stay.
        """

        def read(cursor: str | None) -> Awaitable[Document[RunPage]]:
            page = Page(limit=MAXIMUM_LIMIT, cursor=cursor)
            return self.operations.get_runs(replace(self.filter, live=True, page=page))

        live: dict[str, Run] = {}
        async for records in read_pages(read):
            for record in records:
                live[record["run_id"]] = _shorten(record)
        kept = {run_id: run for run_id, run in self.runs.items() if run_id not in live}
        for run_id, run in kept.items():
            # Work of an ended run can go on, so its record changes until that has stopped.
            if run["status"] not in FINAL_STATUSES or not run.get("stopped_at"):
                kept[run_id] = await self._read_ended(run)
        self._forget(kept)
        self.runs = {**live, **kept}

    async def _read_ended(self, run: Run) -> Run:
        try:
            record = (await self.operations.get_run(run["run_id"])).value
        except NotFound:
            return {**run, "status": "deleted", "stopped_at": run.get("created_at")}
        return _shorten(record)

    def _forget(self, kept: dict[str, Run]) -> None:
        """Count the runs that have ended, and drop those that ended a while ago."""
        now = time.monotonic()
        for run_id, run in list(kept.items()):
            if run["status"] in FINAL_STATUSES and run_id not in self._ended:
                self._tally.append((now, describe_run(run).name))
            since = self._ended.setdefault(run_id, now)
            if now - since > ENDED_SECONDS:
                del kept[run_id], self._ended[run_id]
        while self._tally and now - self._tally[0][0] > TALLY_SECONDS:
            self._tally.popleft()

    def count_ended(self) -> Counter[str]:
        """Return the number of runs that ended in the last five minutes, by phase."""
        return Counter(name for _, name in self._tally)

    def count_live(self) -> Counter[str]:
        """Return the number of live runs by phase."""
        return Counter(
            describe_run(run).name
            for run in self.runs.values()
            if run["status"] not in FINAL_STATUSES
        )

    def rows(self, words: str = "", *, by_age: bool = False) -> list[Row]:
        """Return the runs that match the words of a filter, members below their parents.

        Args:
            words: see `matches`.
            by_age: the oldest first, instead of the newest.
        """
        found = {run_id: run for run_id, run in self.runs.items() if matches(run, words)}
        order = sorted(
            found.values(),
            key=lambda run: str(run.get("created_at")),
            reverse=not by_age,
        )
        tops = [run for run in order if run.get("parent_run_id") not in found]
        live = [run for run in tops if run["status"] not in FINAL_STATUSES]
        ended = [run for run in tops if run["status"] in FINAL_STATUSES]
        return [row for top in (*live, *ended) for row in self._with_members(top, order)]

    def _with_members(self, top: Run, order: list[Run]) -> Iterator[Row]:
        yield Row(top, 0)
        for run in order:
            if run.get("parent_run_id") == top["run_id"]:
                yield Row(run, 1)


def matches(run: Mapping[str, Any], words: str) -> bool:
    """Return True if a run matches every word of a filter.

    A word is `agent:ID`, `team:ID`, `workflow:ID`, `user:ID`, `session:ID`, `status:WORD`, or a
    text that one of these contains.
    """
    kind, component = find_component(run) or ("", "")
    phase = describe_run(run)
    values = {
        "user": str(run.get("user_id") or ""),
        "session": str(run.get("session_id") or ""),
        "status": phase.words,
        kind: component,
    }
    texts = [clean_line(text).lower() for text in (*values.values(), str(run.get("run_id")))]
    for word in words.lower().split():
        key, colon, value = word.partition(":")
        if colon and key in _FILTER_KEYS:
            if value not in values.get(key, "").lower() or not values.get(key):
                return False
        elif not any(word in text for text in texts):
            return False
    return True


def _shorten(record: Mapping[str, Any]) -> Run:
    return {name: value for name, value in record.items() if name not in _LARGE_FIELDS}
