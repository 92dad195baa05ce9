"""Durable runs with a ledger, while workers, servers and the database are killed or restarted.

Each run makes several calls in turn, of a tool that must not be repeated and of one that may be. A
person who reads the ledger answers what happened to the calls in doubt. In the end every run is
complete, and

- no call was made again after the next one had begun: it had finished;
- a call that must not be repeated was made once, or again because the person had decided so;
- the result in the record is that of the call in the ledger, or that of the person.

With `--restarts` the servers are stopped with SIGTERM in turn and started again instead: no run
ends otherwise than COMPLETED, no call is in doubt, and no server is waited for longer than a call
takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kit.conditions import PATIENCE, wait_until
from tests.lab.clients import Client
from tests.lab.disturbances import DISTURBANCES
from tests.lab.judge import judge_world
from tests.lab.world import World, open_world

__all__ = ["Experiment", "Figures", "add_options", "run", "run_experiment"]

CALLS = 6
"""Calls of each run."""

AGENT = """
[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[agents]]
id = "durable"
durable = true
model = "plan"
tools = ["lab_tools:pay", "lab_tools:look", "lab_tools:sign"]

[[teams]]
id = "durable-team"
durable = true
mode = "coordinate"
model = "plan"
members = ["durable"]
tools = ["lab_tools:pay", "lab_tools:look"]
"""

LIBRARY_AGENT = """
[[agents]]
id = "library"
durable = true
object = "lab_library:agent"
"""

COMPONENTS = ("agents/durable", "teams/durable-team", "agents/library")
"""The components of the runs, one after the other."""

TOOLS = '''
import asyncio
import random

import agentctl
import lab_ledger


async def work(call_id, run_id, number):
    token = "%08x" % random.getrandbits(32)
    await asyncio.sleep(random.uniform(0, {seconds}))
    lab_ledger.write(call=call_id, run=run_id, number=number, token=token)
    await asyncio.sleep(random.uniform(0, {seconds}))
    return token


async def call(context, number):
    token = await work(context.call_id, context.run_id, number)
    context.state["last"] = number
    return token


async def pay(number: int, context: agentctl.RunContext) -> str:
    """Pay."""
    return await call(context, number)


@agentctl.tool(approve="user")
async def sign(number: int, context: agentctl.RunContext) -> str:
    """Sign."""
    return await call(context, number)


@agentctl.tool(idempotent=True)
async def look(number: int, context: agentctl.RunContext) -> str:
    """Look."""
    return await call(context, number)
'''

LIBRARY = '''
from pydantic_ai import Agent, RunContext as Run

from agentctl import RunContext
from agentctl.pydantic_ai import Model
from lab_tools import work

agent = Agent(Model("plan"), deps_type=RunContext)


@agent.tool
async def pay(run: Run[RunContext], number: int) -> str:
    """Pay."""
    return await work(f"{run.deps.run_id}:{run.tool_call_id}", run.deps.run_id, number)


@agent.tool(metadata={"idempotent": True})
async def look(run: Run[RunContext], number: int) -> str:
    """Look."""
    return await work(f"{run.deps.run_id}:{run.tool_call_id}", run.deps.run_id, number)
'''

_WORKING = ("PENDING", "RUNNING", "PAUSED")


@dataclass
class Figures:
    """The figures of an experiment."""

    kills: Counter[str] = field(default_factory=Counter)

    runs: int = 0

    calls: int = 0

    attempts: Counter[int] = field(default_factory=Counter)
    """The runs by the number of processes that have worked on them."""

    asked: int = 0
    """Calls about which a person was asked."""

    retried: int = 0
    """Of these, calls that the person let be made again."""

    made_again: int = 0
    """Calls in the ledger that are not the first one with their id."""

    stops: list[float] = field(default_factory=list)
    """Seconds from each SIGTERM to the end of the server."""

    ends: Counter[str] = field(default_factory=Counter)

    seconds: float = 0.0

    violations: Counter[str] = field(default_factory=Counter)


class Experiment:
    """Clients, and a person who answers, in one world."""

    def __init__(self, world: World, components: Sequence[str] = COMPONENTS) -> None:
        self.figures = Figures()
        self.runs: list[str] = []
        self._world = world
        self._components = components
        self._answers: dict[str, list[str]] = defaultdict(list)
        self._client = Client(world)
        self._ending = set[asyncio.Task[None]]()

    async def close(self) -> None:
        await self._client.close()

    async def work(self, until: asyncio.Event) -> None:
        """Start one run after the other; wait for the end of each."""
        while not until.is_set():
            names = [random.choice(("pay", "pay", "look")) for _ in range(CALLS)]
            component = self._components[len(self.runs) % len(self._components)]
            run_id = await self.start(names, component)
            deadline = time.monotonic() + PATIENCE
            while (await self._client.read(run_id))["status"] in _WORKING:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(1)

    async def start(self, names: list[str], component: str = "agents/durable") -> str:
        """Start a run that calls some tools one after the other; return its id."""
        plan = [_build_step(number, name) for number, name in enumerate(names)]
        message = json.dumps([*plan, {"content": "done"}])
        body = {"message": message, "stream": False, "background": True}
        key = {"Idempotency-Key": f"{random.getrandbits(64):x}"}
        response = await self._client.send("POST", f"/{component}/runs", json=body, headers=key)
        assert response.status_code in (200, 202), response.text
        run_id: str = response.json()["run_id"]
        self.runs.append(run_id)
        return run_id

    async def pause(self, count: int) -> list[str]:
        """Start runs that wait for a person; return their ids."""
        run_ids = [await self.start(["pay", "sign", "pay"]) for _ in range(count)]
        for run_id in run_ids:
            await self._client.wait_for(run_id, "PAUSED")
        return run_ids

    async def approve(self, run_ids: list[str]) -> None:
        """Approve what runs wait for, and wait until they have ended."""
        for run_id in run_ids:
            (row,) = await self._client.list_approvals(f"status=pending&run_id={run_id}")
            assert row["kind"] == "approval", row
            await self._client.decide(row, "approve")
        for run_id in run_ids:
            await self._client.wait_for(run_id, "COMPLETED")

    async def answer(self) -> None:
        """Answer the questions about calls in doubt by what the ledger has."""
        while True:
            for row in await self._client.list_approvals("status=pending"):
                if row["kind"] == "outcome":
                    await self._answer(row)
            await asyncio.sleep(0.5)

    async def _answer(self, row: dict[str, Any]) -> None:
        call_id = f"{row['run_id']}:{row['tool_call_id']}"
        made = [entry for entry in self._world.ledger.read() if entry["call"] == call_id]
        decision = "complete" if made else "retry"
        fields = {"result": made[-1]["token"]} if made else {}
        is_first = await self._client.decide(row, decision, **fields)
        self._answers[call_id].append(decision)
        self.figures.asked += is_first
        self.figures.retried += is_first and decision == "retry"

    async def kill(self, count: int, pause: float) -> None:
        """Kill something again and again; print the counts every hundred kills."""
        dice = self._world.dice
        for number in range(count):
            await asyncio.sleep(dice.uniform(0.2, 1.8) * pause)
            name = self._choose(number)
            self.figures.kills[name] += 1
            seconds = dice.choice((0.0, 0.5)) if name == "PostgreSQL killed" else 0.0
            killing = asyncio.create_task(self._disturb(name, seconds))
            if name != "server killed":
                await killing
            elif len(self._world.servers) > 1:
                # The other one goes on meanwhile, and is killed, too.
                self._ending.add(killing)
                killing.add_done_callback(self._ending.discard)
            else:
                await killing
            if number % 100 == 99:
                print(len(self.runs), "runs,", dict(self.figures.kills), flush=True)

        await asyncio.gather(*self._ending)
        await wait_until(self._has_all_workers)

    def _choose(self, number: int) -> str:
        """Return the disturbance of a turn: most often the kill of a worker."""
        if number % 20 == 19:
            return "server killed"
        if self._world.postgres is None or number % 10 != 4:
            return "worker killed"
        return "PostgreSQL killed" if number % 20 == 4 else "process of PostgreSQL killed"

    async def _disturb(self, name: str, seconds: float) -> None:
        async with DISTURBANCES[name](self._world, seconds):
            pass

    async def _has_all_workers(self) -> bool:
        """A worker that has just started would not notice the end of its server in time."""
        ready = await self._world.list_ready_workers()
        return len(ready) >= len(self._world.list_workers())

    async def restart(self, count: int) -> None:
        """Stop the servers in turn with SIGTERM, and start each again."""
        for number in range(count):
            await asyncio.sleep(1)
            server = self._world.servers[number % len(self._world.servers)]
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.process.wait, PATIENCE)
            self.figures.stops.append(round(time.monotonic() - began, 2))
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start_until_it_stays)

    async def judge(self) -> None:
        """Compare the records with the ledger."""
        figures = self.figures
        violations = figures.violations
        violations += await judge_world(self._world)
        by_call = defaultdict[str, list[str]](list)
        highest: dict[str, int] = {}
        for entry in self._world.ledger.read():
            by_call[entry["call"]].append(entry["token"])
            figures.made_again += len(by_call[entry["call"]]) > 1
            if entry["number"] < highest.get(entry["run"], -1):
                violations["calls that were made again after they had finished"] += 1
            highest[entry["run"]] = max(entry["number"], highest.get(entry["run"], -1))

        for run_id in self.runs:
            run = await self._client.read(run_id)
            figures.runs += 1
            figures.ends[run["status"]] += 1
            if run["status"] != "COMPLETED" or not run["content"].endswith("done"):
                violations["runs that are not COMPLETED"] += 1
                print("lost:", run_id, run["status"], run["error"], file=sys.stderr)
            for tool in run["tools"] or ():
                self._judge_call(tool, by_call[f"{run_id}:{tool['tool_call_id']}"], run_id)
        rows = await self._world.rows("SELECT attempt FROM runs")
        figures.attempts = Counter(row[0] for row in rows)

    def _judge_call(self, tool: dict[str, Any], tokens: list[str], run_id: str) -> None:
        """Judge the record of a call by the results that the ledger has of it, oldest first."""
        violations = self.figures.violations
        self.figures.calls += 1
        if tool["result"] not in tokens:
            violations["results that neither the ledger nor a person gave"] += 1
        if tool["tool_name"] != "pay":
            return
        again = self._answers[f"{run_id}:{tool['tool_call_id']}"].count("retry")
        if len(tokens) > 1 + again:
            violations["payments that were made twice, and no person had decided so"] += 1
        if not tokens or tool["result"] != tokens[-1]:
            violations["payments that are not done, and about which no one was asked"] += 1


def _build_step(number: int, name: str) -> dict[str, Any]:
    """Build the answer of a model that calls a tool."""
    function = {"name": name, "arguments": json.dumps({"number": number})}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    return {"content": f"step {number}", "tool_calls": [call]}


async def run_experiment(
    deployment: str,
    clients: int,
    *,
    kills: int = 0,
    restarts: int = 0,
    paused: int = 0,
    pause: float,
    call_seconds: float,
    library: bool = True,
    seed: int = 5,
) -> Figures:
    """Kill or restart servers under `clients` runs at once, and return the figures.

    Args:
        library: also run an agent of pydantic-ai, which takes each worker a second to import.
    """
    files = {"lab_tools.py": TOOLS.format(seconds=call_seconds), "lab_library.py": LIBRARY}
    components = COMPONENTS if library else COMPONENTS[:2]
    config = AGENT + LIBRARY_AGENT if library else AGENT
    began = time.monotonic()
    async with open_world(
        deployment, config=config, files=files, is_flushed=kills > 0, seed=seed
    ) as world:
        experiment = Experiment(world, components)
        until = asyncio.Event()
        working = [asyncio.create_task(experiment.work(until)) for _ in range(clients)]
        person = asyncio.create_task(experiment.answer())
        waiting = await experiment.pause(paused)
        await experiment.kill(kills, pause)
        await experiment.restart(restarts)
        until.set()
        await asyncio.wait_for(asyncio.gather(*working), PATIENCE)
        await experiment.approve(waiting)
        person.cancel()
        await experiment.judge()
        await experiment.close()
    experiment.figures.seconds = time.monotonic() - began
    return experiment.figures


def add_options(parser: argparse.ArgumentParser) -> None:
    deployments = ("sqlite", "postgresql", "postgresql, workers")
    parser.add_argument("--deployment", choices=deployments, default="sqlite")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--paused", type=int, default=0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between two kills")
    parser.add_argument("--call-seconds", type=float, default=0.3)


async def run(options: argparse.Namespace) -> Counter[str]:
    """Run an experiment, print its figures, and return the violations."""
    figures = await run_experiment(
        options.deployment,
        options.clients,
        kills=options.kills,
        restarts=options.restarts,
        paused=options.paused,
        pause=options.pause,
        call_seconds=options.call_seconds,
    )
    print(figures)
    return figures.violations
