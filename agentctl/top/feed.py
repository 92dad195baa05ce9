"""The runs that the screen shows, read again and again with few requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from agentctl.cli.show.progress import run_all, successes
from agentctl.errors import NotFound, Unsupported
from agentctl.interface.operations import Operations
from agentctl.interface.requests import MAXIMUM_LIMIT, SUMMARY_VIEW, Page, RunFilter
from agentctl.interface.requests.lists import read_pages
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import find_component
from agentctl.records.phase import describe_run
from agentctl.records.runs import FINAL_STATUSES, FinalStatus
from agentctl.records.times import now
from agentctl.transcripts.model import clean_line, find_tokens, parse_time

ENDED_SECONDS = 60.0
"""Seconds for which an ended run stays on the screen."""

COUNTED_SECONDS = 300.0
"""Seconds for which an ended run is counted."""

MAXIMUM_SINGLE_READS = 20
"""Runs that one refresh reads by their ids."""

CONCURRENT_READS = 4

Run = dict[str, Any]


def is_live(run: Mapping[str, Any]) -> bool:
    """Return True if a run has no final status: it works, or waits for a decision."""
    return run.get("status") not in (*FINAL_STATUSES, "deleted")


def is_paused(run: Mapping[str, Any]) -> bool:
    """Return True if a run waits for a decision: it is neither live nor final."""
    return run.get("status") == "PAUSED"


def is_settled(run: Mapping[str, Any]) -> bool:
    """Return True if a run has ended and its work has stopped: its record changes no more."""
    return not is_live(run) and run.get("stopped_at") is not None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run that has ended, as it is counted."""

    at: float
    phase: str
    tokens: int


