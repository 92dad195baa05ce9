"""Kill servers under durable agents, and compare the records with a ledger that the tools write.

    python -m tests.chaos.durable --engine sqlite --kills 200
    python -m tests.chaos.durable --engine postgresql --kills 0 --restarts 20 --clients 50
        --paused 20

Each run makes several calls in turn, of a tool that must not be repeated and of one that
may be. Workers, servers, PostgreSQL and single processes of it are killed at random moments
(SIGKILL). A person who reads the ledger
answers what happened to the calls in doubt. In the end every run is complete, and

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
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import asyncpg
import httpx2

from tests.chaos.cluster import Cluster, Engine, PostgresCluster, Server, start_cluster
from tests.conditions import PATIENCE

REQUEST_SECONDS = 20.0
"""Time after which a client asks another server: one that is stopped or cut off never answers."""

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
tools = ["chaos_tools:pay", "chaos_tools:look", "chaos_tools:sign"]

[[teams]]
id = "durable-team"
durable = true
mode = "coordinate"
model = "plan"
members = ["durable"]
tools = ["chaos_tools:pay", "chaos_tools:look"]
"""

LIBRARY_AGENT = """
[[agents]]
id = "library"
durable = true
object = "chaos_library:agent"
"""

COMPONENTS = ("agents/durable", "teams/durable-team", "agents/library")
"""The components of the runs, one after the other."""

