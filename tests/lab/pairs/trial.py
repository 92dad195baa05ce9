"""One schedule: a scene, two or three operations, their order, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from agentctl import errors
from tests.kit.conditions import PATIENCE
from tests.lab.pairs import hosted, queued
from tests.lab.pairs.judge import (
    Facts,
    compare_ledger,
    count_decisions,
    find_impossible,
    find_violations,
)
from tests.lab.pairs.operations import Place, SceneFailed, Skipped
from tests.lab.pairs.queued import OPERATIONS, SCENES
from tests.lab.pairs.schedule import Actor
from tests.lab.pairs.servers import Server

__all__ = ["Outcome", "Schedule", "run_schedule"]

BLOCKED_SECONDS = 0.12
"""Time after which an operation is taken to wait for the one that is held. It is no rule of the
verdict: too short only means another legal order."""

WAIT_SECONDS = 0.6
"""The same for an operation that polls."""

SWEEP_SECONDS = 0.3

LEGS = 12
"""More legs than the runs of a session have left."""


@dataclass(frozen=True)
class Schedule:
    """A scene and the operations.

    Attributes:
        stops: the point of each operation but the last; None to run it through.
        places: the server of each operation, 0 for that of the run.
        order: the order in which the held operations go on; empty for that of their begin.
    """

    kind: str
    scene: str
    operations: tuple[str, ...]
    stops: tuple[int | None, ...]
    places: tuple[int, ...]
    order: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{name} on {'AB'[place]}" + (f" at {stop}" if stop is not None else "")
            for name, place, stop in zip(
                self.operations, self.places, (*self.stops, None), strict=False
            )
        ]
        return f"{self.kind}, {self.scene}: {', '.join(parts)}"


@dataclass
class Outcome:
    """The course of a schedule, and its verdict.

    Attributes:
        reached: the points at which operations stopped.
        points: the number of points of the first operation.
        applied: False if an operation did not apply.
        waited: True if the second operation waited for the first.
        results: the result of each operation.
    """

    reached: list[str] = field(default_factory=list)
    points: int = 0
    applied: bool = True
    waited: bool = False
    results: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    facts: str = ""


async def _tell(name: str, place: Place, server: Server) -> str:
    try:
        await OPERATIONS[name](place, server)
    except Skipped:
        return "skipped"
    except errors.AgentctlError as error:
        return type(error).__name__
    return "done"


async def run_schedule(schedule: Schedule, place: Place) -> Outcome:
    """Execute a schedule and judge it."""
    outcome = Outcome()
    hosted.ledger.pop(place.session_id, None)
    place.endpoint.forget()
    queued.prepare(place, schedule.scene)
    try:
        await SCENES[schedule.scene][0](place)
    except Skipped:
        outcome.applied = False
        await _release(place)
        return outcome
    except SceneFailed as failure:
        outcome.violations.append(f"the scene failed: {failure}")
        return outcome
    began = list[tuple[str, Actor, asyncio.Task[str]]]()
    held = list[Actor]()
    try:
        stops = (*schedule.stops, *[None] * len(schedule.operations))
        for name, number, stop in zip(schedule.operations, schedule.places, stops, strict=False):
            server = place.servers[number] if place.servers[number].alive else place.other
            actor = Actor(name, stop_at=stop)
            place.actors.append(actor)
            main = actor.start(_tell(name, place, server), server)
            if name == "start":
                place.callers.append(main)
            began.append((name, actor, main))
            alone = not held and (place.run is None or not place.run.is_held)
            await _run_until_held(actor, outcome, alone=alone)
            if actor.reached.is_set():
                outcome.reached.append(actor.place or "?")
                held.append(actor)
        outcome.points = began[0][1].points
        for index in schedule.order or range(len(held)):
            if index < len(held):
                held[index].open()
                await asyncio.sleep(0)
    finally:
        await _release(place)
    if not await _wait_for_ends(place, outcome):
        return outcome
    for name, _, main in began:
        outcome.results.append(_read_result(name, main, place, outcome))
    for client in place.clients:
        _read_result("client", client, place, outcome)
    await _judge(place, outcome)
    return outcome


async def _wait_for_ends(place: Place, outcome: Outcome) -> bool:
    """Wait until all operations have ended; a client may wait for what a sweep lets begin."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while left := [task for actor in place.actors for task in actor.tasks if not task.done()]:
        if asyncio.get_running_loop().time() > deadline:
            outcome.violations.append(f"did not end: {left}")
            return False
        _, pending = await asyncio.wait(left, timeout=SWEEP_SECONDS)
        if pending:
            await _sweep(place)
            if not _live(place):
                # A client waits for a run, which waits for one that needs a decision.
                await _answer(place, await place.facts())
    return True


