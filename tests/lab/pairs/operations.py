"""The scenes, in which a run is in some state, and the operations on it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from agentctl import errors
from agentctl.interface.requests import CancelRequest, ForkRequest, RetryRequest, RunRequest
from agentctl.interface.requests.administration import Erasure
from agentctl.interface.requests.approvals import Ruling
from agentctl.interface.requests.files import FileContent, FileUpload
from agentctl.records.kinds import ComponentKind
from agentctl.runs.desk.decisions import expire_approvals, write_decisions
from agentctl.runs.states import Ending, is_final
from agentctl.runs.workers.recovery import recover_runs
from agentctl.store.database import Sql
from agentctl.store.repositories import workers
from agentctl.store.repositories.approvals import DecisionChange
from tests.kit.model import ModelEndpoint
from tests.lab.pairs.judge import Facts, Row, read_facts
from tests.lab.pairs.schedule import Actor
from tests.lab.pairs.servers import KINDS, Server

__all__ = ["OPERATIONS", "SCENES", "Place", "SceneFailed", "Skipped"]

WAIT = 0.05
"""Seconds that a cancel waits for the end of the run."""

_numbers = itertools.count(1)

_EXPIRE = Sql(
    "UPDATE approvals SET expires_at = 1 WHERE session_id = :session_id AND status = 'pending'"
)


class Skipped(Exception):
    """The operation does not apply to the stored rows."""


class SceneFailed(Exception):
    """The run of a scene was disturbed by what an earlier schedule has left."""


@dataclass
class Place:
    """The session of one schedule.

    Attributes:
        servers: the one that starts the run, and another one.
        endpoint: the model endpoint, which has the calls that were really made.
        run: the actor that executes the run of the scene, if it is held.
        granted: the decisions that allowed a call.
        accepted: the decisions of people that were accepted.
        deleted: True if a deletion was requested: rows may be gone, and the session begun again.
        lost: True if a server was killed, declared dead, stopped, or lost its connections.
        callers: the tasks of clients that wait.
        clients: those of them that wait for a run in the queue, in its scene.
        started: the task of each start, by the amount that its run pays.
        left: the amounts of the runs that waited in the queue when their clients left.
        repeats: the number of requests for a retry or a fork.
    """

    kind: str
    servers: tuple[Server, Server]
    endpoint: ModelEndpoint
    watch: Any = None
    session_id: str = ""
    run: Actor | None = None
    granted: int = 0
    accepted: int = 0
    deleted: bool = False
    lost: bool = False
    callers: list[asyncio.Task[Any]] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    clients: list[asyncio.Task[str]] = field(default_factory=list)
    started: dict[int, asyncio.Task[Any] | None] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    repeats: int = 0

    def __post_init__(self) -> None:
        self.session_id = f"s{next(_numbers)}"

    @property
    def user(self) -> str:
        return f"user-of-{self.session_id}"

    @property
    def component(self) -> tuple[ComponentKind, str]:
        return KINDS[self.kind]

    @property
    def other(self) -> Server:
        """A server that works."""
        return next(server for server in reversed(self.servers) if server.alive)

    async def facts(self) -> Facts:
        return await read_facts(self.other.database, self.session_id)

    async def start_run(self, server: Server, *, background: bool = False) -> dict[str, Any]:
        request = RunRequest(self.next_message(), session_id=self.session_id, background=background)
        operations = server.user(self.user)
        return dict((await operations.runs.create(*self.component, request)).value)

    def next_message(self) -> str:
        """Return a message with an amount that no other run pays."""
        amount = next(_numbers)
        self.started[amount] = asyncio.current_task()
        return f'{{"amount": {amount}}}'

    async def find_root(self) -> Row:
        """Return the newest root run."""
        roots = (await self.facts()).roots
        if not roots:
            raise Skipped
        return roots[-1]

    async def decide_row(self, server: Server, row: Row, verb: Any, **fields: Any) -> None:
        request = Ruling(verb, arguments_hash=row["arguments_hash"], **fields)
        place = row["component_type"], row["component_id"], row["approval_id"]
        # A response that is lost may have been a decision.
        grants = verb in ("approve", "retry")
        self.granted += grants
        try:
            await server.boss.approvals.decide(*place, request)
        except (errors.Conflict, errors.NotFound):
            self.granted -= grants
            raise
        self.accepted += 1

    async def decide(self, server: Server, verb: Any, **fields: Any) -> None:
        kinds = {"answer": "input", "reject": None}
        wanted = kinds.get(verb, "approval")
        rows = [row for row in (await self.facts()).pending if wanted in (None, row["kind"])]
        rows = [row for row in rows if row["kind"] != "outcome"]
        if not rows:
            raise Skipped
        for row in rows:
            await self.decide_row(server, row, verb, **fields)


async def start(place: Place, server: Server) -> None:
    await place.start_run(server)


async def approve(place: Place, server: Server) -> None:
    await place.decide(server, "approve")


async def edit(place: Place, server: Server) -> None:
    await place.decide(server, "approve", arguments={"amount": 2})


async def reject(place: Place, server: Server) -> None:
    await place.decide(server, "reject")


async def answer(place: Place, server: Server) -> None:
    await place.decide(server, "answer", answer="that one")


async def expire(place: Place, server: Server) -> None:
    if not (await place.facts()).pending:
        raise Skipped
    await server.database.write(_EXPIRE.execute(session_id=place.session_id))
    await expire_approvals(server.database)


async def claim(place: Place, server: Server) -> None:
    if not any(run["status"] == "PENDING" for run in (await place.facts()).roots):
        raise Skipped
    await server.service.hosting.engine.claims.claim_waiting(server.database)


async def cancel_run(place: Place, server: Server, run: Row) -> None:
    kind: Any = place.component[0]
    if run["parent_run_id"] is not None:
        kind = "agent"
    request = CancelRequest(place.session_id, WAIT, "the test")
    answered = await server.user(place.user).runs.cancel(
        kind, run["component_id"], run["run_id"], request
    )
    if answered.value["cancel"] == "stopped":
        after = {row["run_id"]: row for row in (await place.facts()).runs}
        status = after.get(run["run_id"], {"status": "CANCELLED"})["status"]
        assert status == "CANCELLED", f"stopped, but {status}"


async def cancel(place: Place, server: Server) -> None:
    await cancel_run(place, server, await place.find_root())


async def cancel_member(place: Place, server: Server) -> None:
    facts = await place.facts()
    members = [run for run in facts.open_runs if run["parent_run_id"] is not None]
    if not members:
        raise Skipped
    await cancel_run(place, server, members[-1])


async def delete(place: Place, server: Server) -> None:
    await place.find_root()
    place.deleted = True
    await server.user(place.user).sessions.delete(place.session_id, cancel=True)


async def erase(place: Place, server: Server) -> None:
    await place.find_root()
    place.deleted = True
    erasure = Erasure(place.user, cancel=True, vacuum="never")
    await server.boss.users.erase(erasure)


async def upload(place: Place, server: Server) -> None:
    """Store a file in the session, whose row never outlives it."""
    await place.find_root()
    file = FileUpload("a.txt", place.session_id)
    content = FileContent(b"text")
    await server.user(place.user).files.upload(file, content, size=content.size)


async def hold(place: Place, server: Server) -> None:
    await place.find_root()
    await server.boss.sessions.hold(place.session_id, "a reason")


async def hand_over(place: Place, server: Server) -> None:
    """Do what the end of a server does with its runs: durable ones go on elsewhere."""
    ending = Ending.cancelled("system:shutdown", "The server is shutting down")
    found = False
    for each in place.servers:
        for run in each.service.hosting.engine.root_runs() if each.alive else ():
            if run.spec.session_id == place.session_id:
                found = True
                run.stop(ending) if run.journal is None else run.hand_over(ending)
    if not found:
        raise Skipped
    place.lost = True


async def recover(place: Place, server: Server) -> None:
    """Declare the worker of the run dead, whether it is or not."""
    owners = {run["owner"] for run in (await place.facts()).open_runs} - {None}
    if not owners:
        raise Skipped
    place.lost = True
    for owner in owners:
        await recover_runs(server.database, owner, may_still_run=True)
        await server.database.write(workers.remove(owner))


async def find_ended(place: Place) -> Row:
    ended = [run for run in (await place.facts()).roots if is_final(run["status"])]
    if not ended:
        raise Skipped
    return ended[-1]


async def retry(place: Place, server: Server) -> None:
    run = await find_ended(place)
    await repeat(place, server, run, RetryRequest(background=True))


async def fork(place: Place, server: Server) -> None:
    run = await find_ended(place)
    # A workflow is forked after a step, and another component after a message.
    message = None if place.component[0] == "workflow" else place.next_message()
    request = ForkRequest(at=0, background=True, message=message, session_id=place.session_id)
    await repeat(place, server, run, request)


async def repeat(place: Place, server: Server, run: Row, request: RetryRequest) -> None:
    place.repeats += 1
    operations = server.user(place.user)
    send: Any = operations.runs.fork if isinstance(request, ForkRequest) else operations.runs.retry
    target = (*place.component, run["run_id"])
    try:
        await send(*target, request)
    except errors.NeedsConfirmation as refused:
        from dataclasses import replace

        await send(*target, replace(request, confirm=str(refused.plan["confirm"])))


async def kill(place: Place, server: Server) -> None:
    """Kill the server that executes the run."""
    place.lost = True
    killed = place.servers[0]
    for actor in place.actors:
        actor.open(killed=actor.server is killed)
    await killed.kill()


async def lose(place: Place, server: Server) -> None:
    """End the connections of the server that executes the run, on the side of PostgreSQL."""
    if place.watch is None:
        raise Skipped
    place.lost = True
    await place.servers[0].lose_connections(place.watch)


async def leave(place: Place, server: Server) -> None:
    """Close the client that waits for the response."""
    facts = await place.facts()
    waiting = [task for task in place.callers if not task.done()]
    if not waiting:
        raise Skipped
    begun = {run["amount"] for run in facts.roots if run["started_at"] is not None}
    place.left |= {n for n, task in place.started.items() if task in waiting} - begun
    for task in waiting:
        task.cancel()


async def go_on(place: Place, server: Server) -> None:
    """Let the run of the scene go on to its pause or end."""
    if place.run is None:
        raise Skipped
    place.run.open()
    await wait_for(place.run)


async def wait_for(actor: Actor) -> None:
    """Wait until the tasks of an actor have ended."""
    while left := [task for task in actor.tasks if not task.done()]:
        await asyncio.wait(left)


Operation = Callable[[Place, Server], Awaitable[None]]

OPERATIONS: dict[str, Operation] = {
    "start": start,
    "run": go_on,
    "approve": approve,
    "edit": edit,
    "reject": reject,
    "answer": answer,
    "expire": expire,
    "claim": claim,
    "cancel": cancel,
    "cancel member": cancel_member,
    "delete": delete,
    "erase": erase,
    "upload": upload,
    "hold": hold,
    "hand over": hand_over,
    "recover": recover,
    "retry": retry,
    "fork": fork,
    "kill": kill,
    "lose": lose,
    "leave": leave,
}

ATOMIC = ("kill", "lose", "leave", "run")
"""Operations that are not stopped: they are one step, or the run itself."""


async def _paused(place: Place) -> None:
    record = await place.start_run(place.servers[0])
    if record["status"] != "PAUSED":
        raise SceneFailed((await place.facts()).describe())


async def _decided(place: Place) -> None:
    await _paused(place)
    facts = await place.facts()
    database = place.servers[1].database
    (row,) = facts.pending
    status, answer = ("answered", '"x"') if row["kind"] == "input" else ("approved", None)
    change = DecisionChange(status, 5, "boss", answer=answer)
    place.granted += 1
    place.accepted += 1
    changes = [(row["approval_id"], change)]
    await database.write(write_decisions(database.outbox, row["root_run_id"], changes))


async def hold_run(place: Place, actor: Actor, work: Any) -> None:
    """Execute the run until its actor is held."""
    place.run = actor
    place.actors.append(actor)
    main = actor.start(work, place.servers[0])
    place.callers.append(main)
    reached = asyncio.create_task(actor.reached.wait())
    while not reached.done():
        left = [task for task in actor.tasks if not task.done()]
        if not left:
            reached.cancel()
            raise Skipped
        await asyncio.wait([reached, *left], return_when=asyncio.FIRST_COMPLETED)


async def _first_leg(place: Place, **stop: Any) -> None:
    await hold_run(place, Actor("run", **stop), place.start_run(place.servers[0]))


async def _next_leg(place: Place, **stop: Any) -> None:
    await _decided(place)
    await hold_run(place, Actor("run", **stop), claim(place, place.servers[0]))


async def _lost(place: Place) -> None:
    await _next_leg(place, stop_after="_begin_call")
    await kill(place, place.servers[0])


async def _ended(place: Place) -> None:
    await _decided(place)
    actor = Actor("run")
    actor.start(claim(place, place.servers[0]), place.servers[0])
    await wait_for(actor)


async def _new(place: Place) -> None:
    pass


SCENES: dict[str, tuple[Callable[[Place], Awaitable[None]], tuple[str, ...]]] = {
    "new": (_new, ("start",)),
    "pausing": (
        lambda place: _first_leg(place, stop_before="write_pause"),
        ("cancel", "cancel member", "delete", "erase", "recover", "start", "hold"),
    ),
    "parent pausing": (
        lambda place: _first_leg(place, stop_before="write_pause", occurrence=2),
        ("cancel", "cancel member", "delete", "approve", "expire", "recover"),
    ),
    "paused": (
        _paused,
        (
            "approve",
            "edit",
            "reject",
            "answer",
            "expire",
            "cancel",
            "cancel member",
            "delete",
            "erase",
            "hold",
            "start",
            "upload",
        ),
    ),
    "decided": (_decided, ("claim", "cancel", "cancel member", "delete", "erase", "start")),
    "claimed": (
        lambda place: _next_leg(place, stop_after="claim_leg"),
        ("cancel", "cancel member", "delete", "recover"),
    ),
    "claiming member": (
        lambda place: _next_leg(place, stop_before="claim_member"),
        ("cancel", "cancel member", "delete", "recover"),
    ),
    "member claimed": (
        lambda place: _next_leg(place, stop_after="claim_member"),
        ("cancel", "cancel member", "delete", "recover"),
    ),
    "calling": (
        lambda place: _next_leg(place, stop_before="_begin_call"),
        ("cancel", "cancel member", "delete", "erase", "recover", "hold"),
    ),
    "called": (
        lambda place: _next_leg(place, stop_after="_begin_call"),
        ("cancel", "cancel member", "delete", "recover"),
    ),
    "finishing": (
        lambda place: _next_leg(place, stop_before="_write_end"),
        ("cancel", "cancel member", "delete", "erase", "recover", "start"),
    ),
    "lost": (_lost, ("recover", "cancel", "cancel member", "delete", "erase")),
    "ended": (_ended, ("retry", "fork", "delete", "erase", "hold", "cancel")),
}
"""The state of the run when the two operations begin, and the first operations."""

SECOND = {
    "new": ("cancel", "cancel member", "delete", "erase", "hold", "recover", "start", "approve",
            "hand over", "kill", "lose", "leave", "expire", "reject"),
    "pausing": ("run", "cancel", "delete", "recover", "kill", "lose", "leave", "hand over"),
    "parent pausing": ("run", "cancel", "approve", "reject", "kill", "recover"),
    "paused": ("approve", "edit", "reject", "answer", "expire", "cancel", "cancel member", "delete",
               "erase", "hold", "recover", "kill", "lose", "hand over", "start"),
    "decided": ("claim", "cancel", "cancel member", "delete", "erase", "recover", "kill", "lose",
                "hand over", "start"),
    "claimed": ("run", "cancel", "recover", "kill", "lose", "hand over"),
    "claiming member": ("run", "cancel", "recover", "kill", "lose", "hand over"),
    "member claimed": ("run", "cancel", "recover", "kill", "lose", "hand over"),
    "calling": ("run", "cancel", "cancel member", "delete", "recover", "kill", "lose",
                "hand over"),
    "called": ("run", "cancel", "recover", "kill", "lose", "hand over"),
    "finishing": ("run", "cancel", "delete", "recover", "kill", "lose", "hand over"),
    "lost": ("recover", "cancel", "delete", "erase", "claim"),
    "ended": ("retry", "fork", "delete", "erase", "hold", "start"),
}  # fmt: skip
"""The second operations of each scene."""

__all__ += ["ATOMIC", "SECOND", "Operation", "cancel_run", "hold_run", "wait_for"]
