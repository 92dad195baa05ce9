"""A state machine with random steps of processes that die at any moment.

Each step acts on processes (`tests.runs.simulated_processes`) with one database. Their work
continues during the following steps. After each step the invariants of the database are checked
(`tests.runs.database_invariants`), and every response is compared with the stored data
(`tests.runs.client_calls`).
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
from agentctl.interface.requests import CancelRequest, ResumeRequest, RunRequest, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import RunRow
from agentctl.runs.jobs.sweep import sweep_dead_workers
from agentctl.runs.workers.recovery import recover_runs
from agentctl.store.repositories import workers
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.loop_model import LoopEndpoint
from tests.runs.client_calls import (
    Call,
    CancelCall,
    DeleteCall,
    FollowCall,
    RequestedRun,
    StartCall,
    check_numbers,
    component_of,
    is_end,
)
from tests.runs.components import (
    COMPONENTS,
    LONG,
    build_settings,
    collect_garbage,
    ignore_never_awaited,
)
from tests.runs.database_invariants import InvariantChecker
from tests.runs.recorded_rules import InvariantViolation, rule
from tests.runs.simulated_processes import Process, create_process_task

__all__ = ["collect_garbage"]

T = TypeVar("T")

PROCESSES = 3
"""Maximum number of live processes."""

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
"""Index into a list whose length is not known in advance."""

moments = st.sampled_from((0, 0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3))
"""Time before the next step, in seconds."""


class Wanted(NamedTuple):
    """A run to request."""

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
"""A run, and the event after which it is followed."""

cancels = st.tuples(anyone, st.sampled_from((0.0, 0.0, 0.02, 0.5)), st.booleans())
"""A run, the wait for its end in seconds, and True if it has to be live."""


class Runs(RuleBasedStateMachine):
    """Processes, clients and the checker of the database."""

    def __init__(self, models: LoopEndpoint) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agentctl-machine-"))
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(create_process_task)  # type: ignore[arg-type]
        self.serving = models.serve()
        self.do(self.serving.__aenter__())
        self.settings = build_settings(self.folder / "main.db", models.base_url)
        self.checker = InvariantChecker(self.folder / "main.db")
        self.processes: list[Process] = []
        self.dead: set[str] = set()
        self.asked: list[RequestedRun] = []
        self.calls: list[Call] = []
        self.checked: list[Call] = []
        self.to_delete: set[str] = set()
        self.numbers = itertools.count()
        self.steps: list[str] = []

    # Parts of steps

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 2 * PATIENCE))

    def step(self, moment: float, work: Coroutine[Any, Any, Any] | None = None) -> None:
        """Start some work, wait for a moment, and check the database."""

        async def done() -> None:
            if work is not None:
                await work
            await asyncio.sleep(moment)

        self.do(done())
        self.see()

    def see(self) -> None:
        self.processes = [process for process in self.processes if process.alive]
        for process in self.processes:
            process.note_worker_id()
        self.checker.check()
        assert self.checker.emptied <= self.to_delete, "nobody asked for that"
        for call in [call for call in self.calls if call.done]:
            self.calls.remove(call)
            self.checked.append(call)
            call.check()

    def one_up(self, number: int) -> Process:
        """Return one of the processes, once it accepts calls."""
        process = self.processes[number % len(self.processes)]
        self.do(wait_until(lambda: process.up))
        return process

    @property
    def roots(self) -> list[RunRow]:
        return [run for run in self.checker.runs.values() if run.parent_run_id is None]

    def start_call(self, call: Call, moment: float) -> None:
        async def begun() -> None:
            call.start()

        self.calls.append(call)
        self.step(moment, begun())

    # Start and end of processes

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
        self.start_call(Doing(process, self.checker, process.open), 0)

    @precondition(lambda self: len(self.processes) < PROCESSES)
    @rule(moment=moments)
    def another(self, moment: float) -> None:
        """Start a process; the next steps do not wait for it."""
        self.a_process()
        self.step(moment)

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, well=st.integers(0, 3), moment=moments)
    def end(self, number: int, well: int, moment: float) -> None:
        """Kill a process, or stop it like SIGTERM."""
        process = self.processes[number % len(self.processes)]
        if well or not process.up:
            self.step(moment, process.kill())
            self.dead |= process.ids
        else:
            self.step(0, process.stop())
            assert not [run for run in self.checker.live_runs() if run.owner in process.ids]

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, moment=moments)
    def recovery(self, number: int, moment: float) -> None:
        """Sweep in a live process; afterwards dead workers have no live runs."""
        process = self.one_up(number)
        hosting = process.service.hosting
        work = sweep_dead_workers(hosting.databases, hosting.monitor, hosting.engine.worker_id)
        self.step(0, process.run(work))
        assert not [run for run in self.checker.live_runs() if run.owner in self.dead]
        self.step(moment)

    @precondition(lambda self: len(self.processes) > 1)
    @rule(number=anyone, moment=moments)
    def wrong_verdict(self, number: int, moment: float) -> None:
        """Declare a process without heartbeats dead, although it continues."""
        judge = self.one_up(number)
        victim = self.one_up(number + 1)
        owner = victim.service.hosting.engine.worker_id
        self.step(moment, judge.run(_judged_silent(judge, owner)))

    # Clients

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, wanted=requests, moment=moments)
    def start(self, number: int, wanted: Wanted, moment: float) -> None:
        self.ask(number, wanted)
        self.step(moment)

    def ask(self, number: int, wanted: Wanted) -> None:
        (kind, component_id) = wanted.what
        mark = f"m{next(self.numbers)}"
        request = RunRequest(
            f'{mark} {{"seconds": 0.05}} says more than one word',
            session_id=f"{kind}-{wanted.session}",
            background=wanted.background,
            idempotency_key=mark if wanted.keyed else None,
        )
        asked = RequestedRun(kind, component_id, request, wanted.stream)
        self.asked.append(asked)
        self.start_call(StartCall(self.one_up(number), self.checker, asked), 0)

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, wanted=st.lists(requests, min_size=2, max_size=5), moment=moments)
    def start_some(self, number: int, wanted: list[Wanted], moment: float) -> None:
        """Start several runs at once in all processes."""
        for place, one in enumerate(wanted):
            self.ask(number + place, one)
        self.step(moment)

    @precondition(lambda self: bool(self.processes))
    @rule(number=anyone, wanted=st.lists(requests, min_size=1, max_size=3), moment=moments)
    def start_and_kill(self, number: int, wanted: list[Wanted], moment: float) -> None:
        """Kill a process that has just started runs."""
        process = self.one_up(number)
        for one in wanted:
            self.ask(number, one)
        self.step(moment)
        self.step(0, process.kill())
        self.dead |= process.ids

    @property
    def keyed(self) -> list[RequestedRun]:
        return [asked for asked in self.asked if asked.request.idempotency_key is not None]

    @precondition(lambda self: self.processes and self.keyed)
    @rule(number=anyone, which=anyone, moment=moments)
    def again(self, number: int, which: int, moment: float) -> None:
        """Repeat a request in the same or another process."""
        asked = self.keyed[-1 - which % len(self.keyed)]
        self.start_call(StartCall(self.one_up(number), self.checker, asked), moment)

    @precondition(lambda self: self.processes and self.keyed)
    @rule(number=anyone, which=anyone)
    def another_request_with_that_key(self, number: int, which: int) -> None:
        process = self.one_up(number)
        asked = self.keyed[which % len(self.keyed)]
        if asked.given:
            request = RunRequest("else", idempotency_key=asked.request.idempotency_key)
            with pytest.raises(errors.ValidationFailed):
                self.do(process.operations.runs.create(asked.kind, asked.component_id, request))

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=anyone, which=st.lists(places, min_size=1, max_size=4), moment=moments)
    def follow(self, number: int, which: list[tuple[int, int]], moment: float) -> None:
        """Follow any runs in any process, after any event."""
        for place, (one, after) in enumerate(which):
            process = self.one_up(number + place)
            if self.roots:
                run = self.roots[one % len(self.roots)]
                self.start_call(FollowCall(process, self.checker, run, after), 0)
        self.step(moment)

    @precondition(lambda self: bool(self.asked))
    @rule(which=anyone, moment=moments)
    def leave(self, which: int, moment: float) -> None:
        """Disconnect a client."""
        waiting = [call for call in self.calls if not isinstance(call, Doing)]
        if waiting:
            waiting[which % len(waiting)].disconnect()
        self.step(moment)

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=anyone, which=st.lists(cancels, min_size=1, max_size=4), moment=moments)
    def cancel(self, number: int, which: list[tuple[int, float, bool]], moment: float) -> None:
        """Cancel any runs, including those of members and steps."""
        for place, (one, wait, live) in enumerate(which):
            process = self.one_up(number + place)
            runs = (self.checker.live_runs() if live else []) or list(self.checker.runs.values())
            if runs:
                run = runs[one % len(runs)]
                reason = f"reason {next(self.numbers)}"
                call = CancelCall(process, self.checker, run, wait, reason)
                call.orphaned = run.owner in self.dead
                self.start_call(call, 0)
        self.step(moment)

    @precondition(lambda self: self.processes and self.asked)
    @rule(number=anyone, which=anyone, cancel=st.booleans(), moment=moments)
    def delete(self, number: int, which: int, cancel: bool, moment: float) -> None:
        asked = self.asked[which % len(self.asked)]
        session_id = asked.request.session_id
        assert session_id is not None
        self.to_delete.add(session_id)
        self.start_call(
            DeleteCall(self.one_up(number), self.checker, session_id, cancel=cancel), moment
        )

    # End of the test

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
            raise InvariantViolation("\n".join(self.steps)) from failure

    def clean_up(self) -> None:
        for process in self.processes:
            if process.alive:
                self.do(process.kill())
        self.do(self.serving.__aexit__(None, None, None))
        self.do(self.loop.shutdown_asyncgens())
        self.do(self.loop.shutdown_default_executor())
        self.loop.close()
        self.checker.close()
        shutil.rmtree(self.folder)

    def everything_ends(self) -> None:
        if not self.processes:
            self.a_process()
        for number in range(len(self.processes)):
            self.recovery(number=number, moment=0)
        self.step(0, self.all_stopped(self.processes[0]))
        self.step(0, self.all_answered())
        assert not self.calls
        assert not self.checker.live_runs()
        self.check_requests()
        for run in self.roots:
            self.do(self.check_stream(run))
        for session_id in {run.session_id for run in self.roots}:
            self.do(self.check_history(session_id))
        for process in list(self.processes):
            self.step(0, process.stop())

    async def all_stopped(self, process: Process) -> None:
        """Cancel all live runs in any process; all of them end."""
        deadline = self.loop.time() + PATIENCE
        while left := self.unfinished():
            assert self.loop.time() < deadline, left
            for run in self.checker.live_runs():
                request = CancelRequest(run.session_id, wait=1)
                with contextlib.suppress(errors.NotFound):
                    await process.operations.runs.cancel(*component_of(run), run.run_id, request)
            await asyncio.sleep(0.01)

    def unfinished(self) -> list[Any]:
        self.checker.check()
        waiting = [call for call in self.calls if isinstance(call, StartCall) and not call.done]
        return [*self.checker.live_runs(), *((call.asked, call.run_id) for call in waiting)]

    async def all_answered(self) -> None:
        """Wait until all calls are done: no follower waits for a finished run."""
        await wait_until(lambda: all(call.done for call in self.calls))

    def check_requests(self) -> None:
        """Check that every acknowledged run exists once, and that each run was requested once."""
        asked = {one.request.message: one for one in self.asked}
        assert len({run.input for run in self.roots}) == len(self.roots)
        for run in self.roots:
            assert asked[run.input].given <= {run.run_id}
        there = self.checker.runs.keys() | self.checker.deleted
        assert all(one.given <= there for one in self.asked)

    async def check_stream(self, run: RunRow) -> None:
        """Check that a stream that resumes anywhere has the rest of the events."""
        whole = await self.followed(run, -1)
        check_numbers(run, run.run_id, whole, -1)
        assert whole
        assert whole[-1].name.endswith(run.status.title()), (run, whole)
        for after in sorted({event.seq for event in whole}):
            assert await self.followed(run, after) == [
                event for event in whole if event.seq > after
            ]
        for call in self.checked:
            if isinstance(call, StartCall | FollowCall) and call.run_id == run.run_id:
                check_told(run, call.events, whole)

    async def followed(self, run: RunRow, after: int) -> list[StreamEvent]:
        process = self.processes[next(self.numbers) % len(self.processes)]
        request = ResumeRequest(run.session_id, after)
        events = process.operations.runs.resume(*component_of(run), run.run_id, request)
        return [event async for event in events]

    async def check_history(self, session_id: str) -> None:
        """Check that the history has every message in order, as in the runs."""
        runs = [run for run in self.roots if run.session_id == session_id]
        operations = self.processes[0].operations
        session: Any = (await operations.sessions.get(session_id)).value
        if runs[0].component_type == "workflow":
            assert "chat_history" not in session
            return
        shown: list[Any] = [entry for run in runs for entry in orjson.loads(run.history or "[]")]
        assert session["chat_history"] == shown
        questions = [entry["content"] for entry in shown if entry["role"] == "user"]
        assert questions == [run.input for run in runs]


class Doing(Call):
    """An action of a process without a client."""

    def __init__(self, process: Process, checker: InvariantChecker, work: Any) -> None:
        super().__init__(process, checker)
        self._work = work

    async def work(self) -> None:
        await self._work()

    def check_response(self) -> None:
        """Do nothing: there is no response to check."""


async def _judged_silent(judge: Process, owner: str) -> None:
    """Recover a worker without heartbeats, like `runs.jobs.sweep`."""
    databases = judge.service.hosting.databases
    for database in databases.values():
        await recover_runs(database, owner, may_still_run=True)
    await databases.system.write(workers.remove(owner))


def check_told(run: RunRow, told: list[StreamEvent], whole: list[StreamEvent]) -> None:
    """Check that the events of a follower are stored.

    Followers of an orphaned run may have received more events, but not another last event.
    """
    kept = {event.seq: event for event in whole}
    for event in told:
        if event.seq in kept:
            assert event == kept[event.seq]
        else:
            assert run.attempt > 1, (run, event, whole)
            assert not is_end(run.run_id, event), (run, event, whole)


@ignore_never_awaited
@pytest.mark.usefixtures("collect_garbage")
def test_any_sequence_of_steps_keeps_the_invariants(model_endpoint: LoopEndpoint) -> None:
    def machine() -> Runs:
        return Runs(model_endpoint)

    try:
        run_state_machine_as_test(machine, settings=BOUNDS)  # type: ignore[arg-type]
    except InvariantViolation as broken:
        told = "".join(traceback.format_exception(broken.__cause__))
        pytest.fail(f"After these steps:\n{broken}\n{told}", pytrace=False)
