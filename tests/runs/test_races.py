"""Races: cancels against ends of runs, runs in one session, followers of a worker that is declared
dead.

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
from agentctl.interface.requests import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunRow
from agentctl.runs.states import is_final
from agentctl.runs.workers.recovery import recover_runs
from agentctl.service.service import Service, ServiceOperations
from agentctl.store.repositories import workers
from tests.kit.conditions import wait_until
from tests.kit.service import user
from tests.runs.client_calls import check_cancel, check_numbers, component_of, event_data, is_end
from tests.runs.components import LONG, QUICK, build_settings, collect_garbage, ignore_never_awaited
from tests.runs.database_invariants import InvariantChecker
from tests.runs.simulated_processes import Process, create_process_task

__all__ = ["collect_garbage"]

pytestmark = [ignore_never_awaited, pytest.mark.usefixtures("collect_garbage")]

ROUNDS = 20 if LONG else 1
MOST_ROUNDS = ROUNDS + 9
RACES = 500
"""Races in each round; a round has its own database."""

AT_ONCE = 20

TOGETHER = 200 if LONG else 40
"""Concurrent runs in one session."""


class TwoServices(NamedTuple):
    """Two services on one file, and a checker of its invariants."""

    one: Service
    two: Service
    checker: InvariantChecker

    @property
    def ports(self) -> tuple[ServiceOperations, ServiceOperations]:
        return user(self.one), user(self.two)


@contextlib.asynccontextmanager
async def two_services(folder: Path) -> AsyncIterator[TwoServices]:
    settings = build_settings(folder / "main.db")
    checker = InvariantChecker(folder / "main.db")
    try:
        async with Service.open(settings) as one, Service.open(settings) as two:
            await one.prepare()
            await two.prepare()
            yield TwoServices(one, two, checker)
    finally:
        checker.close()


class AnsweredCancel(NamedTuple):
    """A cancel with its response.

    Attributes:
        before: the stored row when the cancel was sent.
        at_once: True if the run was final right after a response that reported it live.
        own: True if the cancel was sent to the service that executes the run.
    """

    before: RunRow
    answer: dict[str, Any]
    at_once: bool
    own: bool


class RaceRound:
    """One round of races.

    Attributes:
        lap: approximate duration of a run on this machine, in seconds.
    """

    def __init__(self, place: TwoServices, random: Random) -> None:
        self.place = place
        self.random = random
        self.laps: deque[float] = deque([0.05], maxlen=50)
        self.seen: Counter[str] = Counter()
        self.answers: dict[str, list[AnsweredCancel]] = {}
        self.told: dict[str, list[StreamEvent]] = {}

    @property
    def lap(self) -> float:
        return statistics.median(self.laps)

    async def race(self, number: int) -> None:
        """Start a run and send one or two cancels at a random time."""
        kind, component_id = self.random.choice((QUICK[0], *QUICK))
        request = RunRequest(
            f"run {number} is soon over", session_id=f"{kind}-{number % 4}", background=True
        )
        following: asyncio.Task[None] | None = None
        if self.random.random() < 0.3:
            run_id, following = await self.streamed(kind, component_id, request)
        else:
            port = self.place.ports[0]
            run_id = (await port.runs.create(kind, component_id, request)).value["run_id"]
        self.answers[run_id] = []
        cancels = [self.cancel(run_id) for _ in range(self.random.choice((1, 1, 2)))]
        await asyncio.gather(*cancels)
        if following is not None:
            await following

    async def streamed(
        self, kind: ComponentKind, component_id: str, request: RunRequest
    ) -> tuple[str, asyncio.Task[None]]:
        """Return the id from the first event, and the task that follows the run to its end."""
        events = self.place.ports[0].runs.stream(kind, component_id, request)
        first = await anext(aiter(events))
        run_id: str = event_data(first)["run_id"]
        told = self.told[run_id] = [first]

        async def follow() -> None:
            async for event in events:
                told.append(event)

        return run_id, asyncio.create_task(follow())

    async def cancel(self, run_id: str) -> None:
        await asyncio.sleep(self.random.uniform(-0.2, 1.3) * self.lap)
        own = self.random.random() < 0.5
        wait = self.random.choice((0.0, 0.01, 5.0))
        before = self.place.checker.read_run(run_id)
        assert before is not None
        request = CancelRequest(before.session_id, wait, "raced")
        port = self.place.ports[0 if own else 1]
        answer = (await port.runs.cancel(*component_of(before), run_id, request)).value
        behind = self.place.checker.read_run(run_id)
        assert behind is not None
        at_once = answer["cancel"] == "requested" and is_final(behind.status)
        assert not (at_once and wait == 5.0), "it was waited for, and yet its end not told"
        self.answers[run_id].append(AnsweredCancel(before, dict(answer), at_once, own))

    def judge(self) -> None:
        """Compare every response with the row."""
        for run_id, asked in self.answers.items():
            run = self.place.checker.final[run_id]
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

    def count(self, asking: AnsweredCancel, run: RunRow) -> None:
        when = "later" if is_final(asking.before.status) else "first"
        self.seen[f"{asking.answer['cancel']} {when} {'own' if asking.own else 'other'}"] += 1
        self.seen["at once"] += asking.at_once
        if run.status == "COMPLETED" and run.finished_at is not None:
            self.laps.append((run.finished_at - run.created_at) / 1e6)

    async def go(self) -> None:
        for first in range(0, RACES, AT_ONCE):
            await asyncio.gather(*(self.race(first + number) for number in range(AT_ONCE)))
            await wait_until_all_final(self.place.checker)
            self.judge()
            self.answers.clear()


async def wait_until_all_final(checker: InvariantChecker) -> None:
    def over() -> bool:
        checker.check()
        return not checker.live_runs()

    await wait_until(over)


async def test_cancel_that_races_the_end_returns_the_stored_status(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    outcomes = ("stopped first", "requested first", "already_final first", "already_final later")
    wanted = {f"{outcome} {who}" for outcome in outcomes for who in ("own", "other")}
    # The machine decides which races a round has; a few rounds have all of them.
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and wanted <= seen.keys():
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        async with two_services(folder) as place:
            racing = RaceRound(place, Random(number))
            await racing.go()
        seen += racing.seen
    assert wanted <= seen.keys(), f"these races were not run: {wanted - seen.keys()}"
    asked = seen["requested first own"] + seen["requested first other"]
    # Another thread may store the end between the response and the read; that is rare.
    assert seen["at once"] <= 5 + asked / 10, seen


async def test_concurrent_runs_in_one_session_keep_their_order(tmp_path: Path) -> None:
    async with two_services(tmp_path) as place:
        waves: list[set[str]] = []
        for wave in range(2):
            asked = [f"wave {wave} run {number}" for number in range(TOGETHER)]
            runs = [
                place.ports[number % 2].runs.create(
                    "agent",
                    "quick",
                    RunRequest(message, session_id="s", background=number % 3 == 0),
                )
                for number, message in enumerate(asked)
            ]
            answers = [answer.value for answer in await asyncio.gather(*runs)]
            assert [answer["input"] for answer in answers] == asked
            waves.append(set(asked))
        await wait_until_all_final(place.checker)
        stored = sorted(place.checker.runs.values(), key=lambda run: run.seq)
        assert [run.seq for run in stored] == list(range(1, 2 * TOGETHER + 1))
        assert {run.input for run in stored[:TOGETHER]} == waves[0]
        assert {run.input for run in stored[TOGETHER:]} == waves[1]
        assert {run.status for run in stored} == {"COMPLETED"}
        for port in place.ports:
            listed = (await port.sessions.list_runs("s")).value
            assert [run["run_id"] for run in listed] == [run.run_id for run in stored]
            session: Any = (await port.sessions.get("s")).value
            history = [(entry["role"], entry["content"]) for entry in session["chat_history"]]
            assert history == [
                (role, run.input) for run in stored for role in ("user", "assistant")
            ]
            tokens = sum(orjson.loads(run.metrics or "")["total_tokens"] for run in stored)
            assert session["total_tokens"] == session["metrics"]["total_tokens"] == tokens > 0


async def test_busy_session_accepts_one_of_many_concurrent_runs(tmp_path: Path) -> None:
    async with two_services(tmp_path) as place:
        for number in range(10 if LONG else 3):
            starts = [
                place.ports[which % 2].runs.create(
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
            answer = (await place.ports[1].runs.cancel("agent", "busy", run_id, request)).value
            assert answer["cancel"] == "stopped"
            place.checker.check()
            assert len(place.checker.runs) == number + 1


async def test_followers_get_the_end_that_another_process_stored(tmp_path: Path) -> None:
    asyncio.get_running_loop().set_task_factory(create_process_task)  # type: ignore[arg-type]
    settings = build_settings(tmp_path / "main.db")
    judge = Process(settings)
    judged = Process(settings)
    try:
        for process in (judge, judged):
            await process.run(process.open())
        request = RunRequest("slowly", session_id="s", background=True)
        run_id = (await judged.operations.runs.create("agent", "slow", request)).value["run_id"]
        told = [
            asyncio.create_task(collect(process, "agent", "slow", run_id))
            for process in (judged, judge)
        ]
        await wait_until(lambda: judged.service.hosting.engine.root_runs()[0].stream.next > 2)
        await _declare_dead(judge, judged)
        here, there = await asyncio.gather(*told)
        assert here[-1] == there[-1]
        assert here[-1].name == "RunError"
        assert [event.seq for event in here[:-1]] == list(range(len(here) - 1))
        assert await collect(judge, "agent", "slow", run_id, here[-2].seq) == here[-1:]
    finally:
        await judge.kill()
        await judged.kill()


async def collect(
    process: Process, kind: ComponentKind, component_id: str, run_id: str, after: int = -1
) -> list[StreamEvent]:
    events = process.operations.runs.resume(kind, component_id, run_id, ResumeRequest("s", after))
    return [event async for event in events]


async def _declare_dead(judge: Process, judged: Process) -> None:
    """Declare a live process dead, and wait until it has detected that."""
    database = judge.service.hosting.databases.system
    owner = judged.service.hosting.engine.worker_id
    await recover_runs(database, owner, may_still_run=True)
    await database.write(workers.remove(owner))
    await wait_until(lambda: judged.service.hosting.engine.worker_id != owner)
