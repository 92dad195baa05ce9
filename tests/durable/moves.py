"""Runs that go through three servers: the first one stops, the second one is killed.

The second one is a process, so that a real death is shown of each kind of durable agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctl.interface.requests import ResumeRequest, RunRequest
from agentctl.records.approvals import ApprovalRow, Verb
from agentctl.records.kinds import ComponentKind, find_component
from agentctl.store.database import Sql
from agentctl.store.repositories import approvals
from tests.kit.conditions import wait_until
from tests.kit.site import Server, Site, kill

FIRST = "first"
SECOND = "second"
"""The barriers: the first server stops while calls wait at `FIRST`, and the second one is killed
while they wait at `SECOND`."""

_AGREE: dict[str, Verb] = {"approval": "approve", "input": "answer"}

_NOTES_UNDER_WAY = Sql(
    "SELECT (SELECT count(*) FROM run_steps WHERE name LIKE '%note' AND state = 'started')"
    " + (SELECT count(*) FROM approvals WHERE tool_name = 'note' AND execution = 'executing')"
)


@dataclass(frozen=True)
class Start:
    """A run to start, and the calls that it has made when each barrier is reached.

    Attributes:
        asks: True if it waits for people, who agree to everything.
    """

    kind: ComponentKind
    component_id: str
    message: Any
    first: tuple[str, ...]
    second: tuple[str, ...]
    session_id: str | None = None
    asks: bool = False


@dataclass(frozen=True)
class Moved:
    """The third server, with the runs that two others have lost."""

    site: Site
    server: Server
    runs: Mapping[str, dict[str, Any]]

    async def read_events(self, name: str) -> list[dict[str, Any]]:
        """Return all events of a run: the name and the fields of each."""
        async with self.site.connect(self.server) as operations:
            run = self.runs[name]
            kind = find_component(run)
            assert kind is not None
            events = operations.runs.resume(
                *kind, run["run_id"], ResumeRequest(session_id=run["session_id"])
            )
            found = [event async for event in events]
        return [
            {"event": event.name, "seq": event.seq, **json.loads(event.data)} for event in found
        ]


@contextlib.contextmanager
def move(site: Site, starts: Mapping[str, Start]) -> Iterator[Moved]:
    """Let runs go through two servers, and start the third one."""
    folder: Path = site.deployment.folder
    set_drain_seconds(site, 300)
    barriers = [folder / f"barrier-{barrier}" for barrier in (FIRST, SECOND)]
    for barrier in barriers:
        barrier.touch()
    runs = asyncio.run(_lose_two(site, starts, barriers[0]))
    barriers[1].unlink()
    with site.serve_in_thread() as three:
        yield Moved(site, three, runs)


def set_drain_seconds(site: Site, seconds: int) -> None:
    text = site.deployment.path.read_text()
    assert "drain_seconds = 1\n" in text
    site.deployment.path.write_text(
        text.replace("drain_seconds = 1\n", f"drain_seconds = {seconds}\n")
    )


async def _lose_two(
    site: Site, starts: Mapping[str, Start], first_barrier: Path
) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = {}

    def are_at(barrier: str) -> bool:
        wanted = {name: getattr(start, barrier) for name, start in starts.items()}
        called = {name: site.tools_called(run) for name, run in runs.items()}
        return all(Counter(wanted[name]) <= Counter(called[name]) for name in starts)

    async def agree_until(server: Server, barrier: str) -> None:
        asking = [run["run_id"] for name, run in runs.items() if starts[name].asks]
        async with site.open_database() as database:

            async def has_arrived() -> bool:
                for run_id in asking:
                    await _agree(site, server, await database.read(approvals.list_of_root(run_id)))
                return are_at(barrier) and await database.read(_NOTES_UNDER_WAY.value()) == 0

            await wait_until(has_arrived)

    with site.serve_in_thread() as one:
        async with site.connect(one) as operations:
            for name, start in starts.items():
                text = start.message
                text = text if isinstance(text, str) else json.dumps(text)
                request = RunRequest(text, background=True, session_id=start.session_id)
                run = await operations.runs.create(start.kind, start.component_id, request)
                runs[name] = dict(run.value)
        await agree_until(one, FIRST)
        with site.serve("two") as two:
            assert one.thread is not None
            engine = one.thread.service.hosting.engine
            stopping = asyncio.create_task(asyncio.to_thread(one.stop))
            await wait_until(lambda: engine.draining)
            first_barrier.unlink()
            await stopping
            await agree_until(two, SECOND)
            kill(two)
    return runs


async def _agree(site: Site, server: Server, rows: list[ApprovalRow]) -> None:
    """Approve the calls that wait, and answer the questions."""
    pending = [row for row in rows if row.status == "pending"]
    for kind, verb in _AGREE.items():
        fields = {"answer": "left"} if verb == "answer" else {}
        asked = [row for row in pending if row.kind == kind]
        await site.decide_rows(server, asked, verb, **fields)
