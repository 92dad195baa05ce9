"""The judge of all scenarios: what holds in every world after its load.

It reads the rows, the journal, the events and the logs of the servers, and not what the product
says about them. What a scenario knows in addition, from its clients, its ledger and its model
endpoint, it compares itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentctl.records.times import now
from agentctl.runs.log.event_rows import LOST_SEQ_STEP, UNRECORDED_EVENTS
from agentctl.store.databases import Databases
from agentctl.store.repositories.events import EventRow
from agentctl.store.repositories.integrity import find_inconsistent
from tests.kit.concurrent_callers import ENDS, Event
from tests.lab.world import World
from tests.server.database_checks import parse_row

__all__ = ["LIVE", "format_violations", "is_in_order", "judge_rows", "judge_world", "read_events"]

LIVE = "status IN ('PENDING', 'RUNNING')"
"""The condition of runs that work, or wait for their turn."""

_IS_OPEN = "status IN ('PENDING', 'RUNNING', 'PAUSED')"

_MUST_BE_EMPTY = {
    "runs that are still live": f"SELECT run_id FROM runs WHERE {LIVE}",
    "sessions whose runs are not numbered from 1 on": (
        "SELECT s.session_id FROM sessions s LEFT JOIN runs r ON r.session_id = s.session_id"
        " GROUP BY s.session_id"
        " HAVING s.run_count <> count(r.run_id) OR s.run_count <> coalesce(max(r.seq), 0)"
    ),
    "idempotency keys without their run": (
        "SELECT key FROM idempotency i LEFT JOIN runs r ON r.run_id = i.run_id"
        " WHERE r.run_id IS NULL"
    ),
    "runs whose end time does not fit to their status": (
        f"SELECT run_id FROM runs WHERE ({_IS_OPEN}) = (finished_at IS NOT NULL)"
    ),
    "open members of ended runs": (
        "SELECT c.run_id FROM runs c JOIN runs p ON p.run_id = c.parent_run_id"
        f" WHERE c.{_IS_OPEN} AND NOT p.{_IS_OPEN}"
    ),
    "events without their run": (
        "SELECT e.run_id FROM run_events e LEFT JOIN runs r ON r.run_id = e.run_id"
        " WHERE r.run_id IS NULL"
    ),
    "ended runs with a journal": (
        "SELECT s.run_id FROM run_steps s JOIN runs r ON r.run_id = s.run_id"
        f" WHERE NOT r.{_IS_OPEN}"
    ),
    "ended runs with a checkpoint": (
        "SELECT c.run_id FROM run_checkpoints c JOIN runs r ON r.run_id = c.run_id"
        f" WHERE NOT r.{_IS_OPEN}"
    ),
    "ended runs that wait for a person": (
        "SELECT a.run_id FROM approvals a JOIN runs r ON r.run_id = a.run_id"
        f" WHERE a.status = 'pending' AND NOT r.{_IS_OPEN}"
    ),
    "ended runs with a call that is being executed": (
        "SELECT a.run_id FROM approvals a JOIN runs r ON r.run_id = a.run_id"
        f" WHERE a.execution = 'executing' AND NOT r.{_IS_OPEN}"
    ),
}
"""Queries that must return no row."""

_EVENTS = (
    "SELECT e.run_id, e.first_seq, e.last_seq, e.events, r.session_id, r.status, r.attempt"
    " FROM run_events e JOIN runs r ON r.run_id = e.run_id ORDER BY e.run_id, e.first_seq"
)


class Source(Protocol):
    """A world with a database."""

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Query the main database."""
        ...


async def judge_world(world: World, *, code_fails: bool = False) -> Counter[str]:
    """Return the violations in a world in which nothing works any more, with their numbers.

    Args:
        code_fails: True if tools or agents in code raise errors, which servers log with
            tracebacks.
    """
    found = await judge_rows(world)
    found += await _find_inconsistent(world)
    if not code_fails:
        found += _judge_logs(world)
    return found