TOOLS = '''
import asyncio, json, os, random
import agentctl

LEDGER = {ledger!r}


def record(call_id, run_id, number, token):
    line = dict(call=call_id, run=run_id, number=number, token=token)
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (json.dumps(line) + "\\n").encode())
    os.close(file)


async def work(call_id, run_id, number):
    token = "%08x" % random.getrandbits(32)
    await asyncio.sleep(random.uniform(0, {seconds}))
    record(call_id, run_id, number, token)
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
from chaos_tools import work

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


@dataclass
class Figures:
    """The figures of an experiment.

    Attributes:
        repeated: calls that were made again after they had finished; must be 0.
        twice: payments that were made twice, and no person had decided so; must be 0.
        lost: runs that are not COMPLETED; must be 0.
        wrong: results in records that neither the ledger nor a person gave; must be 0.
        stops: seconds from each SIGTERM to the end of the server.
        unasked: payments whose call is not done, and about which no one was asked; must be 0.
    """

    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    calls: int = 0
    attempts: Counter[int] = field(default_factory=Counter)
    asked: int = 0
    retried: int = 0
    made_again: int = 0
    repeated: int = 0
    twice: int = 0
    lost: int = 0
    wrong: int = 0
    unasked: int = 0
    tracebacks: int = 0
    seconds: float = 0.0
    stops: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def is_right(self) -> bool:
        return not (self.repeated or self.twice or self.lost or self.wrong or self.unasked)


class Experiment:
    """Clients, a person who answers, and faults, on one cluster."""

    def __init__(
        self, cluster: Cluster, ledger: Path, seed: int, components: Sequence[str] = COMPONENTS
    ) -> None:
        self.figures = Figures()
        self.runs = list[str]()
        self._components = components
        self._places = dict[str, str]()
        self.answers: dict[str, list[str]] = defaultdict(list)
        self._cluster = cluster
        self._ledger = ledger
        self._dice = random.Random(seed)
        self._client = httpx2.AsyncClient(timeout=REQUEST_SECONDS)
        self._restarting = set[asyncio.Task[None]]()

    async def close(self) -> None:
        await self._client.aclose()

    def read_ledger(self) -> list[dict[str, Any]]:
        text = self._ledger.read_text() if self._ledger.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    async def send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request to any server until one answers."""
        headers = {"Authorization": f"Bearer {self._cluster.token}"} | options.pop("headers", {})
        deadline = time.monotonic() + PATIENCE
        while True:
            for server in random.sample(self._cluster.servers, len(self._cluster.servers)):
                with contextlib.suppress(httpx2.HTTPError):
                    url = f"{server.url}{path}"
                    response = await self._client.request(method, url, headers=headers, **options)
                    if response.status_code not in (429, 503):
                        return response
            assert time.monotonic() < deadline, "no server answers"
            await asyncio.sleep(0.1)

    async def work(self, until: asyncio.Event) -> None:
        """Start one run after the other; wait for the end of each."""
        while not until.is_set():
            names = [random.choice(("pay", "pay", "look")) for _ in range(CALLS)]
            component = self._components[len(self.runs) % len(self._components)]
            run_id = await self.start(names, component)
            deadline = time.monotonic() + PATIENCE
            while (await self.read(run_id))["status"] in ("PENDING", "RUNNING", "PAUSED"):
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(1)

    async def start(self, names: list[str], component: str = "agents/durable") -> str:
        """Start a run that calls some tools one after the other; return its id."""
        plan = [
            {
                "content": f"step {number}",
                "tool_calls": [
                    {
                        "id": f"call-{number}",
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps({"number": number})},
                    }
                ],
            }
            for number, name in enumerate(names)
        ]
        message = json.dumps([*plan, {"content": "done"}])
        body = {"message": message, "stream": False, "background": True}
        key = {"Idempotency-Key": f"{random.getrandbits(64):x}"}
        response = await self.send("POST", f"/{component}/runs", json=body, headers=key)
        assert response.status_code in (200, 202), response.text
        run_id: str = response.json()["run_id"]
        self.runs.append(run_id)
        self._places[run_id] = component
        return run_id

    async def pause(self, count: int) -> list[str]:
        """Start runs that wait for a person; return their ids."""
        run_ids = [await self.start(["pay", "sign", "pay"]) for _ in range(count)]
        for run_id in run_ids:
            while (await self.read(run_id))["status"] != "PAUSED":
                await asyncio.sleep(0.1)
        return run_ids

    async def approve(self, run_ids: list[str]) -> None:
        """Approve what runs wait for, and wait until they have ended."""
        for run_id in run_ids:
            page = (await self.send("GET", f"/approvals?status=pending&run_id={run_id}")).json()
            (row,) = page["data"]
            assert row["kind"] == "approval", row
            path = f"/agents/durable/approvals/{row['approval_id']}/decide"
            body = {"decision": "approve", "arguments_hash": row["arguments_hash"]}
            assert (await self.send("POST", path, json=body)).status_code == 200
        for run_id in run_ids:
            while (await self.read(run_id))["status"] != "COMPLETED":
                await asyncio.sleep(0.1)

    async def restart(self, count: int) -> None:
        """Stop the servers in turn with SIGTERM, and start each again."""
        for number in range(count):
            await asyncio.sleep(1)
            server = self._cluster.servers[number % len(self._cluster.servers)]
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.process.wait, 60)
            self.figures.stops.append(round(time.monotonic() - began, 2))
            await asyncio.to_thread(server.stop)
            await self._start(server)

    async def read(self, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = (await self.send("GET", f"/runs/{run_id}")).json()
        return run

    async def answer(self) -> None:
        """Answer the questions about calls in doubt by what the ledger has."""
        while True:
            page = (await self.send("GET", "/approvals?status=pending&limit=100")).json()
            for row in page["data"]:
                if row["kind"] == "outcome":
                    await self._answer(row)
            await asyncio.sleep(0.5)

    async def _answer(self, row: dict[str, Any]) -> None:
        call_id = f"{row['run_id']}:{row['tool_call_id']}"
        made = [line for line in self.read_ledger() if line["call"] == call_id]
        body: dict[str, Any] = {"arguments_hash": row["arguments_hash"]}
        if made:
            body |= {"decision": "complete", "result": made[-1]["token"]}
        else:
            body |= {"decision": "retry"}
        path = f"/{self._places[row['run_id']]}/approvals/{row['approval_id']}/decide"
        response = await self.send("POST", path, json=body)
        if response.status_code == 200:
            self.answers[call_id].append(body["decision"])
            self.figures.asked += 1
            self.figures.retried += body["decision"] == "retry"
        else:
            # It was decided before: the answer was lost with its server.
            assert response.status_code == 409, response.text
            self.answers[call_id].append(body["decision"])

    async def kill(self, count: int, pause: float) -> None:
        """Kill something again and again; print the counts every hundred kills."""
        for number in range(count):
            await asyncio.sleep(self._dice.uniform(0.2, 1.8) * pause)
            self.figures.kills[await self._kill(number)] += 1
            if number % 100 == 99:
                print(len(self.runs), "runs,", dict(self.figures.kills), flush=True)
        await asyncio.gather(*self._restarting)
        deadline = time.monotonic() + PATIENCE
        # A worker that has just started would not notice the end of its server in time.
        while len(await self._list_ready_workers()) < len(self._cluster.live_workers()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.5)

    async def _kill(self, number: int) -> str:
        """Kill a part of the cluster, most often a worker; return what it was."""
        cluster = self._cluster
        if isinstance(cluster, PostgresCluster) and number % 10 == 4:
            if number % 20 == 4:
                await cluster.crash_database(self._dice.choice((0.0, 0.5)), kill=True)
                return "PostgreSQL"
            await asyncio.to_thread(cluster.postgres.kill_backend)
            return "process of PostgreSQL"
        while True:
            servers = [server for server in cluster.servers if server.is_running]
            if number % 20 == 19 and servers:
                self._restart(self._dice.choice(servers))
                return "server with its workers"
            # One stays: a run ends that loses its process three times in one step.
            if number % 20 != 19 and len(pids := await self._list_ready_workers()) > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._dice.choice(pids), signal.SIGKILL)
                    return "worker"
            await asyncio.sleep(0.1)

    async def _list_ready_workers(self) -> list[int]:
        """Return the workers that have registered: a server delays the start of one that never was.

        A pid of the database alone may be that of another program by now.
        """
        live = self._cluster.live_workers()
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            ready = {row[0] for row in await self._cluster.rows("SELECT pid FROM workers")}
            return [pid for pid in live if pid in ready]
        return []

    def _restart(self, server: Server) -> None:
        server.kill()
        task = asyncio.create_task(self._start(server))
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _start(self, server: Server) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return await asyncio.to_thread(server.start)
            except AssertionError:
                # Without a database it exits.
                assert time.monotonic() < deadline

    async def audit(self) -> None:
        """Compare the records with the ledger."""
        figures = self.figures
        by_call = defaultdict[str, list[dict[str, Any]]](list)
        highest: dict[str, int] = {}
        for line in self.read_ledger():
            by_call[line["call"]].append(line)
            figures.made_again += len(by_call[line["call"]]) > 1
            figures.repeated += line["number"] < highest.get(line["run"], -1)
            highest[line["run"]] = max(line["number"], highest.get(line["run"], -1))
        for run_id in self.runs:
            run = await self.read(run_id)
            figures.runs += 1
            figures.ends[run["status"]] += 1
            if run["status"] != "COMPLETED" or not run["content"].endswith("done"):
                figures.lost += 1
                print("lost:", run_id, run["status"], run["error"], file=sys.stderr)
            for tool in run["tools"] or ():
                call_id = f"{run_id}:{tool['tool_call_id']}"
                tokens = [line["token"] for line in by_call[call_id]]
                figures.calls += 1
                figures.wrong += tool["result"] not in tokens
                if tool["tool_name"] == "pay":
                    again = self.answers[call_id].count("retry")
                    figures.twice += len(tokens) > 1 + again
                    figures.unasked += tool["result"] != tokens[-1] if tokens else True
        rows = await self._cluster.rows("SELECT attempt FROM runs")
        figures.attempts = Counter(row[0] for row in rows)
        leftover = await self._cluster.rows("SELECT count(*) FROM run_steps")
        assert leftover[0][0] == 0, "ended runs have a journal"
        logs = [log.read_text() for server in self._cluster.servers for log in server.logs]
        figures.tracebacks = sum(text.count("Traceback") for text in logs)


async def run_experiment(
    engine: Engine,
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
    folder = Path(tempfile.mkdtemp(prefix="agentctl-ledger-"))
    ledger = folder / "ledger.jsonl"
    files = {
        "chaos_tools.py": TOOLS.format(ledger=str(ledger), seconds=call_seconds),
        "chaos_library.py": LIBRARY,
    }
    began = time.monotonic()
    extra, components = (AGENT + LIBRARY_AGENT, COMPONENTS) if library else (AGENT, COMPONENTS[:2])
    try:
        async with start_cluster(
            engine, durable=kills > 0, workers=3 if kills else 0, extra=extra, files=files
        ) as cluster:
            experiment = Experiment(cluster, ledger, seed, components)
            until = asyncio.Event()
            workers = [asyncio.create_task(experiment.work(until)) for _ in range(clients)]
            person = asyncio.create_task(experiment.answer())
            waiting = await experiment.pause(paused)
            await experiment.kill(kills, pause)
            await experiment.restart(restarts)
            until.set()
            await asyncio.wait_for(asyncio.gather(*workers), PATIENCE)
            await experiment.approve(waiting)
            person.cancel()
            await experiment.audit()
            await experiment.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    experiment.figures.seconds = time.monotonic() - began
    return experiment.figures


def main() -> int:
    """Run the experiment and print its figures; return 1 if something was lost or repeated."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.durable", description=__doc__)
    parser.add_argument("--engine", choices=get_args(Engine), default="sqlite")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--paused", type=int, default=0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--pause", type=float, default=1.5, help="seconds between two kills")
    parser.add_argument("--call-seconds", type=float, default=0.3)
    options = parser.parse_args()
    figures = asyncio.run(
        run_experiment(
            options.engine,
            options.clients,
            kills=options.kills,
            restarts=options.restarts,
            paused=options.paused,
            pause=options.pause,
            call_seconds=options.call_seconds,
        )
    )
    print(figures)
    return 0 if figures.is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
