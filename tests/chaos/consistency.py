"""Compare the responses that clients received with the stored data, after the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from agentctl.runs.log.event_rows import LOST_SEQ_STEP
from agentctl.store.repositories.events import EventRow
from tests.chaos.cluster import Cluster
from tests.chaos.ledger import Ledger, RunNote
from tests.conditions import PATIENCE
from tests.server.concurrent_callers import ENDS, Event
from tests.server.database_checks import parse_row

__all__ = ["IDLE_SECONDS", "check_consistency", "wait_until_idle"]

IDLE_SECONDS = 25.0
"""Maximum time from the end of the load until no run is live."""

_RUNS = "SELECT run_id, status, input, attempt FROM runs"

_LIVE = "status IN ('PENDING', 'RUNNING')"

_MUST_BE_EMPTY = {
    "requests that created two runs": (
        "SELECT input FROM runs WHERE parent_run_id IS NULL GROUP BY input HAVING count(*) > 1"
    ),
    "sessions whose runs are not numbered from 1 on": (
        "SELECT s.session_id FROM sessions s LEFT JOIN runs r ON r.session_id = s.session_id"
        " GROUP BY s.session_id"
        " HAVING s.run_count <> count(r.run_id) OR s.run_count <> coalesce(max(r.seq), 0)"
    ),
    "idempotency keys without their run": (
        "SELECT key FROM idempotency i LEFT JOIN runs r ON r.run_id = i.run_id"
        " WHERE r.run_id IS NULL"
    ),
    "final runs without an end time": (
        f"SELECT run_id FROM runs WHERE ({_LIVE}) = (finished_at IS NOT NULL)"
    ),
    "live members of final runs": (
        "SELECT c.run_id FROM runs c JOIN runs p ON p.run_id = c.parent_run_id"
        f" WHERE c.{_LIVE} AND p.status NOT IN ('PENDING', 'RUNNING')"
    ),
    "events without their run": (
        "SELECT e.run_id FROM run_events e LEFT JOIN runs r ON r.run_id = e.run_id"
        " WHERE r.run_id IS NULL"
    ),
}
"""Queries that must return no row."""

_COMPARED_FIELDS = (
    "status",
    "content",
    "input",
    "created_at",
    "finished_at",
    "session_id",
    "metrics",
)
"""Fields of a final record that never change."""


async def wait_until_idle(cluster: Cluster, ledger: Ledger) -> float:
    """Cancel the live runs and wait until they have stopped; return the seconds taken."""
    live = {row[0] for row in await cluster.rows(f"SELECT run_id FROM runs WHERE {_LIVE}")}
    began = time.monotonic()
    async with _client(cluster) as client:
        for note in ledger.acknowledged:
            if note.run_id in live:
                path = f"{note.path}/runs/{note.run_id}/cancel?session_id={note.session_id}&wait=0"
                await client.post(path)
    while rows := await cluster.rows(f"SELECT run_id, status, owner FROM runs WHERE {_LIVE}"):
        if time.monotonic() > began + IDLE_SECONDS:
            ledger.violations["runs that are still live"] += len(rows)
            break
        # The response with the id of a run may be lost: no client cancels such a run.
        await _cancel_live_runs(cluster, [row[0] for row in rows])
        await asyncio.sleep(0.5)
    return time.monotonic() - began


async def _cancel_live_runs(cluster: Cluster, run_ids: list[str]) -> None:
    rows = await cluster.rows(
        "SELECT run_id, session_id, component_type, component_id FROM runs"
        f" WHERE {_LIVE} AND parent_run_id IS NULL AND cancel_requested_at IS NULL"
    )
    async with _client(cluster) as client:
        for run_id, session_id, kind, component_id in rows:
            if run_id in run_ids:
                path = f"/{kind}s/{component_id}/runs/{run_id}/cancel"
                await client.post(f"{path}?session_id={session_id}&wait=0")


async def check_consistency(cluster: Cluster, ledger: Ledger) -> None:
    """Add every violated guarantee to `ledger.violations`."""
    for violation, sql in _MUST_BE_EMPTY.items():
        if rows := await cluster.rows(sql):
            ledger.violations[f"{violation}, for example {rows[0][0]}"] += len(rows)
    stored = {row[0]: row for row in await cluster.rows(_RUNS)}
    for note in ledger.acknowledged:
        _check_row(ledger, note, stored.get(note.run_id or ""))
    await _check_names(cluster, ledger)
    restarted = {row[0] for row in stored.values() if row[3] > 1}
    await _check_events(cluster, ledger, restarted)
    async with _client(cluster) as client:
        await _check_records(client, ledger)
        await _check_keys(client, ledger)


def _check_row(ledger: Ledger, note: RunNote, row: Any) -> None:
    if row is None:
        ledger.violations["acknowledged runs that are lost"] += 1
        return
    if note.status not in (None, row[1]):
        ledger.violations[f"received {note.status}, stored {row['status']}"] += 1
    if row[2] != note.message:
        ledger.violations["runs with another message"] += 1


async def _check_names(cluster: Cluster, ledger: Ledger) -> None:
    rows = await cluster.rows("SELECT session_id, session_name FROM sessions")
    stored = {row[0]: row[1] for row in rows}
    for session_id, names in ledger.names.items():
        if stored.get(session_id) not in names:
            ledger.violations["sessions that are lost, or have an old name"] += 1


async def _check_events(cluster: Cluster, ledger: Ledger, orphaned: set[str]) -> None:
    """Check that stored events have no gaps, and that clients received the same events.

    Args:
        orphaned: ids of runs whose worker was killed.
    """
    rows = await cluster.rows(
        "SELECT e.run_id, e.first_seq, e.last_seq, e.events, r.session_id, r.status"
        " FROM run_events e JOIN runs r ON r.run_id = e.run_id ORDER BY e.run_id, e.first_seq"
    )
    stored = dict[str, list[Event]]()
    statuses = dict[str, str]()
    for *values, status in rows:
        row = EventRow(*values)
        batch = parse_row(row)
        statuses[row.run_id] = status
        if len(batch) != row.last_seq - row.first_seq + 1:
            ledger.violations["batches of another length"] += 1
        stored.setdefault(row.run_id, []).extend(batch)
    for run_id, events in stored.items():
        _check_order(ledger, run_id, events, statuses[run_id])
    for note in ledger.acknowledged:
        if note.recorded:
            by_number = {event.number: event for event in stored.get(note.run_id or "", [])}
            _check_received(ledger, note, by_number, note.run_id in orphaned)


def _check_order(ledger: Ledger, run_id: str, events: list[Event], status: str) -> None:
    numbers = [event.number for event in events]
    complete = list(range(len(numbers)))
    orphaned = [*complete[:-1], complete[-1] - 1 + LOST_SEQ_STEP]
    if numbers not in (complete, orphaned):
        ledger.violations["runs with gaps in their events"] += 1
    ends = [event for event in events if event.name in ENDS and event.data["run_id"] == run_id]
    if [ENDS[event.name] for event in ends] != [status] or events[-1] is not ends[-1]:
        ledger.violations["runs whose last event is not their end"] += 1


def _check_received(
    ledger: Ledger, note: RunNote, stored: dict[int, Event], orphaned: bool
) -> None:
    """Check that received events are stored; a killed server may not have stored the last ones."""
    for event in note.events:
        same = stored.get(event.number)
        if same is None and orphaned:
            continue
        if same != event:
            last = max(stored, default=-1)
            ledger.violations[f"received {event}, stored {same}, the last is {last}"] += 1
            return


async def _check_records(client: httpx2.AsyncClient, ledger: Ledger) -> None:
    """Check that final records are the same when they are read again."""
    final = [note for note in ledger.acknowledged if note.record is not None]
    async for note, record in _fetch_records(client, final):
        assert note.record is not None
        for name in _COMPARED_FIELDS:
            if record.get(name) != note.record.get(name):
                ledger.violations[f"records with another {name}"] += 1


async def _fetch_records(
    client: httpx2.AsyncClient, notes: list[RunNote]
) -> AsyncIterator[tuple[RunNote, dict[str, Any]]]:
    for first in range(0, len(notes), 16):
        some = notes[first : first + 16]
        responses = await asyncio.gather(*(client.get(f"/runs/{note.run_id}") for note in some))
        for note, response in zip(some, responses, strict=True):
            yield note, response.json()


async def _check_keys(client: httpx2.AsyncClient, ledger: Ledger) -> None:
    """Repeat requests with an idempotency key; each must return the same run again."""
    keyed = [note for note in ledger.acknowledged if note.key is not None and not note.events]
    for note in keyed[-50:]:
        body = {
            "message": note.message,
            "session_id": note.session_id,
            "stream": False,
            "background": note.recorded,
        }
        headers = {"Idempotency-Key": note.key or ""}
        response = await client.post(f"{note.path}/runs", json=body, headers=headers)
        if response.json().get("run_id") != note.run_id:
            ledger.violations["keys that returned another run"] += 1


def _client(cluster: Cluster) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {cluster.token}"}
    return httpx2.AsyncClient(base_url=cluster.servers[-1].url, headers=headers, timeout=PATIENCE)