async def judge_rows(source: Source) -> Counter[str]:
    """Return the violations in the rows, the journal and the events alone."""
    found: Counter[str] = Counter()
    for violation, sql in _MUST_BE_EMPTY.items():
        if rows := await source.rows(sql):
            found[f"{violation}, for example {rows[0][0]}"] += len(rows)
    return found + await _judge_events(source)


async def read_events(source: Source) -> dict[str, list[Event]]:
    """Return the stored events of each run that has some."""
    stored: dict[str, list[Event]] = {}
    for *values, _, _ in await source.rows(_EVENTS):
        row = EventRow(*values)
        stored.setdefault(row.run_id, []).extend(parse_row(row))
    return stored


async def _find_inconsistent(world: World) -> Counter[str]:
    """Return what `agentctl doctor --runs` finds: states that no run may have."""
    databases = Databases(world.servers[0].deployment.settings, create=False)
    try:
        work = find_inconsistent(1_000, now())
        rows = await databases.system.read(work, size="large")
    finally:
        await databases.close()
    return Counter(f"a run, of which doctor says: {row.text}" for row in rows)


async def _judge_events(source: Source) -> Counter[str]:
    """Check that the stored events of each run have no gap, and end with its end."""
    found: Counter[str] = Counter()
    ends: dict[str, tuple[str, int]] = {}
    events_by_run: dict[str, list[Event]] = {}
    for *values, status, attempt in await source.rows(_EVENTS):
        row = EventRow(*values)
        ends[row.run_id] = status, attempt
        row_events = parse_row(row)
        events_by_run.setdefault(row.run_id, []).extend(row_events)
        if len(row_events) != row.last_seq - row.first_seq + 1:
            found["batches of another length"] += 1

    unordered: list[str] = []
    endless: list[str] = []
    for run_id, events in events_by_run.items():
        status, attempt = ends[run_id]
        if not is_in_order(events, attempt):
            unordered.append(f"{run_id} {[event.number for event in events]}")
        if status in ENDS.values() and not _ends_once(events, run_id, status):
            endless.append(f"{run_id} {status} {events[-1].name}")
    if unordered:
        found[f"runs with gaps in their events, for example {unordered[0]}"] = len(unordered)
    if endless:
        found[f"runs whose last event is not their end, for example {endless[0]}"] = len(endless)
    return found


def is_in_order(events: list[Event], attempt: int) -> bool:
    """Return True if the numbers have no gap, but where a process has died."""
    before = -1
    if attempt > 1 and events[0].number == UNRECORDED_EVENTS:
        # Its events are stored since a pause only: those before are built from its row.
        before = UNRECORDED_EVENTS - 1

    for event in events:
        step = event.number - before
        before = event.number
        if step == 1:
            continue
        # The process that died may have delivered events that were never stored. A run that no
        # other process continues has only its end after that.
        if step != LOST_SEQ_STEP or (attempt == 1 and event is not events[-1]):
            return False
    return True


def _ends_once(events: list[Event], run_id: str, status: str) -> bool:
    ends = [event for event in events if event.name in ENDS and event.data["run_id"] == run_id]
    return [ENDS[event.name] for event in ends] == [status] and events[-1] is ends[-1]


def _judge_logs(world: World) -> Counter[str]:
    """Count the tracebacks in the logs of the servers; print each."""
    found: Counter[str] = Counter()
    for text in world.read_logs():
        if "Traceback" in text:
            print(text[max(text.index("Traceback") - 500, 0) :][:4_000], file=sys.stderr)
            found["tracebacks in the logs"] += text.count("Traceback")
    return found


def format_violations(violations: Mapping[str, int]) -> str:
    """Return a line for each violation, the most frequent first."""
    lines = [f"{count} times: {text}" for text, count in Counter(violations).most_common()]
    return "\n".join(lines)
