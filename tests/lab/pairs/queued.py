"""Runs that wait for another run of their session, or for a slot: scenes, operations and rules.

The truth outside of the database: the model endpoint has each model call with the amount of its
run, which no other run of a search pays.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from itertools import groupby

from agentctl import errors
from agentctl.interface.requests import RunRequest
from agentctl.records.times import now
from agentctl.runs.desk.waiting import end_overdue_run
from tests.kit.conditions import wait_until
from tests.lab.pairs import operations
from tests.lab.pairs.judge import Facts, Row
from tests.lab.pairs.operations import (
    Operation,
    Place,
    SceneFailed,
    Skipped,
    cancel,
    cancel_run,
    claim,
    hold_run,
)
from tests.lab.pairs.schedule import Actor
from tests.lab.pairs.servers import Server

__all__ = [
    "ATOMIC",
    "OPERATIONS",
    "QUEUE_SCENES",
    "SCENES",
    "SECOND",
    "find_broken_order",
    "list_kinds",
    "prepare",
]

EXCLUSIVE = ("queued", "queued-durable", "refusing")
"""The kinds of which two runs of one session never work at the same time."""

WAITING = ("queued", "queued-durable")
"""The kinds whose runs wait for their turn."""

FULL = (*WAITING, "agent", "durable")
"""The kinds of the scenes in which a run waits for a slot."""


async def start_in_background(place: Place, server: Server) -> None:
    await place.start_run(server, background=True)


async def cancel_earlier(place: Place, server: Server) -> None:
    """Cancel the run before the one that waits."""
    found = [run for run in (await place.facts()).open_runs if run["parent_run_id"] is None]
    if not found:
        raise Skipped
    await cancel_run(place, server, found[0])


async def end_overdue(place: Place, server: Server) -> None:
    """Do what the sweep does with runs that have waited for too long."""
    waiting = [run for run in (await place.facts()).roots if _is_waiting(run)]
    if not waiting:
        raise Skipped
    database = server.database
    for run in waiting:
        await database.write(end_overdue_run(database.outbox, run["run_id"], now()))


async def advance(place: Place, server: Server) -> None:
    await server.service.hosting.engine.claims.advance_stalled(server.database)


async def stop(place: Place, server: Server) -> None:
    """End the server that has accepted the runs."""
    place.lost = True
    await place.servers[0].stop()


OPERATIONS: dict[str, Operation] = {
    **operations.OPERATIONS,
    "background": start_in_background,
    "cancel earlier": cancel_earlier,
    "overdue": end_overdue,
    "advance": advance,
    "stop": stop,
}

ATOMIC = (*operations.ATOMIC, "stop")


def _is_waiting(run: Row) -> bool:
    return run["status"] == "PENDING" and run["queue_turn"] is not None and not run["started_at"]


async def _wait_for_rows(place: Place, is_right: Callable[[Facts], bool]) -> None:
    async def has_come() -> bool:
        return is_right(await place.facts())

    await wait_until(has_come)


async def _call(place: Place) -> str:
    with contextlib.suppress(errors.AgentctlError):
        await place.start_run(place.servers[0])
    return "done"


async def _wait_behind(place: Place) -> None:
    """Let a client wait for a run that waits for the earlier ones of the session."""
    client = Actor("client")
    place.actors.append(client)
    place.clients.append(client.start(_call(place), place.servers[0]))
    place.callers.extend(place.clients)
    await _wait_for_rows(place, lambda facts: any(_is_waiting(run) for run in facts.roots))


async def _paused(place: Place) -> None:
    record = await place.start_run(place.servers[0])
    if record["status"] != "PAUSED":
        raise SceneFailed((await place.facts()).describe())


async def _behind(place: Place) -> None:
    await _paused(place)
    await _wait_behind(place)


async def _behind_ending(place: Place) -> None:
    """The earlier run is about to end."""
    await operations.SCENES["finishing"][0](place)
    place.callers.clear()
    await _wait_behind(place)


async def _turn(place: Place) -> None:
    """A run has its turn, and no server has claimed it yet."""
    await _behind(place)
    await _stop_claims(place)
    await cancel_earlier(place, place.servers[0])
    _serve(place)
    facts = await place.facts()
    if not _is_waiting(facts.roots[-1]) or facts.roots[-1]["queue_turn"] <= 0:
        raise SceneFailed(facts.describe())


async def _claimed(place: Place) -> None:
    await _turn(place)
    callers = [*place.callers]
    await hold_run(place, Actor("run", stop_after="claim_leg"), claim(place, place.servers[0]))
    place.callers = callers


async def _retried(place: Place) -> None:
    """A run has ended, and a later one is paused."""
    await _paused(place)
    await cancel(place, place.servers[0])
    await _paused(place)


async def _full(place: Place) -> None:
    """The run of another session has the only slot of a server."""
    server = place.servers[0]
    server.limit_slots(1)
    request = RunRequest("slot", session_id=f"{place.session_id}-slot")
    work = server.user("another").runs.create("agent", "echo", request)
    await hold_run(place, Actor("run", stop_before="_write_end"), work)
    place.callers.clear()


async def _for_slot(place: Place) -> None:
    await _full(place)
    await place.start_run(place.servers[0], background=True)


def _serve(place: Place, *, serving: bool = True) -> None:
    for server in place.servers:
        if server.alive:
            server.service.hosting.engine.claims.is_serving = serving


async def _stop_claims(place: Place) -> None:
    """Let the servers claim nothing more, and wait for the claims that have begun."""
    _serve(place, serving=False)
    claims = [server.service.hosting.engine.claims for server in place.servers if server.alive]

    async def has_ended() -> bool:
        return not any(each._passes or each._claiming for each in claims)

    await wait_until(has_ended)


_ENDS = ("cancel", "cancel earlier", "delete", "erase", "kill", "stop", "recover")

QUEUE_SCENES = {
    "queueing": (_paused, ("start", "background"), WAITING,
                 ("leave", "approve", "reject", "expire", "start", "hand over", "lose", "advance",
                  "overdue", *_ENDS)),
    "behind": (_behind,
               ("cancel", "cancel earlier", "approve", "reject", "delete", "erase", "start",
                "overdue"), WAITING,
               ("leave", "approve", "reject", "expire", "start", "lose", "advance", "overdue",
                "claim", "hold", "retry", *_ENDS)),
    "behind an end": (_behind_ending,
                      ("cancel", "cancel earlier", "delete", "erase", "recover", "start",
                       "background", "overdue"), WAITING,
                      ("run", "leave", "start", "claim", "hand over", "advance", "overdue",
                       *_ENDS)),
    "turn": (_turn, ("claim", "cancel", "delete", "erase", "overdue", "start"), WAITING,
             ("claim", "leave", "start", "lose", "advance", "overdue", "retry", *_ENDS)),
    "begun": (_claimed, ("cancel", "delete", "erase", "recover", "start", "retry"), WAITING,
              ("run", "leave", "start", "hand over", "lose", "claim", *_ENDS)),
    "busy again": (_retried, ("retry", "fork"), EXCLUSIVE,
                   ("approve", "start", "retry", "fork", "advance", *_ENDS)),
    "full": (_full, ("background", "start"), FULL,
             ("run", "leave", "background", "claim", "advance", *_ENDS)),
    "for a slot": (_for_slot,
                   ("cancel", "delete", "erase", "overdue", "claim", "background"), FULL,
                   ("run", "background", "claim", "advance", "overdue", "lose", *_ENDS)),
}  # fmt: skip
"""The state of the runs, the first operations, the kinds of the runs, and the second operations."""

SCENES = {
    **operations.SCENES,
    **{name: (scene, firsts) for name, (scene, firsts, *_) in QUEUE_SCENES.items()},
}

SECOND = {**operations.SECOND, **{name: seconds for name, (*_, seconds) in QUEUE_SCENES.items()}}


def list_kinds(scene: str, kinds: list[str]) -> list[str]:
    """Return those of some kinds to which a scene applies."""
    return (
        kinds
        if scene not in QUEUE_SCENES
        else [kind for kind in kinds if kind in QUEUE_SCENES[scene][2]]
    )


def prepare(place: Place, scene: str) -> None:
    """Let the servers claim what has its turn, if runs of the schedule may wait."""
    _serve(place, serving=scene in QUEUE_SCENES or place.kind in EXCLUSIVE)
    for server in place.servers:
        server.limit_slots()


def _read_calls(place: Place) -> list[tuple[int, bool]]:
    """Return the amount of the run of each model call, and True for the first call of a run."""
    found = []
    for request in place.endpoint.requests("tool:pay"):
        messages = request["messages"]
        text = next(each["content"] for each in reversed(messages) if each["role"] == "user")
        amount = int(json.loads(text)["amount"]) if str(text).startswith("{") else None
        if amount in place.started:
            found.append((amount, messages[-1]["role"] == "user"))
    return found


def find_broken_order(place: Place, facts: Facts) -> list[str]:
    """Return what the model calls of a session break: a run begins once, in order, and alone."""
    found = []
    calls = _read_calls(place)
    rows = Counter(run["amount"] for run in facts.roots)
    begins = Counter(amount for amount, is_first in calls if is_first)
    for run in facts.roots:
        amount = run["amount"]
        name = f"run of {run['amount']} {run['status']}"
        if run["started_at"] is None and begins[amount] and rows[amount] == 1:
            found.append(f"{name}: has not begun, but called its model")
        ends = ("CANCELLED", "ERROR") if place.lost else ("CANCELLED",)
        if amount in place.left and run["status"] not in ends:
            found.append(f"{name}: its client left while it waited")
    if place.lost:
        # The work of a lost server may be repeated, and one that is not dead goes on for a while.
        return found
    for amount, count in begins.items():
        if count > max(rows[amount], 1 + place.repeats * place.deleted):
            found.append(f"run of {amount}: began {count} times")
    if place.kind in EXCLUSIVE:
        order = [amount for amount, _ in groupby(amount for amount, _ in calls)]
        wanted = [run["amount"] for run in facts.roots]
        is_alone = len(order) <= len(set(order)) + place.repeats
        if not is_alone or not _is_part([each for each in order if each in wanted], wanted):
            found.append(f"the runs are in the order {wanted}, their calls {order}")
    return found


def _is_part(part: list[int], whole: list[int]) -> bool:
    left = iter(whole)
    return all(each in left for each in part)
