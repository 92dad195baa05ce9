"""Approved calls of a real program, while the servers that execute them are killed.

An agent asks for a commit (a call of the program `mcp-server-git`), a person approves it, and a
server executes it. Servers are killed with SIGKILL: before each statement of a leg in turn, then at
random moments under load. Another server goes on. A person who reads the ledger answers what
happened to the calls in doubt. In the end each approved call was made exactly once, and no record
claims what the ledger does not have.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.conditions import PATIENCE
from tests.kit.releases import NEW, Program
from tests.lab.clients import Client
from tests.lab.git_ledger import GitLedger
from tests.lab.judge import judge_world
from tests.lab.world import World, open_world

__all__ = ["Experiment", "Figures", "add_options", "run", "run_experiment"]

MOST_STATEMENTS = 120
"""More statements than any leg has."""

KILLED = Program((sys.executable, str(Path(__file__).with_name("killed_server.py"))), {})
"""A server that kills itself before a statement."""

_AGENT = """
[[models]]
id = "committer"
provider = "openai"
model = "tool:git_git_commit"
base_url = "{url}"
retries = 0

[[mcp_servers]]
id = "git"
command = "COMMAND"
args = ["--repository", "FOLDER"]

[[agents]]
id = "clerk"
model = "committer"
tools = ["mcp:git"]
approve = { "git_git_commit" = "other" }
"""


@dataclass
class Figures:
    """The figures of an experiment."""

    kills: int = 0
    """Servers that were killed."""

    calls: int = 0
    """Approved calls."""

    rejected: int = 0

    doubtful: int = 0
    """Calls that were `unknown`, and about which a person was asked."""

    retried: int = 0

    seconds: float = 0.0

    ends: Counter[str] = field(default_factory=Counter)

    violations: Counter[str] = field(default_factory=Counter)


class Experiment:
    """Ann, whose runs ask for commits, and a person who decides."""

    def __init__(self, world: World, ledger: GitLedger) -> None:
        self.figures = Figures()
        self._world = world
        self._ledger = ledger
        self._client = Client(world)
        scopes = ("agents:run", "agents:read", "sessions:read")
        self._ann = world.servers[0].deployment.bearer("ann", *scopes, seconds=86_400)

    async def close(self) -> None:
        await self._client.close()

    async def kill_at_each_statement(self, step: int) -> None:
        """Kill the server that decides and executes, before every STEPth statement of the leg."""
        victim = self._world.servers[0]
        for number in range(1, MOST_STATEMENTS, step):
            await self._start_all()
            await asyncio.to_thread(victim.kill)
            victim.program = KILLED
            victim.variables["AGENTCTL_KILL_AT"] = str(number)
            await asyncio.to_thread(victim.start)
            victim.program = NEW
            del victim.variables["AGENTCTL_KILL_AT"]

            message = f"statement {number}"
            run = await self._pause_run(message)
            (row,) = await self._client.list_approvals(f"run_id={run['run_id']}")
            with contextlib.suppress(ConnectionError):
                await self._client.decide(row, "approve", server=victim)
            await self._settle(run["run_id"], message)
            was_killed = not victim.is_alive
            self.figures.kills += was_killed
            self._report(message)
            if not was_killed:
                return

    async def kill_at_random(self, moments: int, runs: int) -> None:
        """Kill servers at random moments while they execute `runs` legs each round."""
        dice = self._world.dice
        wanted = self.figures.kills + moments
        number = 0
        while self.figures.kills < wanted:
            await self._start_all()
            number += 1
            messages = [f"round {number} call {index}" for index in range(runs)]
            paused = await asyncio.gather(*map(self._pause_run, messages))
            queries = [f"run_id={run['run_id']}" for run in paused]
            asked = await asyncio.gather(*map(self._client.list_approvals, queries))
            decisions = [
                self._client.decide(row, "reject" if dice.random() < 0.1 else "approve")
                for (row,) in asked
            ]
            deciding = asyncio.gather(*decisions)
            servers = dice.sample(self._world.servers, dice.randint(1, len(self._world.servers)))
            for server in servers:
                await asyncio.sleep(dice.random() * 0.4)
                await asyncio.to_thread(server.kill)
                self.figures.kills += 1

            await self._start_all()
            await deciding
            settling = zip(paused, messages, strict=True)
            await asyncio.gather(*(self._settle(run["run_id"], text) for run, text in settling))
            self._report(f"round {number}")

    async def judge(self) -> None:
        """Judge the rows of all runs, which have ended."""
        await self._start_all()
        self.figures.violations += await judge_world(self._world)

    async def _start_all(self) -> None:
        for server in self._world.servers:
            if server.is_running and not server.is_alive:
                await asyncio.to_thread(server.kill)
            if not server.is_running:
                await asyncio.to_thread(server.start)

    async def _pause_run(self, message: str) -> dict[str, Any]:
        """Start a run that asks for a commit; return its record."""
        arguments = {"repo_path": str(self._ledger.folder), "message": message}
        body = {"message": json.dumps(arguments), "stream": False, "background": True}
        path = "/agents/clerk/runs"
        run = (await self._client.send("POST", path, headers=self._ann, json=body)).json()
        return await self._client.wait_for(run["run_id"], "PAUSED")

    async def _settle(self, run_id: str, message: str) -> None:
        """Answer the questions about a run by the ledger until it has ended, and judge its call."""
        figures = self.figures
        deadline = time.monotonic() + PATIENCE
        ends = ("COMPLETED", "ERROR", "CANCELLED")
        while (run := await self._client.wait_for(run_id, "PAUSED", *ends))["status"] == "PAUSED":
            for row in await self._client.list_approvals(f"run_id={run_id}"):
                if row["status"] == "pending":
                    await self._answer(row, message)
            assert time.monotonic() < deadline, run

        figures.ends[run["status"]] += 1
        if run["status"] != "COMPLETED":
            figures.violations[f"runs that are {run['status']}"] += 1
        rows = await self._client.list_approvals(f"run_id={run_id}")
        call = next(row for row in rows if row["kind"] == "approval")
        made = self._ledger.count()[message]
        if made > 1:
            figures.violations["calls that the ledger has more than once"] += 1
        if call["status"] == "rejected":
            figures.rejected += 1
            if made:
                figures.violations["rejected calls that the ledger has"] += 1
            return
        figures.calls += 1
        if call["execution"] == "done" and not made:
            figures.violations["calls that are done, and not in the ledger"] += 1
        if made and call["execution"] != "done":
            figures.violations["calls in the ledger that are neither done nor answered"] += 1

    async def _answer(self, row: dict[str, Any], message: str) -> None:
        if row["kind"] == "approval":
            # The decision of this round died with its server.
            await self._client.decide(row, "approve")
            return
        self.figures.doubtful += 1
        alive = {each.process.pid for each in self._world.servers if each.is_alive}
        await asyncio.to_thread(self._ledger.wait_until_quiet, alive)
        if self._ledger.count()[message]:
            result = "the ledger has it"
            await self._client.decide(row, "complete", arguments_hash=None, result=result)
        else:
            self.figures.retried += 1
            await self._client.decide(row, "retry")

    def _report(self, place: str) -> None:
        figures = self.figures
        print(
            f"{place}: {figures.kills} kills, {figures.calls} calls, {figures.doubtful} in doubt,"
            f" {dict(figures.ends)}",
            file=sys.stderr,
            flush=True,
        )


async def run_experiment(
    deployment: str, git: Path, *, step: int, moments: int, runs: int, seed: int
) -> Figures:
    """Kill servers that execute approved calls, and return the figures.

    Args:
        git: the program `mcp-server-git`.
        step: kill before every STEPth statement; 0 for none.
        moments: kills at random moments.
        runs: legs at the same time.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentctl-ledger-") as folder:
        ledger = GitLedger(Path(folder) / "ledger")
        config = _AGENT.replace("COMMAND", str(git)).replace("FOLDER", str(ledger.folder))
        async with open_world(deployment, config=config, is_flushed=True, seed=seed) as world:
            experiment = Experiment(world, ledger)
            if step:
                await experiment.kill_at_each_statement(step)
            if moments:
                await experiment.kill_at_random(moments, runs)
            await experiment.judge()
            await experiment.close()
    experiment.figures.seconds = round(time.monotonic() - began, 1)
    return experiment.figures


def add_options(parser: argparse.ArgumentParser) -> None:
    deployments = ("two on sqlite", "three on postgresql")
    parser.add_argument("--git", type=Path, required=True, help="the program mcp-server-git")
    parser.add_argument("--deployment", choices=deployments, default=deployments[0])
    parser.add_argument("--step", type=int, default=1, help="kill at every Nth statement; 0: none")
    parser.add_argument("--moments", type=int, default=0, help="kills at random moments")
    parser.add_argument("--runs", type=int, default=8, help="legs at the same time")
    parser.add_argument("--seed", type=int, default=1)


async def run(options: argparse.Namespace) -> Counter[str]:
    """Run the experiment, print its figures, and return the violations."""
    figures = await run_experiment(
        options.deployment,
        options.git.absolute(),
        step=options.step,
        moments=options.moments,
        runs=options.runs,
        seed=options.seed,
    )
    print(json.dumps({**vars(figures), "ends": dict(figures.ends)}))
    return figures.violations