@dataclass(slots=True)
class RunFeed:
    """The live and paused runs that match a filter, and those that ended in the last minute.

    A refresh is one request for the newest runs of any status. It is a second one, for the live
    runs, if some of them may be older than those, and one for the newest paused runs
    likewise. An ended run is read by its id only if newer runs
    have displaced it.

    Attributes:
        runs: summaries by run id.
        pinned: ids of runs that stay, however long ago they ended.
    """

    operations: Operations
    filter: RunFilter
    runs: dict[str, Run] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    _newest: set[str] = field(default_factory=set)
    _ended_at: dict[str, float] = field(default_factory=dict)
    _ends: deque[_Ended] = field(default_factory=deque)
    _counted_from: float | None = None
    _gap_at: float | None = None
    _totals: Counter[str] | None = None

    async def refresh(self) -> None:
        """Read the runs; after an AgentctlError the previous ones stay."""
        first = self._counted_from is None
        read = self.operations.get_runs
        page = (await read(self._select(live=False))).value["data"]
        newest: dict[str, Run] = {run["run_id"]: dict(run) for run in page}
        is_whole = len(page) < MAXIMUM_LIMIT
        has_gap = not is_whole and self._newest.isdisjoint(newest)
        older = {run_id: run for run_id, run in self.runs.items() if run_id not in newest}
        live: dict[str, Run] = {}
        if not is_whole and (first or has_gap or any(map(is_live, older.values()))):
            rows = read_pages(read, self._select(live=True))
            live = {run["run_id"]: run async for runs in rows for run in runs}
        if not is_whole and (first or has_gap or any(map(is_paused, older.values()))):
            paused = replace(self._select(live=False), status="PAUSED")
            rows_paused = (await read(paused)).value["data"]
            live |= {run["run_id"]: dict(run) for run in rows_paused}
        gone = [
            run_id for run_id, run in older.items() if run_id not in live and not is_settled(run)
        ]
        older.update(await self._read_each(gone[:MAXIMUM_SINGLE_READS]))
        self._newest = set(newest)
        self._take({**older, **live, **newest}, first=first, is_whole=is_whole)
        if has_gap or (first and not is_whole):
            self._gap_at = time.monotonic()
        await self._count_all()

    async def _count_all(self) -> None:
        """Read the totals of ended runs while some of them may not have been seen."""
        gap_at = self._gap_at
        if gap_at is None or time.monotonic() - gap_at > COUNTED_SECONDS:
            self._gap_at = self._totals = None
            return
        since = now() - int(COUNTED_SECONDS * 1e6)
        totals: Counter[str] = Counter()

        async def count(status: FinalStatus) -> None:
            page = Page(limit=1)
            counted = replace(
                self.filter, status=status, finished_after=since, form=SUMMARY_VIEW, page=page
            )
            meta = (await self.operations.get_runs(counted)).value["meta"]
            totals[describe_run({"status": status})["name"]] = meta["total_count"]

        try:
            await asyncio.gather(*map(count, FINAL_STATUSES))
        except Unsupported:
            return
        self._totals = totals

    def _select(self, *, live: bool) -> RunFilter:
        page = Page(limit=MAXIMUM_LIMIT)
        return replace(self.filter, live=live, form=SUMMARY_VIEW, page=page)

    async def _read_each(self, run_ids: list[str]) -> dict[str, Run]:
        async def read(run_id: str) -> Run:
            try:
                return dict((await self.operations.get_run(run_id, form=SUMMARY_VIEW)).value)
            except NotFound:
                last = self.runs[run_id]
                return {**last, "status": "deleted", "stopped_at": last.get("created_at")}

        results = await run_all(run_ids, read, at_once=CONCURRENT_READS)
        if failure := next((each for each in results if isinstance(each, BaseException)), None):
            raise failure
        return dict(zip(run_ids, successes(results), strict=True))

    def _take(self, runs: dict[str, Run], *, first: bool, is_whole: bool) -> None:
        at = time.monotonic()
        clock = time.time()
        if first:
            moments = [_age(run.get("created_at"), clock) for run in runs.values()]
            covered = max(moments, default=0.0)
            self._counted_from = at - (COUNTED_SECONDS if is_whole else covered)
        kept: dict[str, Run] = {}
        for run_id, run in runs.items():
            if is_live(run):
                kept[run_id] = run
                continue
            if run_id not in self._ended_at:
                was_live = run_id in self.runs and is_live(self.runs[run_id])
                ended = at if was_live else at - _age(run.get("finished_at"), clock)
                self._ended_at[run_id] = ended
                phase = describe_run(run)["name"]
                tokens = (run.get("metrics") or {}).get("total_tokens")
                self._ends.append(_Ended(ended, phase, tokens if isinstance(tokens, int) else 0))
            is_recent = at - self._ended_at[run_id] <= ENDED_SECONDS
            if is_recent or run_id in self.pinned or not is_settled(run):
                kept[run_id] = run
        for run_id in self._ended_at.keys() - runs.keys():
            del self._ended_at[run_id]
        self._ends = deque(end for end in self._ends if at - end.at <= COUNTED_SECONDS)
        self.runs = kept

    @property
    def counted_seconds(self) -> float:
        """The seconds of which the ends of runs are counted, at most `COUNTED_SECONDS`."""
        if self._totals is not None:
            return COUNTED_SECONDS
        return self._seen_seconds

    @property
    def _seen_seconds(self) -> float:
        if self._counted_from is None:
            return 0.0
        return min(COUNTED_SECONDS, time.monotonic() - self._counted_from)

    def count_ended(self) -> Counter[str]:
        """Return the number of runs that ended within `counted_seconds`, by phase."""
        return self._totals or Counter(end.phase for end in self._ends)

    @property
    def has_unseen(self) -> bool:
        """True if some of the runs that ended were not read: only their number is known."""
        return self._totals is not None and self._totals.total() > len(self._ends)

    def count_tokens(self) -> float:
        """Return the tokens per minute of the runs that were read and ended."""
        minutes = max(self._seen_seconds, 60.0) / 60
        return sum(end.tokens for end in self._ends) / minutes

    def count_live(self) -> Counter[str]:
        """Return the number of live runs by phase."""
        return Counter(describe_run(run)["name"] for run in self.runs.values() if is_live(run))


