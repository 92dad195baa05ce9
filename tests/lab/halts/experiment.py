"""Servers that work on every path at once, while everything is halted again and again.

Each path has callers that begin work as long as the experiment lasts. A halt comes at a random
moment. The endpoint and the ledger of the tool show what has begun after its return; then it is
ended, what it has held continues, and the next one comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.kit.conditions import PATIENCE
from tests.lab.disturbances import DISTURBANCES
from tests.lab.halts.call_log import CallLog, read_key
from tests.lab.halts.callers import Callers
from tests.lab.halts.counting_endpoint import TAKEOVER, EndpointClient
from tests.lab.halts.operator import PARTS, NotCreated, Operator
from tests.lab.halts.paths import CONFIG, PATHS, TOOL
from tests.lab.halts.report import (
    ALL_RUNS,
    LIVE_RUNS,
    PastHalt,
    Report,
    find_broken_halt,
    judge_runs,
)
from tests.lab.halts.takeovers import Takeovers
from tests.lab.judge import judge_world
from tests.lab.world import World, open_world

RUN_SECONDS = 1.0
"""Longest wait for what a halt has stopped to go on before the next one."""

NEAR_SECONDS = 0.03
"""Longest time from there, when calls begin to be answered, to the next halt."""

QUIET_SECONDS = 0.08
"""Shortest time after the return of a halt in which a call would show."""

AWAKE_SECONDS = 0.5
"""The same after a stopped process continues."""

SHORT_STOP_SECONDS = 0.6
"""Longest time of a stop that does not wait for a halt."""

DEAD_STOP_SECONDS = 18.0
"""Time of a stop after which a process was declared dead (`liveness.DEAD_AFTER_SECONDS`)."""

DEAD_STOP_EVERY = 3
"""Of the long stops, one of so many lasts until the process was declared dead."""

LONG_SCOPES: Sequence[tuple[str, str | None]] = (("all", None), ("user", "me"), (PARTS, None))
"""Scopes of halts that stop every path."""

SCOPES: Mapping[tuple[str, str | None], int] = {
    ("all", None): 8,
    ("user", "me"): 6,
    ("model", "counted"): 4,
    ("tool", "mark"): 1,
    (PARTS, None): 1,
}
"""The scopes of twenty halts: `PARTS` takes as long as six others."""


@dataclass(frozen=True)
class Plan:
    """The length of an experiment and its disturbances."""

    halts: int
    """End after so many halts."""

    seconds: float = float("inf")
    """End after so many seconds, too."""

    kill_every: int = 0
    """Halts for each kill of a server; 0 for no kills."""

    stop_every: int = 0
    """Halts for each short stop of a process."""

    long_stop_every: int = 0
    """Halts for each stop that lasts longer than a permit."""

    callers: int = 1
    """Callers of each path."""

    seed: int = 0

    progress: float = float("inf")
    """Print the figures after so many seconds, again and again."""


class _Halt(NamedTuple):
    """A halt that has returned."""

    scope: str
    ids: Sequence[str]

    first_call: int
    """The number of calls that were read before it."""

    returned_at: float
    note: str = ""


class _HeldWork(NamedTuple):
    """A run that a halt has held."""

    path: str
    number: int

    created_at: float
    """Seconds on the monotonic clock of the machine."""


class Experiment:
    """The halts of a world, its callers, and what they have seen."""

    def __init__(self, world: World) -> None:
        self.report = Report()
        self._world = world
        self._endpoint = EndpointClient(world.endpoint.root_url)
        self._log = CallLog(self._endpoint, world.ledger)
        self._operator = Operator(world.servers, world.headers, self.report.answers)

        self._calls_since = Counter[str]()
        self._stopped: Collection[str] = ()
        self._halts: list[PastHalt] = []
        self._held_ids = set[str]()
        self._disturbing = asyncio.Lock()
        self._random = world.dice

    async def run(self, plan: Plan) -> Report:
        """Carry out an experiment, and wait until everything that was held has ended."""
        world = self._world
        callers = Callers(world.servers, world.headers, plan.callers, self.report.answers)
        takeovers = Takeovers(world, callers)
        callers.start()
        over = asyncio.Event()
        taking_over = asyncio.create_task(takeovers.take_over_often(over))
        try:
            await self._halt_often(plan, callers, takeovers)
        except AssertionError as error:
            for server in world.servers:
                error.add_note(server.describe())
            raise
        finally:
            over.set()
            callers.stop()
            await asyncio.wait([taking_over])
        taking_over.result()
        self.report.takeover_kills = takeovers.kills

        await self._operator.end_all()
        waiting = await asyncio.to_thread(callers.join)
        if waiting:
            self.report.problems["a caller waits for ever"] = waiting
        await self._judge_runs()
        self._endpoint.close()
        return self.report

    async def _halt_often(self, plan: Plan, callers: Callers, takeovers: Takeovers) -> None:
        began = time.monotonic()
        shown_at = began
        disturbances = set[asyncio.Task[None]]()
        number = 0
        is_long_stop_due = False
        while number < plan.halts and time.monotonic() - began < plan.seconds:
            number += 1
            if _is_due(number, plan.kill_every):
                disturbances.add(asyncio.create_task(self._kill()))
            if _is_due(number, plan.stop_every):
                disturbances.add(asyncio.create_task(self._stop_shortly()))

            is_long_stop_due = is_long_stop_due or _is_due(number, plan.long_stop_every)
            await self._wait_for_work()
            await asyncio.to_thread(self._endpoint.announce_halt)
            await asyncio.sleep(self._random.uniform(0.0, NEAR_SECONDS))
            try:
                callers.note_halt()
                # While a server starts, the other one has to be left alone.
                if is_long_stop_due and not self._disturbing.locked():
                    is_long_stop_due = False
                    halt = await self._halt_a_stopped_process()
                else:
                    halt = await self._halt()
                await self._finish(halt, callers, takeovers)
            except NotCreated:
                self.report.not_created += 1
                await self._operator.end_all()
                callers.note_resume()

            self.report.elapsed = time.monotonic() - began
            if time.monotonic() - shown_at > plan.progress:
                shown_at = time.monotonic()
                print(f"{self.report.describe()}\n", flush=True)

        if disturbances:
            await asyncio.wait(disturbances)
            for task in disturbances:
                task.result()

    async def _wait_for_work(self) -> None:
        """Wait until the work that the last halt has stopped goes on, a moment at most."""
        # A run waits for its takeover, whatever is halted.
        paths = [path for path in self._stopped if path != TAKEOVER]
        await asyncio.to_thread(self._endpoint.wait_for_calls, paths, RUN_SECONDS)

    async def _halt(self) -> _Halt:
        """Create a halt at once, and wait until a call after its return would show."""
        is_disturbed = self._disturbing.locked()
        ((scope, scope_id),) = self._random.choices([*SCOPES], [*SCOPES.values()])
        first_call = len(self._log.calls)
        began = time.monotonic()
        halt_ids = await self._operator.create(scope, scope_id)
        returned_at = time.monotonic()
        if not is_disturbed:
            self.report.seconds.append(returned_at - began)

        await asyncio.sleep(QUIET_SECONDS * self._random.uniform(1.0, 1.5))
        note = "while a process was killed or stopped" if is_disturbed else ""
        return _Halt(scope, halt_ids, first_call, returned_at, note)

    async def _halt_a_stopped_process(self) -> _Halt:
        """Halt while a process is stopped, and let it continue after the return of the halt."""
        async with self._disturbing:
            is_dead = self._random.randrange(DEAD_STOP_EVERY) == 0
            server = self._random.choice(self._world.servers)
            others = [other for other in self._world.servers if other is not server]
            pid = self._random.choice(server.workers)
            scope, scope_id = self._random.choice(LONG_SCOPES)
            first_call = len(self._log.calls)

            os.kill(pid, signal.SIGSTOP)
            stopped_at = time.monotonic()
            try:
                halt_ids = await self._operator.create(scope, scope_id, servers=others)
                returned_at = time.monotonic()
                if is_dead:
                    await asyncio.sleep(stopped_at + DEAD_STOP_SECONDS - time.monotonic())
                    self.report.dead_stops += 1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

            self.report.long_stops += 1
            note = f"after a stop of {time.monotonic() - stopped_at:.1f} s"
            await asyncio.sleep(AWAKE_SECONDS)
            return _Halt(scope, halt_ids, first_call, returned_at, note)

    async def _finish(self, halt: _Halt, callers: Callers, takeovers: Takeovers) -> None:
        """Judge a halt that has returned some time ago, and end it."""
        # A halt of the tool holds no run: its model goes on without it.
        held_works: list[_HeldWork] = []
        if halt.scope != "tool":
            held_works = await self._read_held(takeovers)
        ended_at = time.monotonic()
        self._halts.append(PastHalt(halt.scope, halt.returned_at, ended_at, halt.note))
        await self._read_log()
        refused = callers.read_refused()
        await self._operator.end(halt.ids)
        callers.note_resume()

        self.report.halts[halt.scope] += 1
        told = self._find_told(halt)
        held = Counter(work.path for work in held_works)
        held_new = Counter(work.path for work in held_works if self._is_new(work))
        self._stopped = {*held, *refused, *told}
        for path, figures in self.report.paths.items():
            figures.held += held[path]
            figures.held_new += held_new[path]
            figures.refused += refused[path]
            if path in self._stopped and self._calls_since[path]:
                figures.halts += 1
                figures.halts_new += held_new[path] > 0
                self._calls_since[path] = 0

    def _find_told(self, halt: _Halt) -> set[str]:
        """Return the paths with a model that was told after a halt that its tool is halted."""
        told_calls = [call for call in self._log.calls[halt.first_call :] if call.is_told]
        # The first call of a retry reports what the run before it was told.
        return {
            call.path for call in told_calls if call.at > halt.returned_at and call.path != "retry"
        }

    def _is_new(self, work: _HeldWork) -> bool:
        """Return True if a held run has made no call on its path yet."""
        times = self._log.times.get((work.path, work.number), ())
        # Those before are of the run that it repeats.
        calls = sum(at > work.created_at for at in times)
        return calls <= PATHS[work.path].first_calls

    async def _read_log(self) -> None:
        """Read the new calls, and judge them by the halts that were ended before or just now."""
        for call in await asyncio.to_thread(self._log.read):
            figures = self.report.paths[call.path]
            figures.calls += 1
            self._calls_since[call.path] += 1
            halt = find_broken_halt(self._halts, call)
            if halt is not None:
                figures.late += 1
                seconds = call.at - halt.returned_at
                self.report.late.append(
                    f"{call.path}: a call of the {call.kind} {seconds:.4f} s after the return of a"
                    f" halt of {halt.scope} {halt.note}"
                )

    async def _read_held(self, takeovers: Takeovers) -> list[_HeldWork]:
        """Return the runs that wait."""
        held_works: list[_HeldWork] = []
        clock_difference = time.monotonic() - time.time()
        for run_id, text, owner, created_at in await self._world.rows(LIVE_RUNS):
            path, number = read_key(text)
            # A run that hangs in its call does not wait for the halt.
            if path != TAKEOVER or owner != takeovers.worker_id:
                held_works.append(
                    _HeldWork(path, number, created_at / 1_000_000 + clock_difference)
                )
                self._held_ids.add(run_id)
        return held_works

    async def _kill(self) -> None:
        """Kill a server and start it again, or kill a worker, which its server replaces."""
        name = "server killed" if len(self._world.servers) > 1 else "worker killed"
        async with self._disturbing:
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            self.report.kills += 1
            async with DISTURBANCES[name](self._world, 0.0):
                pass

    async def _stop_shortly(self) -> None:
        """Stop a process for a moment, whatever happens meanwhile."""
        async with self._disturbing:
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            seconds = self._random.uniform(0.01, SHORT_STOP_SECONDS)
            # Another one may have just ended.
            with contextlib.suppress(ProcessLookupError):
                async with DISTURBANCES["process stopped"](self._world, seconds):
                    self.report.short_stops += 1

    async def _judge_runs(self) -> None:
        """Wait until nothing is held any more, and judge all runs."""
        # No halt follows: runs of takeovers need not last any more.
        await asyncio.to_thread(self._endpoint.finish)
        deadline = time.monotonic() + PATIENCE
        live_runs = await self._world.rows(LIVE_RUNS)
        while live_runs and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            live_runs = await self._world.rows(LIVE_RUNS)
        for _, text, *_ in live_runs:
            self.report.problems[f"{read_key(text)[0]}: left"] += 1

        await self._read_log()
        rows = await self._world.rows(ALL_RUNS)
        judge_runs(self.report, rows, self._log.calls, self._held_ids)
        explained = {"COMPLETED", "PAUSED"}
        if self.report.kills + self.report.takeover_kills + self.report.dead_stops:
            explained.add("ERROR WORKER_LOST")
        for ending, count in self.report.runs.items():
            if ending not in explained:
                self.report.problems[ending] += count
        self.report.problems += await judge_world(self._world)


def _is_due(number: int, every: int) -> bool:
    """Return True for one halt of so many, in their middle."""
    return every > 0 and number % every == every // 2


async def halt_often(deployment: str, plan: Plan, *, on_halt: str = "refuse") -> Report:
    """Open a world with agents for each path, and carry out an experiment in it."""
    async with open_world(
        deployment,
        config=CONFIG.replace("{on_halt}", on_halt),
        files={"marks.py": TOOL},
        endpoint="tests.lab.halts.counting_endpoint",
        seed=plan.seed,
    ) as world:
        return await Experiment(world).run(plan)
