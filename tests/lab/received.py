"""Responses that clients have received, and their comparison with the stored data."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.kit.concurrent_callers import Event
from tests.kit.conditions import PATIENCE
from tests.lab.judge import LIVE, judge_world, read_events
from tests.lab.world import World

__all__ = [
    "IDLE_SECONDS",
    "Received",
    "RequestCounts",
    "RunNote",
    "compare_with_rows",
    "wait_until_idle",
]

IDLE_SECONDS = 25.0
"""Maximum time from the end of the load until no run is live."""

_RUNS = "SELECT run_id, status, input, attempt FROM runs"

_DOUBLED = "SELECT input FROM runs WHERE parent_run_id IS NULL GROUP BY input HAVING count(*) > 1"

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


@dataclass
class RunNote:
    """A run that a client requested, and all that the client knows about it.

    Attributes:
        path: path of the component.
        message: the message, unique per run.
        key: the Idempotency-Key, if the request has one.
        recorded: True if the events of the run are stored.
        run_id: the run id, once a response or event has it.
        status: the final status, once a response or event has it.
        record: the response with the final status.
        events: the events received.
    """

    path: str
    session_id: str
    message: str
    key: str | None
    recorded: bool
    run_id: str | None = None
    status: str | None = None
    record: dict[str, Any] | None = None
    events: list[Event] = field(default_factory=list)


@dataclass
class RequestCounts:
    """The results of one kind of request.

    Attributes:
        seconds: durations of the successful requests.
        unavailable: number of 503 responses.
        broken: number of requests without a complete response.
    """

    seconds: list[float] = field(default_factory=list)
    unavailable: int = 0
    broken: int = 0


@dataclass
class Received:
    """The responses that all clients have received.

    Attributes:
        runs: every requested run.
        names: the names that each acknowledged session may have, by session id.
        requests: results by kind of request.
        violations: number of occurrences of each violated rule.
    """

    runs: list[RunNote] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    requests: defaultdict[str, RequestCounts] = field(
        default_factory=lambda: defaultdict(RequestCounts)
    )
    violations: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> list[RunNote]:
        """The runs with a known run id."""
        return [note for note in self.runs if note.run_id is not None]


async def wait_until_idle(world: World, received: Received) -> float:
    """Cancel the live runs and wait until they have stopped; return the seconds taken."""
    live = {row[0] for row in await world.rows(f"SELECT run_id FROM runs WHERE {LIVE}")}
    began = time.monotonic()
    async with _client(world) as client:
        for note in received.acknowledged:
            if note.run_id in live:
                path = f"{note.path}/runs/{note.run_id}/cancel?session_id={note.session_id}&wait=0"
                await client.post(path)
    while rows := await world.rows(f"SELECT run_id, status, owner FROM runs WHERE {LIVE}"):
        if time.monotonic() > began + IDLE_SECONDS:
            received.violations["runs that are still live"] += len(rows)
            break
        # The response with the id of a run may be lost: no client cancels such a run.
        await _cancel_live_runs(world, [row[0] for row in rows])
        await asyncio.sleep(0.5)
    return time.monotonic() - began


async def _cancel_live_runs(world: World, run_ids: list[str]) -> None:
    rows = await world.rows(
        "SELECT run_id, session_id, component_type, component_id FROM runs"
        f" WHERE {LIVE} AND parent_run_id IS NULL AND cancel_requested_at IS NULL"
    )
    async with _client(world) as client:
        for run_id, session_id, kind, component_id in rows:
            if run_id in run_ids:
                path = f"/{kind}s/{component_id}/runs/{run_id}/cancel"
                await client.post(f"{path}?session_id={session_id}&wait=0")


async def compare_with_rows(world: World, received: Received) -> None:
    """Add every violated rule to `received.violations`."""
    received.violations += await judge_world(world)
    if rows := await world.rows(_DOUBLED):
        example = rows[0][0]
        received.violations[f"requests that created two runs, for example {example}"] += len(rows)

    stored = {row[0]: row for row in await world.rows(_RUNS)}
    for note in received.acknowledged:
        _check_row(received, note, stored.get(note.run_id or ""))
    await _check_names(world, received)
    await _check_events(world, received, {row[0] for row in stored.values() if row[3] > 1})
    async with _client(world) as client:
        await _check_records(client, received)
        await _check_keys(client, received)


def _check_row(received: Received, note: RunNote, row: Any) -> None:
    if row is None:
        received.violations["acknowledged runs that are lost"] += 1
        return
    if note.status not in (None, row[1]):
        received.violations[f"received {note.status}, stored {row[1]}"] += 1
    if row[2] != note.message:
        received.violations["runs with another message"] += 1


async def _check_names(world: World, received: Received) -> None:
    rows = await world.rows("SELECT session_id, session_name FROM sessions")
    stored = {row[0]: row[1] for row in rows}
    for session_id, names in received.names.items():
        if stored.get(session_id) not in names:
            received.violations["sessions that are lost, or have an old name"] += 1


async def _check_events(world: World, received: Received, orphaned: set[str]) -> None:
    """Check that clients received the stored events.

    Args:
        orphaned: ids of runs whose worker was killed.
    """
    stored = await read_events(world)
    for note in received.acknowledged:
        if note.recorded:
            by_number = {event.number: event for event in stored.get(note.run_id or "", [])}
            _check_received(received, note, by_number, note.run_id in orphaned)


def _check_received(
    received: Received, note: RunNote, stored: dict[int, Event], orphaned: bool
) -> None:
    """Check that received events are stored; a killed server may not have stored the last ones."""
    for event in note.events:
        same = stored.get(event.number)
        if same is None and orphaned:
            continue
        if same != event:
            last = max(stored, default=-1)
            received.violations[f"received {event}, stored {same}, the last is {last}"] += 1
            return


async def _check_records(client: httpx2.AsyncClient, received: Received) -> None:
    """Check that final records are the same when they are read again."""
    final = [note for note in received.acknowledged if note.record is not None]
    async for note, record in _fetch_records(client, final):
        assert note.record is not None
        for name in _COMPARED_FIELDS:
            if record.get(name) != note.record.get(name):
                received.violations[f"records with another {name}"] += 1


async def _fetch_records(
    client: httpx2.AsyncClient, notes: list[RunNote]
) -> AsyncIterator[tuple[RunNote, dict[str, Any]]]:
    for first in range(0, len(notes), 16):
        some = notes[first : first + 16]
        responses = await asyncio.gather(*(client.get(f"/runs/{note.run_id}") for note in some))
        for note, response in zip(some, responses, strict=True):
            yield note, response.json()


async def _check_keys(client: httpx2.AsyncClient, received: Received) -> None:
    """Repeat requests with an idempotency key; each must return the same run again."""
    keyed = [note for note in received.acknowledged if note.key is not None and not note.events]
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
            received.violations["keys that returned another run"] += 1


def _client(world: World) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=world.servers[-1].url, headers=world.headers, timeout=PATIENCE
    )
