"""Whatever is done, in whatever order, by processes that die at any moment: runs tell the truth.

Each step is done to real processes (`tests.runs.processes`) on one database. What they do goes on
beside the steps that follow. After each step the database is looked at (`tests.runs.witness`), and
every client that has an answer holds it against what is stored (`tests.runs.calls`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import sys
import tempfile
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import orjson
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    run_state_machine_as_test,
)

from agentctl import errors
from agentctl.operations import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.runs.recovery import recover_runs
from agentctl.runs.sweep import sweep_dead_workers
from agentctl.store.repositories import workers
from agentctl.store.repositories.runs import RunRow
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.runs.calls import (
    Asked,
    Call,
    Cancelling,
    Deleting,
    Following,
    Starting,
    check_numbers,
    is_end,
    named,
)
from tests.runs.processes import Process, by_process
from tests.runs.stage import COMPONENTS, LONG, never_awaited, stage, tidied
from tests.runs.steps import Broken, rule
from tests.runs.witness import Witness

pytestmark = pytest.mark.slow

__all__ = ["tidied"]

T = TypeVar("T")

PROCESSES = 3
"""As many live at a time at most."""

SECONDS = 60.0
"""What a step may take on the busiest machine, and the end of everything as well."""

BOUNDS = settings(
    max_examples=400 if LONG else 5,
    stateful_step_count=60 if LONG else 30,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)

anyone = st.integers(0, 999)
"""Chooses among those that there are, whose number is not known before."""

moments = st.sampled_from((0, 0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3))
"""How long what was begun goes on before the next step, in seconds."""


class Wanted(NamedTuple):
    """A run to ask for."""

    what: tuple[ComponentKind, str]
    session: int
    stream: bool
    background: bool
    keyed: bool


requests = st.builds(
    Wanted,
    st.sampled_from(COMPONENTS),
    session=st.integers(0, 1),
    stream=st.booleans(),
    background=st.booleans(),
    keyed=st.booleans(),
)


places = st.tuples(anyone, st.integers(-1, 12))
"""A run, and the event behind which it is followed."""

cancels = st.tuples(anyone, st.sampled_from((0.0, 0.0, 0.02, 0.5)), st.booleans())
"""A run, how long its end is waited for, and whether it is to be a live one."""


class Runs(RuleBasedStateMachine):
    """Processes, clients, and one who watches."""

    def __init__(self, model_url: str) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agentctl-machine-"))
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(by_process)  # type: ignore[arg-type]
        self.settings = stage(self.folder / "main.db", model_url)
        self.witness = Witness(self.folder / "main.db")
        self.processes: list[Process] = []
        self.dead: set[str] = set()
        self.asked: list[Asked] = []
        self.calls: list[Call] = []
        self.checked: list[Call] = []
        self.to_delete: set[str] = set()
        self.numbers = itertools.count()
        self.steps: list[str] = []

    # What steps are made of

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    def step(self, moment: float, work: Coroutine[Any, Any, Any] | None = None) -> None:
        """Do something, let everything go on for a moment, and see."""

        async def done() -> None:
            if work is not None:
                await work
            await asyncio.sleep(moment)

        self.do(done())
        self.see()

    def see(self) -> None:
        self.processes = [process for process in self.processes if process.alive]
        for process in self.processes:
            process.note()
        self.witness.look()
        assert self.witness.emptied <= self.to_delete, "nobody asked for that"
        for call in [call for call in self.calls if call.done]:
            self.calls.remove(call)
            self.checked.append(call)
            call.check()

    def one_up(self, number: int) -> Process:
        """One of the processes, once it can be asked for something."""
        process = self.processes[number % len(self.processes)]
        self.do(wait_until(lambda: process.up, SECONDS / 2))
        return process

    @property
    def roots(self) -> list[RunRow]:
        return [run for run in self.witness.runs.values() if run.parent_run_id is None]

    def begin(self, call: Call, moment: float) -> None:
        async def begun() -> None:
            call.begin()

        self.calls.append(call)
        self.step(moment, begun())

    # Processes come and go

    @initialize(first=st.lists(requests, min_size=1, max_size=4))
    def two_processes_with_work(self, first: list[Wanted]) -> None:
        self.steps.append(f"two_processes_with_work({first})")
        for _ in range(2):
            self.a_process()
        for wanted in first:
            self.ask(0, wanted)

    def a_process(self) -> None:
        process = Process(self.settings)
        self.processes.append(process)
        self.begin(Doing(process, self.witness, process.open), 0)

    @precondition(lambda self: len(self.processes) < PROCESSES)
    @rule(moment=moments)
    def another(self, moment: float) -> None:
        """A process starts; the next steps need not wait for that."""
        self.a_process()
        self.step(moment)

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, well=st.integers(0, 3), moment=moments)
    def end(self, number: int, well: int, moment: float) -> None:
        """A process is killed; or it ends well, as after SIGTERM."""
        process = self.processes[number % len(self.processes)]
        if well or not process.up:
            self.step(moment, process.kill())
            self.dead |= process.ids
        else:
            self.step(0, process.stop())
            assert not [run for run in self.witness.live() if run.owner in process.ids]

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, moment=moments)
    def recovery(self, number: int, moment: float) -> None:
        """A living process sweeps; then nothing of the dead is live."""
        process = self.one_up(number)
        hosting = process.service.hosting
        work = sweep_dead_workers(hosting.databases, hosting.observer, hosting.engine.worker_id)
        self.step(0, process.spawned(work))
        assert not [run for run in self.witness.live() if run.owner in self.dead]
        self.step(moment)

    @precondition(lambda self: len(self.processes) > 1)
    @rule(number=anyone, moment=moments)
    def wrong_verdict(self, number: int, moment: float) -> None:
        """A process that was silent for too long is taken for dead, and goes on all the same."""
        judge, victim = self.one_up(number), self.one_up(number + 1)
        owner = victim.service.hosting.engine.worker_id
        self.step(moment, judge.spawned(_judged_silent(judge, owner)))

    # Clients

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, wanted=requests, moment=moments)
    def start(self, number: int, wanted: Wanted, moment: float) -> None:
        self.ask(number, wanted)
        self.step(moment)

    def ask(self, number: int, wanted: Wanted) -> None:
        (kind, component_id), mark = wanted.what, f"m{next(self.numbers)}"
        request = RunRequest(
            f'{mark} {{"seconds": 0.05}} says more than one word',
            session_id=f"{kind}-{wanted.session}",
            background=wanted.background,
            idempotency_key=mark if wanted.keyed else None,
        )
        asked = Asked(kind, component_id, request, wanted.stream)
        self.asked.append(asked)
        self.begin(Starting(self.one_up(number), self.witness, asked), 0)

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, wanted=st.lists(requests, min_size=2, max_size=5), moment=moments)
    def start_some(self, number: int, wanted: list[Wanted], moment: float) -> None:
        """Everywhere at once."""
        for place, one in enumerate(wanted):
            self.ask(number + place, one)
        self.step(moment)

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, wanted=st.lists(requests, min_size=1, max_size=3), moment=moments)
    def start_and_kill(self, number: int, wanted: list[Wanted], moment: float) -> None:
        """A process dies in the middle of what it has just begun."""
        process = self.one_up(number)
        for one in wanted:
            self.ask(number, one)
        self.step(moment)
        self.step(0, process.kill())
        self.dead |= process.ids

    @property
    def keyed(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.request.idempotency_key is not None]

    @precondition(lambda self: self.processes and self.keyed)
    @rule(number=anyone, which=anyone, moment=moments)
    def again(self, number: int, which: int, moment: float) -> None:
        """The same request once more, there or elsewhere."""
        asked = self.keyed[-1 - which % len(self.keyed)]
        self.begin(Starting(self.one_up(number), self.witness, asked), moment)

    @precondition(lambda self: self.processes and self.keyed)
    @rule(number=anyone, which=anyone)
    def another_request_with_that_key(self, number: int, which: int) -> None:
        process, asked = self.one_up(number), self.keyed[which % len(self.keyed)]
        if asked.given:
            request = RunRequest("else", idempotency_key=asked.request.idempotency_key)
            with pytest.raises(errors.ValidationFailed):
                self.do(process.port.create_run(asked.kind, asked.component_id, request))

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=anyone, which=st.lists(places, min_size=1, max_size=4), moment=moments)
    def follow(self, number: int, which: list[tuple[int, int]], moment: float) -> None:
        """From wherever, whichever runs, behind whatever event."""
        for place, (one, after) in enumerate(which):
            process = self.one_up(number + place)
            if self.roots:
                run = self.roots[one % len(self.roots)]
                self.begin(Following(process, self.witness, run, after), 0)
        self.step(moment)

    @precondition(lambda self: bool(self.asked))
    @rule(which=anyone, moment=moments)
    def leave(self, which: int, moment: float) -> None:
        """A client goes away."""
        waiting = [call for call in self.calls if not isinstance(call, Doing)]
        if waiting:
            waiting[which % len(waiting)].leave()
        self.step(moment)

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=anyone, which=st.lists(cancels, min_size=1, max_size=4), moment=moments)
    def cancel(self, number: int, which: list[tuple[int, float, bool]], moment: float) -> None:
        """Whoever's runs, those of members and steps as well."""
        for place, (one, wait, live) in enumerate(which):
            process = self.one_up(number + place)
            runs = (self.witness.live() if live else []) or list(self.witness.runs.values())
            if runs:
                run, reason = runs[one % len(runs)], f"reason {next(self.numbers)}"
                call = Cancelling(process, self.witness, run, wait, reason)
                call.orphaned = run.owner in self.dead
                self.begin(call, 0)
        self.step(moment)

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=anyone, which=anyone, cancel=st.booleans(), moment=moments)
    def delete(self, number: int, which: int, cancel: bool, moment: float) -> None:
        asked = self.asked[which % len(self.asked)]
        session_id = asked.request.session_id
        assert session_id is not None
        self.to_delete.add(session_id)
        self.begin(Deleting(self.one_up(number), self.witness, session_id, cancel=cancel), moment)

    # The end

    def teardown(self) -> None:
        failure = sys.exc_info()[1]
        try:
            if failure is None:
                self.everything_ends()
        except Exception as error:
            failure = error
        finally:
            self.clean_up()
        if isinstance(failure, Exception):
            raise Broken("\n".join(self.steps)) from failure

    def clean_up(self) -> None:
        for process in self.processes:
            if process.alive:
                self.do(process.kill())
        self.do(self.loop.shutdown_asyncgens())
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()
        self.witness.close()
        shutil.rmtree(self.folder)

    def everything_ends(self) -> None:
        if not self.processes:
            self.a_process()
        for number in range(len(self.processes)):
            self.recovery(number=number, moment=0)
        self.step(0, self.all_stopped(self.processes[0]))
        self.step(0, self.all_answered())
        assert not self.calls
        assert not self.witness.live()
        self.check_requests()
        for run in self.roots:
            self.do(self.check_stream(run))
        for session_id in {run.session_id for run in self.roots}:
            self.do(self.check_history(session_id))
        for process in list(self.processes):
            self.step(0, process.stop())

    async def all_stopped(self, process: Process) -> None:
        """Whatever still goes on is cancelled, by any process; nothing goes on for ever."""
        deadline = self.loop.time() + SECONDS / 2
        while left := self.unfinished():
            assert self.loop.time() < deadline, left
            for run in self.witness.live():
                request = CancelRequest(run.session_id, wait=1)
                with contextlib.suppress(errors.NotFound):
                    await process.port.cancel_run(*named(run), run.run_id, request)
            await asyncio.sleep(0.01)

    def unfinished(self) -> list[Any]:
        self.witness.look()
        waiting = [call for call in self.calls if isinstance(call, Starting) and not call.done]
        return [*self.witness.live(), *((call.asked, call.run_id) for call in waiting)]

    async def all_answered(self) -> None:
        """Every client hears: nobody follows what has ended."""
        await wait_until(lambda: all(call.done for call in self.calls), SECONDS / 2)

    def check_requests(self) -> None:
        """Every run that was acknowledged is there once, and none was made that was not asked
        for, nor twice.
        """
        asked = {one.request.message: one for one in self.asked}
        assert len({run.input for run in self.roots}) == len(self.roots)
        for run in self.roots:
            assert asked[run.input].given <= {run.run_id}
        there = self.witness.runs.keys() | self.witness.deleted
        assert all(one.given <= there for one in self.asked)

    async def check_stream(self, run: RunRow) -> None:
        """Resumed anywhere, from any number, it is what is left of the whole."""
        whole = await self.followed(run, -1)
        check_numbers(run, run.run_id, whole, -1)
        assert whole
        assert whole[-1].name.endswith(run.status.title()), (run, whole)
        for after in sorted({event.seq for event in whole}):
            assert await self.followed(run, after) == [
                event for event in whole if event.seq > after
            ]
        for call in self.checked:
            if isinstance(call, Starting | Following) and call.run_id == run.run_id:
                check_told(run, call.events, whole)

    async def followed(self, run: RunRow, after: int) -> list[StreamEvent]:
        process = self.processes[next(self.numbers) % len(self.processes)]
        request = ResumeRequest(run.session_id, after)
        events = process.port.resume_run(*named(run), run.run_id, request)
        return [event async for event in events]

    async def check_history(self, session_id: str) -> None:
        """Every question is there, in order, and each run's part is what the run has."""
        runs = [run for run in self.roots if run.session_id == session_id]
        port = self.processes[0].port
        session: Any = (await port.get_session_by_id(session_id)).value
        if runs[0].component_type == "workflow":
            assert "chat_history" not in session
            return
        shown: list[Any] = [entry for run in runs for entry in orjson.loads(run.history or "[]")]
        assert session["chat_history"] == shown
        questions = [entry["content"] for entry in shown if entry["role"] == "user"]
        assert questions == [run.input for run in runs]