def _read_result(name: str, main: asyncio.Task[str], place: Place, outcome: Outcome) -> str:
    if main.cancelled():
        return "left"
    failure = main.exception()
    if failure is None:
        return main.result()
    if not place.lost or isinstance(failure, AssertionError):
        outcome.violations.append(f"{name}: {failure!r}")
    return type(failure).__name__


async def _release(place: Place) -> None:
    for actor in place.actors:
        actor.open(killed=actor.is_killed)


async def _run_until_held(actor: Actor, outcome: Outcome, *, alone: bool) -> None:
    """Wait until an operation has ended, is held, or waits for another one.

    Args:
        alone: True if nothing else is held, so that there is nothing to wait for.
    """
    loop = asyncio.get_running_loop()
    points = -1
    latest = 0.0
    last = loop.time() + WAIT_SECONDS
    reached = asyncio.create_task(actor.reached.wait())
    try:
        while not reached.done() and not actor.has_ended:
            if points != actor.points:
                points = actor.points
                latest = loop.time() + BLOCKED_SECONDS
            # A client may wait for another run, alone or not.
            is_quiet = actor.name == "start" and loop.time() >= latest + WAIT_SECONDS
            if is_quiet or (not alone and loop.time() >= min(latest, last)):
                outcome.waited = True
                return
            open_tasks = [task for task in actor.tasks if not task.done()]
            await asyncio.wait(
                [reached, *open_tasks], timeout=0.02, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        reached.cancel()


async def _judge(place: Place, outcome: Outcome) -> None:
    """Judge the rows, then bring what waits to its end, and judge again."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    await _sweep(place)
    facts = await _settle(place, deadline)
    outcome.facts = facts.describe()
    _check(place, facts, outcome)
    outcome.violations += await find_impossible(place.other.database, facts)
    for _ in range(LEGS):
        if outcome.violations or not facts.open_runs:
            break
        if facts.pending:
            await _answer(place, facts)
        await _sweep(place)
        facts = await _settle(place, deadline)
        _check(place, facts, outcome)
    if facts.open_runs and not outcome.violations:
        outcome.violations.append("what waits does not come to an end")
    if outcome.violations:
        outcome.facts += " || " + facts.describe()


def _check(place: Place, facts: Facts, outcome: Outcome) -> None:
    live = set(_live(place))
    outcome.violations += find_violations(facts, live=live, is_lossy=place.lost)
    if not place.deleted:
        outcome.violations += count_decisions(facts, place.accepted, is_lossy=place.lost)
    calls = hosted.ledger[place.session_id]
    tracked = place.kind not in ("function", "question") and not place.deleted
    outcome.violations += compare_ledger(facts, calls, place.granted, tracked=tracked)
    outcome.violations += queued.find_broken_order(place, facts)
    for server in place.servers:
        if server.alive and (count := server.count_taken_slots()):
            outcome.violations.append(f"{count} slots are taken, but no run is live")


def _live(place: Place) -> list[str]:
    return [
        run.run_id
        for server in place.servers
        if server.alive
        for run in server.service.hosting.engine.live_runs()
    ]


async def _sweep(place: Place) -> None:
    """Do what the sweeps of the servers do: recover dead workers, claim what waits."""
    from agentctl.runs.workers.recovery import recover_runs
    from agentctl.store.repositories import workers

    alive = [server for server in place.servers if server.alive]
    own = {server.worker.id for server in alive}
    facts = await place.facts()
    dead = {run["owner"] for run in facts.open_runs} - own - {None}
    dead |= {server.worker.id for server in place.servers if not server.alive}
    for owner in dead:
        await recover_runs(place.other.database, owner)
        await place.other.database.write(workers.remove(owner))
    for server in alive:
        for database in server.service.hosting.databases.get_open().values():
            await server.service.hosting.engine.claims.claim_waiting(database)


async def _settle(place: Place, deadline: float) -> Facts:
    """Wait until no server works on the session."""
    while True:
        busy = _live(place) or any(
            server.alive and server.service.hosting.engine._run_tasks._tasks
            for server in place.servers
        )
        if not busy or asyncio.get_running_loop().time() > deadline:
            return await place.facts()
        await asyncio.sleep(0.002)


async def _answer(place: Place, facts: Facts) -> None:
    """Decide as a person who knows the ledger."""
    calls = hosted.ledger[place.session_id]
    done = sum(row["execution"] == "done" for row in facts.approvals)
    for row in facts.pending:
        with contextlib.suppress(errors.Conflict, errors.NotFound):
            if row["kind"] == "outcome":
                happened = calls > done
                verb = "complete" if happened else "retry"
                fields = {"result": "paid"} if happened else {}
                done += happened
                if not happened:
                    # The first approval was not used.
                    place.granted -= 1
                await place.decide_row(place.other, row, verb, **fields)
            elif row["kind"] == "input":
                await place.decide_row(place.other, row, "answer", answer="that one")
            else:
                await place.decide_row(place.other, row, "approve")
