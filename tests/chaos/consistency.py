"""Holds what the callers were told against what is stored, when all is quiet again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import orjson

from agentctl.runs.event_format import LOST_SEQ_STEP
from tests.chaos.ledger import Ledger, RunNote
from tests.chaos.stage import Cluster
from tests.server.load import ENDS, Event

__all__ = ["SETTLE_SECONDS", "check_consistency", "wait_until_idle"]

SETTLE_SECONDS = 25.0
"""How long a run may be live when nobody wants it any more."""

_RUNS = "SELECT run_id, status, input, attempt FROM runs"

_LIVE = "status IN ('PENDING', 'RUNNING')"

_MUST_BE_EMPTY = {
    "requests that made two runs": (
        "SELECT input FROM runs WHERE parent_run_id IS NULL GROUP BY input HAVING count(*) > 1"
    ),
    "sessions whose runs are not numbered from 1 on": (
        "SELECT s.session_id FROM sessions s LEFT JOIN runs r ON r.session_id = s.session_id"
        " GROUP BY s.session_id"
        " HAVING s.run_count <> count(r.run_id) OR s.run_count <> coalesce(max(r.seq), 0)"
    ),
    "keys without their run": (
        "SELECT key FROM idempotency i LEFT JOIN runs r ON r.run_id = i.run_id"
        " WHERE r.run_id IS NULL"
    ),
    "runs that are final without an end": (
        f"SELECT run_id FROM runs WHERE ({_LIVE}) = (finished_at IS NOT NULL)"
    ),
    "members that outlived their run's end": (
        "SELECT c.run_id FROM runs c JOIN runs p ON p.run_id = c.parent_run_id"
        f" WHERE c.{_LIVE} AND p.status NOT IN ('PENDING', 'RUNNING')"
    ),
    "events of runs that are not there": (
        "SELECT e.run_id FROM run_events e LEFT JOIN runs r ON r.run_id = e.run_id"
        " WHERE r.run_id IS NULL"
    ),
}
"""Statements that must find nothing."""

_COMPARED_FIELDS = (
    "status",
    "content",
    "input",
    "created_at",
    "finished_at",
    "session_id",
    "metrics",
)
"""Of a record that was answered, what is to be found in it later."""


async def wait_until_idle(stage: Cluster, ledger: Ledger) -> float:
    """Cancel what has no end, and wait until no run is live; the seconds that it took."""
    live = await stage.rows(f"SELECT run_id FROM runs WHERE {_LIVE}")
    endless = [told for told in ledger.acknowledged if told.run_id in {row[0] for row in live}]
    began = time.monotonic()
    async with _client(stage) as client:
        for told in endless:
            path = f"{told.path}/runs/{told.run_id}/cancel?session_id={told.session_id}&wait=0"
            await client.post(path)
    while live := await stage.rows(f"SELECT run_id, status, owner FROM runs WHERE {_LIVE}"):
        # A run that nobody was told of, and that has no end of its own, is nobody's to wait for.
        if time.monotonic() > began + SETTLE_SECONDS:
            ledger.wrong["runs that are still live"] += len(live)
            break
        await _cancel_unnamed(stage, [row[0] for row in live])
        await asyncio.sleep(0.5)
    return time.monotonic() - began


async def _cancel_unnamed(stage: Cluster, run_ids: list[str]) -> None:
    found = await stage.rows(
        "SELECT run_id, session_id, component_type, component_id FROM runs"
        f" WHERE {_LIVE} AND parent_run_id IS NULL AND cancel_requested_at IS NULL"
    )
    async with _client(stage) as client:
        for run_id, session_id, kind, component_id in found:
            if run_id in run_ids:
                path = f"/{kind}s/{component_id}/runs/{run_id}/cancel"
                await client.post(f"{path}?session_id={session_id}&wait=0")


async def check_consistency(stage: Cluster, ledger: Ledger) -> None:
    """Add whatever is not so to `ledger.wrong`."""
    for what, sql in _MUST_BE_EMPTY.items():
        if found := await stage.rows(sql):
            ledger.wrong[f"{what}, such as {found[0][0]}"] += len(found)
    stored = {row[0]: row for row in await stage.rows(_RUNS)}
    for told in ledger.acknowledged:
        _check_row(ledger, told, stored.get(told.run_id or ""))
    await _check_names(stage, ledger)
    await _check_events(stage, ledger, {row[0] for row in stored.values() if row["attempt"] > 1})
    async with _client(stage) as client:
        await _check_records(client, ledger)
        await _check_keys(client, ledger)


def _check_row(ledger: Ledger, told: RunNote, row: Any) -> None:
    if row is None:
        ledger.wrong["acknowledged runs that are lost"] += 1
        return
    if told.status not in (None, row["status"]):
        ledger.wrong[f"told {told.status}, stored {row['status']}"] += 1
    if row["input"] != told.message:
        ledger.wrong["runs with another message"] += 1


async def _check_names(stage: Cluster, ledger: Ledger) -> None:
    rows = await stage.rows("SELECT session_id, session_name FROM sessions")
    stored = {row[0]: row[1] for row in rows}
    for session_id, names in ledger.names.items():
        if stored.get(session_id) not in names:
            ledger.wrong["sessions that are lost, or have an old name"] += 1


async def _check_events(stage: Cluster, ledger: Ledger, lost: set[str]) -> None:
    """Those of a run follow each other from the first to its end, and are what was heard.

    Args:
        lost: runs whose server was killed.
    """
    rows = await stage.rows(
        "SELECT e.run_id, e.first_seq, e.last_seq, e.events, r.status"
        " FROM run_events e JOIN runs r ON r.run_id = e.run_id ORDER BY e.run_id, e.first_seq"
    )
    stored = dict[str, list[Event]]()
    statuses = dict[str, str]()
    for run_id, first, last, text, status in rows:
        lines = text.split("\n")[:-1]
        statuses[run_id] = status
        if len(lines) != last - first + 1:
            ledger.wrong["batches of another length"] += 1
        for number, line in enumerate(lines, first):
            name, _, data = line.partition(" ")
            stored.setdefault(run_id, []).append(Event(number, name, orjson.loads(data)))
    for run_id, found in stored.items():
        _check_order(ledger, run_id, found, statuses[run_id])
    for told in ledger.acknowledged:
        if told.recorded:
            found = {event.number: event for event in stored.get(told.run_id or "", [])}
            _check_heard(ledger, told, found, told.run_id in lost)


def _check_order(ledger: Ledger, run_id: str, found: list[Event], status: str) -> None:
    numbers = [event.number for event in found]
    whole = list(range(len(numbers)))
    lost = [*whole[:-1], whole[-1] - 1 + LOST_SEQ_STEP]
    if numbers not in (whole, lost):
        ledger.wrong["runs with gaps in their events"] += 1
    ends = [event for event in found if event.name in ENDS and event.data["run_id"] == run_id]
    if [ENDS[event.name] for event in ends] != [status] or found[-1] is not ends[-1]:
        ledger.wrong["runs whose last event is not their end"] += 1


def _check_heard(ledger: Ledger, told: RunNote, stored: dict[int, Event], lost: bool) -> None:
    """What was heard is stored. A killed server may have told more than it could store yet."""
    for event in told.heard:
        same = stored.get(event.number)
        if same is None and lost:
            continue
        if same != event:
            ledger.wrong[f"told {event}, stored {same}, as the last {max(stored, default=-1)}"] += 1
            return


async def _check_records(client: httpx2.AsyncClient, ledger: Ledger) -> None:
    """Every final answer is what a later one says."""
    finals = [told for told in ledger.acknowledged if told.record is not None]
    async for told, record in _fetch_records(client, finals):
        assert told.record is not None
        for name in _COMPARED_FIELDS:
            if record.get(name) != told.record.get(name):
                ledger.wrong[f"records with another {name}"] += 1


async def _fetch_records(
    client: httpx2.AsyncClient, runs: list[RunNote]
) -> AsyncIterator[tuple[RunNote, dict[str, Any]]]:
    for first in range(0, len(runs), 16):
        some = runs[first : first + 16]
        answers = await asyncio.gather(*(client.get(f"/runs/{told.run_id}") for told in some))
        for told, answer in zip(some, answers, strict=True):
            yield told, answer.json()


async def _check_keys(client: httpx2.AsyncClient, ledger: Ledger) -> None:
    """A key that has a run has it for everybody who asks again; some are asked."""
    keyed = [told for told in ledger.acknowledged if told.key is not None and not told.heard]
    seen = Counter[str]()
    for told in keyed[-50:]:
        body = {"message": told.message, "session_id": told.session_id, "stream": False}
        again = {"background": told.recorded, **body}
        headers = {"Idempotency-Key": told.key or ""}
        answer = await client.post(f"{told.path}/runs", json=again, headers=headers)
        seen[str(answer.json().get("run_id") == told.run_id)] += 1
    if seen["False"]:
        ledger.wrong["keys that were given another run"] += seen["False"]


def _client(stage: Cluster) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {stage.token}"}
    return httpx2.AsyncClient(base_url=stage.servers[1].url, headers=headers, timeout=30)