class Doing(Call):
    """Not a client: what a process does by itself."""

    def __init__(self, process: Process, witness: Witness, work: Any) -> None:
        super().__init__(process, witness)
        self._work = work

    async def work(self) -> None:
        await self._work()

    def answered(self) -> None:
        """There is nothing to hold against anything."""


async def _judged_silent(judge: Process, owner: str) -> None:
    """What a sweep does to a worker that was silent (`runs.sweep`)."""
    databases = judge.service.hosting.databases
    for database in databases.values():
        await recover_runs(database, owner, may_still_run=True)
    await databases.system.write(workers.remove(owner))


def check_told(run: RunRow, told: list[StreamEvent], whole: list[StreamEvent]) -> None:
    """What a follower had is part of what is kept. Of a run that was lost its followers may have
    heard more, but not of another end.
    """
    kept = {event.seq: event for event in whole}
    for event in told:
        if event.seq in kept:
            assert event == kept[event.seq]
        else:
            assert run.attempt > 1, (run, event, whole)
            assert not is_end(run.run_id, event), (run, event, whole)


@never_awaited
@pytest.mark.usefixtures("tidied")
def test_whatever_is_done_in_whatever_order(model_endpoint: ModelEndpoint) -> None:
    def machine() -> Runs:
        return Runs(model_endpoint.base_url)

    try:
        run_state_machine_as_test(machine, settings=BOUNDS)  # type: ignore[arg-type]
    except Broken as broken:
        told = "".join(traceback.format_exception(broken.__cause__))
        pytest.fail(f"After these steps:\n{broken}\n{told}", pytrace=False)
