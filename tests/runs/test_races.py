"""Races: of cancels against the ends of runs, of runs in one session, of starts and a verdict.

A few hundred of each kind; thousands with AGENTCTL_TEST_LONG=1 (CONTRIBUTING.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections import Counter, deque
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest

from agentctl import errors
from agentctl.operations import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.runs.recovery import recover_runs
from agentctl.runs.states import is_final
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import workers
from agentctl.store.repositories.runs import RunRow
from tests.loops import wait_until
from tests.runs.calls import check_cancel, check_numbers, is_end, named, said
from tests.runs.processes import Process, by_process
from tests.runs.stage import LONG, QUICK, never_awaited, stage, tidied
from tests.runs.witness import Witness
from tests.service.doors import user

__all__ = ["tidied"]

pytestmark = [pytest.mark.slow, never_awaited, pytest.mark.usefixtures("tidied")]

ROUNDS = 20 if LONG else 1
RACES = 500
"""In each round, which has a database of its own."""

AT_ONCE = 20

TOGETHER = 200 if LONG else 40
"""Runs in one session at the same time."""

SECONDS = 60.0


class Place(NamedTuple):
    """Two services on one file, and somebody who watches."""

    one: Service
    two: Service
    witness: Witness

    @property
    def ports(self) -> tuple[ServiceOperations, ServiceOperations]:
        return user(self.one), user(self.two)


@contextlib.asynccontextmanager
async def two_services(folder: Path) -> AsyncIterator[Place]:
    settings = stage(folder / "main.db")
    witness = Witness(folder / "main.db")
    try:
        async with Service.open(settings) as one, Service.open(settings) as two:
            await one.prepare()
            await two.prepare()
            yield Place(one, two, witness)
    finally:
        witness.close()


class Asking(NamedTuple):
    """A cancel that was answered.

    Attributes:
        before: the run as it was stored when the cancel was sent.
        at_once: whether it was seen to be final right behind an answer that it is not.
        own: whether the service was asked that works on it.
    """

    before: RunRow
    answer: dict[str, Any]
    at_once: bool
    own: bool


class Racing:
    """One round of races.

    Attributes:
        lap: about as long as a run takes here and now, in seconds.
    """

    def __init__(self, place: Place, random: Random) -> None:
        self.place = place
        self.random = random
        self.laps: deque[float] = deque([0.05], maxlen=50)
        self.seen: Counter[str] = Counter()
        self.answers: dict[str, list[Asking]] = {}
        self.told: dict[str, list[StreamEvent]] = {}

    @property
    def lap(self) -> float:
        return statistics.median(self.laps)

    async def race(self, number: int) -> None:
        """A run, and one or two who want it stopped at some moment of its life."""
        kind, component_id = self.random.choice((QUICK[0], *QUICK))
        request = RunRequest(
            f"run {number} is soon over", session_id=f"{kind}-{number % 4}", background=True
        )
        following: asyncio.Task[None] | None = None
        if self.random.random() < 0.3:
            run_id, following = await self.streamed(kind, component_id, request)
        else:
            port = self.place.ports[0]
            run_id = (await port.create_run(kind, component_id, request)).value["run_id"]
        self.answers[run_id] = []
        cancels = [self.cancel(run_id) for _ in range(self.random.choice((1, 1, 2)))]
        await asyncio.gather(*cancels)
        if following is not None:
            await following

    async def streamed(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> tuple[str, asyncio.Task[None]]:
        """Its id, known with its first event, and who follows it to its end."""
        events = self.place.ports[0].stream_run(kind, component_id, request)
        first = await anext(aiter(events))
        run_id: str = said(first)["run_id"]
        told = self.told[run_id] = [first]

        async def follow() -> None:
            async for event in events:
                told.append(event)

        return run_id, asyncio.create_task(follow())

    async def cancel(self, run_id: str) -> None:
        await asyncio.sleep(self.random.uniform(-0.2, 1.3) * self.lap)
        own = self.random.random() < 0.5
        wait = self.random.choice((0.0, 0.01, 5.0))
        before = self.place.witness.run(run_id)
        assert before is not None
        request = CancelRequest(before.session_id, wait, "raced")
        port = self.place.ports[0 if own else 1]
        answer = (await port.cancel_run(*named(before), run_id, request)).value
        behind = self.place.witness.run(run_id)
        assert behind is not None
        at_once = answer["cancel"] == "requested" and is_final(behind.status)
        assert not (at_once and wait == 5.0), "it was waited for, and yet its end not told"
        self.answers[run_id].append(Asking(before, dict(answer), at_once, own))

    def judge(self) -> None:
        """Hold every answer against the row."""
        for run_id, asked in self.answers.items():
            run = self.place.witness.final[run_id]
            for asking in asked:
                check_cancel(asking.answer, asking.before, run)
                self.count(asking, run)
            outcomes = {asking.answer["cancel"] for asking in asked}
            if run.status != "CANCELLED":
                assert "stopped" not in outcomes, (run, asked)
            if run.cancel_requested_at is None:
                assert outcomes == {"already_final"}, (run, asked)
            assert run.attempt == 1, run
            if run_id in self.told:
                check_numbers(run, run_id, self.told[run_id], -1)
                assert is_end(run_id, self.told[run_id][-1])
                assert self.told[run_id][-1].name.endswith(run.status.title()), run

    def count(self, asking: Asking, run: RunRow) -> None:
        when = "later" if is_final(asking.before.status) else "first"
        self.seen[f"{asking.answer['cancel']} {when} {'own' if asking.own else 'other'}"] += 1
        self.seen["at once"] += asking.at_once
        if run.status == "COMPLETED" and run.finished_at is not None:
            self.laps.append((run.finished_at - run.created_at) / 1e6)

    async def go(self) -> None:
        for first in range(0, RACES, AT_ONCE):
            await asyncio.gather(*(self.race(first + number) for number in range(AT_ONCE)))
            await all_final(self.place.witness)
            self.judge()
            self.answers.clear()


async def all_final(witness: Witness) -> None:
    def over() -> bool:
        witness.look()
        return not witness.live()

    await wait_until(over, SECONDS)


async def test_a_cancel_that_races_the_end_is_answered_with_what_is_stored(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with two_services(folder) as place:
            racing = Racing(place, Random(number))
            await racing.go()
        seen += racing.seen
    for who in ("own", "other"):
        for outcome in ("stopped first", "requested first", "already_final first"):
            assert seen[f"{outcome} {who}"], f"that race was not run: {seen}"
        assert seen[f"already_final later {who}"], seen
    asked = seen["requested first own"] + seen["requested first other"]
    # Another thread may store the end between the answer and our look; that happens now and then.
    assert seen["at once"] <= 5 + asked / 10, seen


async def test_runs_at_the_same_time_in_one_session_are_all_kept_in_order(tmp_path: Path) -> None:
    async with two_services(tmp_path) as place:
        waves: list[set[str]] = []
        for wave in range(2):
            asked = [f"wave {wave} run {number}" for number in range(TOGETHER)]
            runs = [
                place.ports[number % 2].create_run(
                    "agent",
                    "quick",
                    RunRequest(message, session_id="s", background=number % 3 == 0),
                )
                for number, message in enumerate(asked)
            ]
            answers = [answer.value for answer in await asyncio.gather(*runs)]
            assert [answer["input"] for answer in answers] == asked
            waves.append(set(asked))
        await all_final(place.witness)
        stored = sorted(place.witness.runs.values(), key=lambda run: run.seq)
        assert [run.seq for run in stored] == list(range(1, 2 * TOGETHER + 1))
        assert {run.input for run in stored[:TOGETHER]} == waves[0]
        assert {run.input for run in stored[TOGETHER:]} == waves[1]
        assert {run.status for run in stored} == {"COMPLETED"}
        for port in place.ports:
            listed = (await port.get_session_runs("s")).value
            assert [run["run_id"] for run in listed] == [run.run_id for run in stored]
            session: Any = (await port.get_session_by_id("s")).value
            history = [(entry["role"], entry["content"]) for entry in session["chat_history"]]
            assert history == [
                (role, run.input) for run in stored for role in ("user", "assistant")
            ]
            tokens = sum(orjson.loads(run.metrics or "")["total_tokens"] for run in stored)
            assert session["total_tokens"] == session["metrics"]["total_tokens"] == tokens > 0


async def test_of_many_at_once_a_session_that_wants_to_be_alone_takes_one(tmp_path: Path) -> None:
    async with two_services(tmp_path) as place:
        for number in range(10 if LONG else 3):
            starts = [
                place.ports[which % 2].create_run(
                    "agent", "busy", RunRequest("slowly", session_id="s", background=True)
                )
                for which in range(20)
            ]
            answers = await asyncio.gather(*starts, return_exceptions=True)
            taken = [answer for answer in answers if not isinstance(answer, BaseException)]
            refused = [answer for answer in answers if isinstance(answer, errors.Conflict)]
            assert (len(taken), len(refused)) == (1, 19), answers
            run_id = taken[0].value["run_id"]
            assert {refusal.detail for refusal in refused} == {
                f"The session is busy with run {run_id}"
            }
            request = CancelRequest("s", wait=30)
            answer = (await place.ports[1].cancel_run("agent", "busy", run_id, request)).value
            assert answer["cancel"] == "stopped"
            place.witness.look()
            assert len(place.witness.runs) == number + 1


async def test_what_begins_while_its_worker_is_taken_for_dead_stops(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_task_factory(by_process)  # type: ignore[arg-type]
    settings = stage(tmp_path / "main.db")
    judge, judged = Process(settings), Process(settings)
    try:
        for process in (judge, judged):
            await process.spawned(process.open())
        await _begun_and_judged(judge, judged, 40 if LONG else 8)
        engine = judged.service.hosting.engine
        await wait_until(
            lambda: all(run.worker_id == engine.worker_id for run in engine.live_runs())
        )
    finally:
        await judge.kill()
        await judged.kill()


async def test_who_follows_a_run_that_another_process_ended_is_told_that_end(
    tmp_path: Path,
) -> None:
    asyncio.get_running_loop().set_task_factory(by_process)  # type: ignore[arg-type]
    settings = stage(tmp_path / "main.db")
    judge, judged = Process(settings), Process(settings)
    try:
        for process in (judge, judged):
            await process.spawned(process.open())
        request = RunRequest("slowly", session_id="s", background=True)
        run_id = (await judged.port.create_run("agent", "slow", request)).value["run_id"]
        told = [
            asyncio.create_task(collected(process, "agent", "slow", run_id))
            for process in (judged, judge)
        ]
        await wait_until(lambda: judged.service.hosting.engine.root_runs()[0].stream.next > 2)
        await _judge(judge, judged)
        here, there = await asyncio.gather(*told)
        assert here[-1] == there[-1]
        assert here[-1].name == "RunError"
        assert [event.seq for event in here[:-1]] == list(range(len(here) - 1))
        assert await collected(judge, "agent", "slow", run_id, here[-2].seq) == here[-1:]
    finally:
        await judge.kill()
        await judged.kill()


async def collected(
    process: Process, kind: ComponentKind, component_id: str, run_id: str, after: int = -1
) -> list[StreamEvent]:
    events = process.port.resume_run(kind, component_id, run_id, ResumeRequest("s", after))
    return [event async for event in events]


async def _judge(judge: Process, judged: Process) -> None:
    """Take a process for dead that lives, and wait until it has heard of that."""
    database = judge.service.hosting.databases.system
    owner = judged.service.hosting.engine.worker_id
    await recover_runs(database, owner, may_still_run=True)
    await database.write(workers.remove(owner))
    await wait_until(lambda: judged.service.hosting.engine.worker_id != owner)


async def _begun_and_judged(judge: Process, judged: Process, verdicts: int) -> None:
    """Have one process begin runs as fast as it can while another one takes it for dead."""
    ready = asyncio.Event()

    async def begin() -> None:
        while not ready.is_set():
            request = RunRequest("slowly", background=True)
            await judged.spawned(judged.port.create_run("agent", "slow", request))

    begun = [asyncio.create_task(begin()) for _ in range(8)]
    for _ in range(verdicts):
        await _judge(judge, judged)
    ready.set()
    await asyncio.gather(*begun)