def _age(moment: object, clock: float) -> float:
    parsed = parse_time(moment)
    return COUNTED_SECONDS + 1 if parsed is None else max(0.0, clock - parsed.timestamp())


FILTER_KEYS = ("agent", "team", "workflow", "user", "session", "status")

MAXIMUM_LEVELS = 32
"""Levels of members; a server could return runs that are their own parents."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run of the list.

    Attributes:
        level: the number of its parents in the list.
        is_last: no run with the same parent follows.
    """

    run: Run
    level: int = 0
    is_last: bool = True

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])


def _created(run: Run) -> str:
    return str(run.get("created_at"))


SORTS: dict[str, tuple[Callable[[Run], Any], bool]] = {
    "newest": (_created, True),
    "oldest": (_created, False),
    "tokens": (lambda run: find_tokens(run) or 0, True),
    "component": (lambda run: find_component(run) or ("", ""), False),
    "user": (lambda run: str(run.get("user_id") or ""), False),
}
"""The orders of the list: key, and True for the largest first."""


def arrange_runs(runs: Iterable[Run], words: str = "", sort: str = "newest") -> list[Row]:
    """Return the rows of the runs that match a filter: live runs first, then those that ended.

    A member is below its parent, at any depth, and is shown with its parent if that matches.

    Args:
        words: see `matches`.
        sort: a name of `SORTS`; it orders the runs of each level.
    """
    key, largest_first = SORTS[sort]
    ordered = sorted(sorted(runs, key=_created, reverse=True), key=key, reverse=largest_first)
    known = {str(run["run_id"]) for run in ordered}
    children: dict[str, list[Run]] = {}
    tops: list[Run] = []
    for run in ordered:
        parent = str(run.get("parent_run_id") or "")
        if parent in known and parent != run["run_id"]:
            children.setdefault(parent, []).append(run)
        else:
            tops.append(run)
    tops.sort(key=lambda run: not is_live(run))
    for group in children.values():
        group.sort(key=_created)
    return [row for top in tops for row in _walk(top, children, words, shown=False)]


def _walk(
    run: Run,
    children: Mapping[str, list[Run]],
    words: str,
    *,
    shown: bool,
    level: int = 0,
    is_last: bool = True,
) -> Iterator[Row]:
    shown = shown or matches(run, words)
    if shown:
        yield Row(run, level, is_last)
        level += 1
    below = children.get(str(run["run_id"]), []) if level < MAXIMUM_LEVELS else []
    for child in below:
        yield from _walk(
            child, children, words, shown=shown, level=level, is_last=child is below[-1]
        )


def list_descendants(runs: Iterable[Run], run_ids: Iterable[str]) -> list[Run]:
    """Return the runs below some runs, at any depth, without these."""
    found = []
    parents = set(run_ids)
    rest = [run for run in runs if str(run["run_id"]) not in parents]
    while below := [run for run in rest if str(run.get("parent_run_id")) in parents]:
        found += below
        parents = {str(run["run_id"]) for run in below}
        rest = [run for run in rest if str(run["run_id"]) not in parents]
    return found


def matches(run: Mapping[str, Any], words: str) -> bool:
    """Return True if a run matches every word of a filter.

    A word is `agent:ID`, `team:ID`, `workflow:ID`, `user:ID`, `session:ID`, `status:WORD`, or a
    text that one of these contains.
    """
    if not words.strip():
        return True
    kind, component = find_component(run) or ("", "")
    values = {
        "user": str(run.get("user_id") or ""),
        "session": str(run.get("session_id") or ""),
        "status": describe_run(run)["words"],
        kind: component,
    }
    texts = [clean_line(text).lower() for text in (*values.values(), str(run.get("run_id")))]
    for word in words.lower().split():
        key, colon, value = word.partition(":")
        if colon and key in FILTER_KEYS:
            if value not in values.get(key, "").lower() or not values.get(key):
                return False
        elif not any(word in text for text in texts):
            return False
    return True
