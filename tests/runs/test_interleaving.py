"""Concurrent changes on PostgreSQL: rows and results equal those of a serial order.

Each pair is tried with the first change paused after each of its statements. With
AGENTCTL_TEST_LONG=1 all combinations are tried, and pairs with both changes paused.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from agentctl.config.quotas import Quotas
from agentctl.config.settings import Agent, Approvals
from agentctl.config.settings import Database as Entry
from agentctl.interface.requests import BulkDeletion, NewSession, SessionPatch
from agentctl.records.approvals import ApprovalRow
from agentctl.records.runs import NewRun, RunPause
from agentctl.runs.desk.decisions import write_decisions
from agentctl.runs.engine.cancel import _request_cancel
from agentctl.runs.life.admission import Idempotency, IdempotentReplay, Submission, admit_run
from agentctl.runs.life.finish import store_end
from agentctl.runs.life.legs import build_approval, claim_leg, prepare_pause, write_pause
from agentctl.runs.life.live import LiveRun, RunServices, _begin_call
from agentctl.runs.life.run_files import RunFiles
from agentctl.runs.log.stream import StreamRecorder
from agentctl.runs.states import Ending, Pause
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.component import Component
from agentctl.runtime.failures import CauseReader
from agentctl.runtime.pauses import Ask
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.service.service import Service
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.repositories import accounts, approvals, events, runs, sessions
from agentctl.store.repositories.accounts import AccountRow
from agentctl.store.repositories.approvals import Checkpoint, DecisionChange
from agentctl.store.repositories.integrity import check_page
from agentctl.store.visibility import Visibility
from tests.kit.postgres import ConnectedTo
from tests.kit.rows import a_run, a_session
from tests.kit.run_specs import a_spec
from tests.kit.service import user
from tests.runs.components import LONG, build_settings
from tests.runs.interleaving import Change, together, undone

__all__ = ["undone"]

MOST = 50
"""More statements than any change has."""

_CHANGING = re.compile(
    r"\d{10,}|\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)

_TABLES = {
    "sessions": "session_id",
    "runs": "run_id",
    "run_events": "run_id",
    "idempotency": "run_id",
    "approvals": "approval_id",
    "run_checkpoints": "run_id",
    "service_accounts": "name",
}


class NoMembers:
    """The starter of members; no run here has any."""

    async def run(self, *_: Any) -> Any:
        raise AssertionError

    def report(self, *_: Any) -> Any:
        raise AssertionError

    async def continue_reported(self, *_: Any) -> Any:
        raise AssertionError


class Scene:
    """Sessions of the user ann.

    Session s has the running run `live` and the pending run `next`; t and u are empty; v has the
    pending run `late`, and `lead` with the member's run `led`; w has the run `wait`, which is
    paused for one approval, and `goes`, whose approved call no process has claimed yet; x has the
    run `soon`, which its worker has accepted and not begun. All ids end with the number of the
    scene.
    """

    def __init__(self, service: Service, number: int) -> None:
        self.service = service
        self.end = f"-{number:05}"
        self.database: Database = service.hosting.databases["main"]
        self.operations = user(service, "ann")

    def id(self, name: str) -> str:
        return name + self.end

    @unit
    def prepared(self) -> Steps[None]:
        for name in ("s", "t", "u", "v"):
            yield from sessions.create(a_session(self.id(name)))
        yield from runs.create(self.row("live", owner=self.id("worker")))
        yield from runs.create(self.row("next", owner=self.id("waiter")))
        yield from runs.claim(self.id("live"), 1, self.id("worker"), 1)
        yield from events.append_batch(self.id("live"), 1, 0, 0, "RunStarted {}\n")
        yield from runs.create(self.row("lead", "v"))
        yield from runs.create(self.row("late", "v"))
        yield from runs.create(self.row("led", "v", parent_run_id=self.id("lead")))
        yield from sessions.create(a_session(self.id("x")))
        yield from runs.create(self.row("soon", "x", owner=self.id("waiter")))
        yield from sessions.create(a_session(self.id("w")))
        for name in ("wait", "goes"):
            yield from runs.create(self.row(name, "w", owner=self.id("worker")))
            yield from runs.claim(self.id(name), 1, self.id("worker"), 1)
            yield from approvals.create([self.asked(name)])
            yield from approvals.keep_checkpoint(self.checkpoint(name))
            yield from runs.pause(self.paused(name))
        approve = DecisionChange("approved", 5, "boss")
        yield from write_decisions(
            self.database.outbox, self.id("goes"), [(self.id("ask-goes"), approve)]
        )

    def row(self, name: str, session: str = "s", **given: Any) -> NewRun:
        return a_run(self.id(name), self.id(session), component_id="quick", **given)

    def _live(self, name: str, session: str) -> LiveRun:
        return LiveRun(
            a_spec(self.id(name), self.id(session), component_id="quick"),
            self._component("quick"),
            RunServices(
                databases=self.service.hosting.databases,
                limits=self.service.settings.limits,
                members=NoMembers(),
                cause_reader=CauseReader(self.service.settings),
                gate=self.service.hosting.gate,
                open_files=lambda run: RunFiles(run, self.service.hosting.uploads, Quotas()),
            ),
        )

    def asked(self, name: str) -> ApprovalRow:
        run = self._live(name, "w")
        row = build_approval(run, Ask("approval", "c", "pay"), 3, Approvals())
        return replace(row, approval_id=self.id(f"ask-{name}"), arguments_hash="h", expires_at=9)

    def checkpoint(self, name: str) -> Checkpoint:
        spec = a_spec(self.id(name), self.id("w"), component_id="quick")
        body = {
            "spec": spec.to_json(),
            "transcript": Transcript().to_json(),
            "state": None,
            "component_name": "quick",
            "is_first": False,
            "earlier_runs": [],
            "summary": None,
            "previous_instructions": None,
        }
        return Checkpoint(self.id(name), 1, "pause", orjson.dumps(body).decode())

    def paused(self, name: str) -> RunPause:
        return RunPause(self.id(name), 1, "PAUSED", 4, "", "[]", "[]", "{}", "[]")

    async def decide(self, status: str, at: int = 5) -> None:
        change = DecisionChange(status, at, "boss")
        decisions = [(self.id("ask-wait"), change)]
        await self.database.write(write_decisions(self.database.outbox, self.id("wait"), decisions))

    @unit
    def pause_live(self) -> Steps[str]:
        run = self._live("live", "s")
        run.transcript.add_user("hello")
        prepared = prepare_pause(run, Pause([Ask("approval", "c", "pay")]), Approvals(), (0, 0))
        (row,) = prepared.rows
        row = replace(row, approval_id=self.id("ask-live"), arguments_hash="h")
        return (yield from write_pause(run, replace(prepared, rows=[row])))

    async def cancel_waiting(self, name: str) -> str:
        canceller = self.service.hosting.canceller
        result = await canceller.cancel(
            self.database, self.id(name), actor="ann", reason=None, wait=0.0
        )
        return result.outcome

    async def claim(self, worker: str) -> bool:
        claimed = await self.database.write(claim_leg(self.id("goes"), self.id(worker), None))
        return claimed is not None

    async def begin_call(self) -> bool:
        run_id = self.id("goes")
        return await self.database.write(_begin_call(run_id, run_id, 2, self.id("ask-goes"), 7))

    def _component(self, component_id: str) -> Component:
        component = self.service.hosting.catalog.get("agent", component_id)
        assert component is not None
        return component

    async def admit(
        self, name: str, component_id: str = "quick", *, session: str = "s", key: str | None = None
    ) -> None:
        spec = a_spec(
            self.id(name),
            self.id(session),
            component_id=component_id,
            background=True,
            recorded=True,
            survives_disconnect=True,
        )
        submission = Submission(
            spec,
            self._component(component_id),
            Visibility(False, "ann"),
            outlives_caller=True,
            idempotency=None if key is None else Idempotency("ann", self.id(key), "hash"),
        )
        catalog = self.service.hosting.catalog
        await self.database.write(admit_run(submission, catalog, self.id("worker")))

    async def end_live(self, ending: Ending) -> Ending:
        spec = a_spec(self.id("live"), self.id("s"), component_id="quick", recorded=True)
        run = LiveRun(
            spec,
            self._component("quick"),
            RunServices(
                databases=self.service.hosting.databases,
                limits=self.service.settings.limits,
                members=NoMembers(),
                cause_reader=CauseReader(self.service.settings),
                gate=self.service.hosting.gate,
                open_files=lambda run: RunFiles(run, self.service.hosting.uploads, Quotas()),
            ),
        )
        run.stream_recorder = StreamRecorder(run.stream, self.database)
        run.transcript.add_user("hello")
        return await store_end(run, ending, lambda late: None, lambda: None, lambda: None)

    async def delete(self, *names: str) -> None:
        await self.operations.sessions.delete_several(BulkDeletion(tuple(map(self.id, names))))

    async def hand_over(self) -> None:
        """Delete a session of ann and create one of bob with the same id."""
        await self.operations.sessions.delete(self.id("t"))
        bob = user(self.service, "bob")
        await bob.sessions.create(NewSession(type="team", session_id=self.id("t")))

    async def make_account(self, name: str) -> bool:
        row = AccountRow(
            self.id(name), self.id("ci"), self.id(name), "", "[]", None, 5, None, None, None
        )
        return await self.database.write(accounts.create(row))

    async def left(self, watch: asyncpg.Connection[Any]) -> list[str]:
        """Return every row of the scene without the times and numbers that differ each time."""
        found = []
        for table, column in _TABLES.items():
            rows = await watch.fetch(
                f"SELECT * FROM {table} WHERE {column} LIKE $1 ORDER BY 1, 2, 3", f"%{self.end}"
            )
            found += [self.told(f"{table} {list(row)}") for row in rows]
        return found

    def told(self, text: str) -> str:
        return _CHANGING.sub("#", text.replace(self.end, ""))


def written(unit: Callable[[Scene], Work[Any]]) -> Callable[[Scene], Change]:
    return lambda scene: lambda: scene.database.write(unit(scene))


def asked(ask: Callable[[Scene], Awaitable[Any]]) -> Callable[[Scene], Change]:
    return lambda scene: lambda: ask(scene)


CHANGES: dict[str, Callable[[Scene], Change]] = {
    "admit": asked(lambda s: s.admit("new")),
    "admit idle": asked(lambda s: s.admit("new", session="t")),
    "admit sole": asked(lambda s: s.admit("new", "sole", session="t")),
    "admit sole too": asked(lambda s: s.admit("newer", "sole", session="t")),
    "admit unseen": asked(lambda s: s.admit("new", session="none")),
    "request": asked(lambda s: s.admit("new", session="t", key="k")),
    "request again": asked(lambda s: s.admit("newer", session="t", key="k")),
    "admit late": asked(lambda s: s.admit("new", session="v")),
    "start late": written(lambda s: runs.claim(s.id("late"), 1, s.id("waiter"), 2)),
    "member": written(lambda s: runs.create(s.row("member", parent_run_id=s.id("live")))),
    "start": written(lambda s: runs.claim(s.id("next"), 1, s.id("waiter"), 2)),
    "end": asked(lambda s: s.end_live(Ending.completed())),
    "stop": asked(lambda s: s.end_live(Ending.cancelled("ann", "enough"))),
    "record": written(lambda s: events.append_batch(s.id("live"), 1, 1, 1, "RunContent {}\n")),
    "cancel": written(lambda s: runs.request_cancel(s.id("live"), 7, "bob", "no need")),
    "cancel live": written(
        lambda s: _request_cancel(s.database.outbox, s.id("live"), "ann", None, None)
    ),
    "queue": asked(lambda s: s.admit("new", "queued", session="x")),
    "start soon": written(lambda s: runs.claim(s.id("soon"), 1, s.id("waiter"), 2)),
    "cancel soon": written(
        lambda s: _request_cancel(s.database.outbox, s.id("soon"), "ann", None, None)
    ),
    "delete soon": asked(lambda s: s.operations.sessions.delete(s.id("x"))),
    "pause": written(lambda s: s.pause_live()),
    "cancel next": written(
        lambda s: _request_cancel(s.database.outbox, s.id("next"), "bob", "no need", None)
    ),
    "recover": asked(lambda s: recover_runs(s.database, s.id("worker"))),
    "recover next": asked(lambda s: recover_runs(s.database, s.id("waiter"))),
    "delete": asked(lambda s: s.operations.sessions.delete(s.id("s"))),
    "delete idle": asked(lambda s: s.operations.sessions.delete(s.id("t"))),
    "hand over": asked(lambda s: s.hand_over()),
    "delete both": asked(lambda s: s.delete("t", "u")),
    "delete both turned": asked(lambda s: s.delete("u", "t")),
    "rename": asked(lambda s: s.operations.sessions.rename(s.id("t"), "another")),
    "change": asked(
        lambda s: s.operations.sessions.update(s.id("t"), SessionPatch({"metadata": {}}))
    ),
    "create": asked(lambda s: s.operations.sessions.create(NewSession(session_id=s.id("none")))),
    "approve": asked(lambda s: s.decide("approved")),
    "reject": asked(lambda s: s.decide("rejected")),
    "expire": asked(lambda s: s.decide("expired", 10)),
    "cancel waiting": asked(lambda s: s.cancel_waiting("wait")),
    "claim": asked(lambda s: s.claim("one")),
    "claim too": asked(lambda s: s.claim("two")),
    "begin call": asked(lambda s: s.begin_call()),
    "cancel going": asked(lambda s: s.cancel_waiting("goes")),
    "recover going": asked(lambda s: recover_runs(s.database, s.id("one"))),
    "account": asked(lambda s: s.make_account("a1")),
    "account too": asked(lambda s: s.make_account("a2")),
}
"""The changes of a scene."""

TWO = "hand over"
"""A change of two transactions. It is not paused: a change between them is no serial order."""

PAIRS = (
    ("admit sole", "admit sole too"),
    ("admit unseen", "create"),
    ("request", "request again"),
    ("admit idle", "delete idle"),
    ("admit idle", "hand over"),
    ("rename", "hand over"),
    ("rename", "change"),
    ("delete both", "delete both turned"),
    ("delete both", "rename"),
    ("admit", "start"),
    ("admit late", "start late"),
    ("admit", "cancel next"),
    ("member", "end"),
    ("end", "start"),
    ("end", "cancel"),
    ("stop", "cancel"),
    ("end", "delete"),
    ("queue", "cancel soon"),
    ("start soon", "cancel soon"),
    ("delete soon", "cancel soon"),
    ("pause", "cancel live"),
    ("pause", "recover"),
    ("recover", "record"),
    ("recover", "cancel"),
    ("recover", "end"),
    ("recover", "stop"),
    ("recover next", "start"),
    ("approve", "reject"),
    ("approve", "expire"),
    ("approve", "cancel waiting"),
    ("reject", "cancel waiting"),
    ("claim", "claim too"),
    ("claim", "cancel going"),
    ("claim", "begin call"),
    ("begin call", "cancel going"),
    ("claim", "recover going"),
    ("account", "account too"),
)
"""Pairs that a single writer serializes."""


@asynccontextmanager
async def opened(
    entry: Entry, folder: Path
) -> AsyncIterator[tuple[Service, asyncpg.Connection[Any]]]:
    """Open a service on a schema, and a connection to inspect it."""
    settings = build_settings(folder / "none.db")
    queued = Agent("queued", "echo", name="Queued", database="main", on_busy="enqueue")
    settings = replace(settings, databases=(entry,), agents=(*settings.agents, queued))
    async with ConnectedTo(entry) as watch, Service.open(settings, create=True) as service:
        await service.hosting.databases.open_all()
        yield service, watch


Outcome = tuple[list[str], list[str]]
"""The results of two changes in the order of their names, and the remaining rows."""


class Trials:
    """Tries pairs of changes, each time in a new scene."""

    def __init__(self, service: Service, watch: asyncpg.Connection[Any]) -> None:
        self._service = service
        self._watch = watch
        self._numbers = itertools.count()
        self._serial: dict[frozenset[str], list[Outcome]] = {}

    async def wrong(self, one: str, other: str) -> AsyncIterator[str]:
        """Yield every interleaving with a result that no serial order has."""
        pair = frozenset((one, other))
        if pair not in self._serial:
            orders = (one, other), (other, one)
            self._serial[pair] = [(await self._tried(*order, MOST, MOST))[0] for order in orders]
        stopped = LONG and (one, other) in both_ways(PAIRS) and other != TWO
        for later in (*range(1, 7), MOST) if stopped else (MOST,):
            for statements in range(MOST):
                outcome, more = await self._tried(one, other, statements, later)
                if outcome not in self._serial[pair]:
                    yield f"{one} at {statements}, {other} at {later}: {outcome}"
                if not more:
                    break

    async def _tried(
        self, one: str, other: str, statements: int, later: int
    ) -> tuple[Outcome, bool]:
        scene = Scene(self._service, next(self._numbers))
        await scene.database.write(scene.prepared())
        changes = CHANGES[one](scene), CHANGES[other](scene)
        told, more = await together(self._watch, *changes, statements, later)
        texts = [scene.told(text) for _, text in sorted(zip((one, other), told, strict=True))]
        return (texts, await scene.left(self._watch)), more


async def test_interleaved_changes_equal_some_serial_order(
    postgres_entry: Entry, tmp_path: Path, undone: list[str]
) -> None:
    wrong = list[str]()
    async with opened(postgres_entry, tmp_path) as (service, watch):
        trials = Trials(service, watch)
        for one, other in itertools.permutations(CHANGES, 2) if LONG else both_ways(PAIRS):
            if one == TWO:
                continue
            found = [each async for each in trials.wrong(one, other)]
            wrong += found + [f"{one}, {other}: {each}" for each in undone]
            undone.clear()
    assert not wrong, "\n".join(wrong)


async def test_sample_of_interleaved_changes_equals_some_serial_order(
    postgres_entry: Entry, tmp_path: Path, undone: list[str]
) -> None:
    wrong = list[str]()
    async with opened(postgres_entry, tmp_path) as (service, watch):
        trials = Trials(service, watch)
        for one, other in both_ways(PAIRS[:2]):
            wrong += [each async for each in trials.wrong(one, other)]
    assert not wrong + undone, "\n".join(wrong + undone)


def both_ways(pairs: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [order for pair in pairs for order in (pair, pair[::-1])]


async def test_one_of_a_hundred_concurrent_submissions_succeeds(
    postgres_entry: Entry, tmp_path: Path
) -> None:
    """Use more submissions than connections, with one key, one session and one name."""
    async with opened(postgres_entry, tmp_path) as (service, watch):
        scene = Scene(service, 0)
        keyed = [scene.admit(f"k{each}", session="k", key="k") for each in range(100)]
        alone = [scene.admit(f"a{each}", "sole", session="a") for each in range(50)]
        named = [scene.make_account(f"n{each}") for each in range(50)]
        told = [await asyncio.gather(*group, return_exceptions=True) for group in (keyed, alone)]
        counts = [Counter(type(each).__name__ for each in group) for group in told]
        assert counts == [{"NoneType": 1, "IdempotentReplay": 99}, {"NoneType": 1, "Conflict": 49}]
        assert sorted(await asyncio.gather(*named))[-2:] == [False, True]
        first = {str(each) for each in told[0] if isinstance(each, IdempotentReplay)}
        assert [row[0] for row in await watch.fetch("SELECT run_id FROM idempotency")] == [*first]
        assert (await scene.database.read(check_page("sessions", "", 100))).broken == {}
