"""Kill servers while they execute approved calls, and compare the ledger with the records.

    python -m tests.kills.approvals --git .peers/ledger/bin/mcp-server-git

An agent asks for a commit (a call of the real program `mcp-server-git`), a person approves it, and
a server executes it. Servers are killed with SIGKILL: before each statement of a leg in turn, then
at random moments under load. Another server goes on. A person who reads the ledger answers what
happened to the calls in doubt. In the end each approved call was made exactly once, and no record
claims what the ledger does not have.

`--database sqlite` has two servers on one file, `--database postgres` three on one database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.conditions import PATIENCE
from tests.deployment import Deployment, create_deployment
from tests.endpoint import start_endpoint
from tests.kills.ledger import GitLedger
from tests.postgres import postgres_schemas, running_postgres
from tests.process import AGENTCTL, ServerProcess, serve_config

REQUEST_SECONDS = 30.0
"""Time after which a request is sent again: a server that is killed may never answer."""

MOST_STATEMENTS = 120
"""More statements than any leg has."""

PROGRAM = (sys.executable, str(Path(__file__).with_name("killed_server.py")))

_AGENT = """
[[models]]
id = "committer"
provider = "openai"
model = "tool:git_git_commit"
base_url = "{model_url}"
retries = 0

[[mcp_servers]]
id = "git"
command = "{command}"
args = ["--repository", "{folder}"]

[[agents]]
id = "clerk"
model = "committer"
tools = ["mcp:git"]
approve = {{ "git_git_commit" = "other" }}
"""


@dataclass
class Figures:
    """The figures of a test.

    Attributes:
        kills: servers that were killed.
        calls: approved calls.
        doubtful: calls that were `unknown`, and about which a person was asked.
        twice: calls that the ledger has more than once; must be 0.
        missing: calls that are `done` without an entry in the ledger; must be 0.
        unasked: entries of the ledger whose call is neither `done` nor answered; must be 0.
        unapproved: entries of rejected calls; must be 0.
    """

    kills: int = 0
    calls: int = 0
    rejected: int = 0
    doubtful: int = 0
    retried: int = 0
    twice: int = 0
    missing: int = 0
    unasked: int = 0
    unapproved: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def is_right(self) -> bool:
        wrong = self.twice + self.missing + self.unasked + self.unapproved
        return not wrong and set(self.ends) <= {"COMPLETED"}


class Cluster:
    """Servers on one database, any of which may be killed and is started again."""

    def __init__(self, deployment: Deployment, ledger: GitLedger, size: int) -> None:
        self.deployment = deployment
        self.ledger = ledger
        self._size = size
        self._servers: dict[int, tuple[ExitStack, ServerProcess]] = {}
        self._user = deployment.bearer("ann", "agents:run", "agents:read", "sessions:read")
        self._boss = deployment.bearer("boss", "agent_os:admin", seconds=86_400)

    def start(self, slot: int, *, kill_at: int | None = None) -> None:
        """Start a server; with `kill_at` it kills itself before that statement of a leg."""
        stack = ExitStack()
        variables = {} if kill_at is None else {"AGENTCTL_KILL_AT": str(kill_at)}
        program = PROGRAM if kill_at else AGENTCTL
        server = stack.enter_context(
            serve_config(
                self.deployment.path, log=f"server-{slot}.log", variables=variables, program=program
            )
        )
        self._servers[slot] = stack, server

    def start_all(self) -> None:
        for slot in range(self._size):
            if slot not in self._servers or self._servers[slot][1].process.poll() is not None:
                self.start(slot)

    def kill(self, slot: int) -> None:
        process = self._servers[slot][1].process
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()

    def stop_all(self) -> None:
        for stack, _ in self._servers.values():
            stack.close()
        self._servers.clear()

    def is_alive(self, slot: int) -> bool:
        return self._servers[slot][1].process.poll() is None

    def alive(self) -> list[int]:
        return [slot for slot in self._servers if self.is_alive(slot)]

    def wait_until_quiet(self) -> None:
        pids = {self._servers[slot][1].process.pid for slot in self.alive()}
        self.ledger.wait_until_quiet(pids)

    async def send(
        self, method: str, path: str, *, slot: int | None = None, **options: Any
    ) -> httpx2.Response:
        """Send a request to a server that lives; another one if it dies meanwhile."""
        headers = options.pop("headers", self._boss)
        deadline = time.monotonic() + PATIENCE
        while True:
            slots = self.alive() if slot is None else [slot]
            if slots:
                url = self._servers[random.choice(slots)][1].url
                with contextlib.suppress(httpx2.HTTPError):
                    async with httpx2.AsyncClient(timeout=REQUEST_SECONDS) as client:
                        response = await client.request(
                            method, f"{url}{path}", headers=headers, **options
                        )
                        if response.status_code != 503:
                            return response
                if slot is not None:
                    raise ConnectionError
            assert time.monotonic() < deadline, "no server answers"
            await asyncio.sleep(0.05)

    async def pause_run(self, message: str) -> dict[str, Any]:
        """Start a run that asks for a commit; return its record."""
        arguments = {"repo_path": str(self.ledger.folder), "message": message}
        body = {"message": json.dumps(arguments), "stream": False, "background": True}
        run = (await self.send("POST", "/agents/clerk/runs", headers=self._user, json=body)).json()
        return await self.wait_for(run["run_id"], "PAUSED")

    async def wait_for(self, run_id: str, *statuses: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            run: dict[str, Any] = (await self.send("GET", f"/runs/{run_id}")).json()
            if run.get("status") in statuses:
                return run
            assert time.monotonic() < deadline, run
            await asyncio.sleep(0.05)

    async def approvals(self, run_id: str) -> list[dict[str, Any]]:
        """Return the approvals of a run, oldest first."""
        page = (await self.send("GET", f"/approvals?run_id={run_id}&sort_order=asc")).json()
        rows: list[dict[str, Any]] = page["data"]
        return rows

    async def decide(
        self, approval: dict[str, Any], decision: str, *, slot: int | None = None, **fields: Any
    ) -> None:
        path = f"/agents/clerk/approvals/{approval['approval_id']}/decide"
        body = {"decision": decision, "arguments_hash": approval["arguments_hash"], **fields}
        response = await self.send("POST", path, slot=slot, json=body)
        assert response.status_code in (200, 409), response.text

    async def settle(self, run_id: str, message: str, figures: Figures) -> None:
        """Answer the questions about a run by the ledger, until it has ended."""
        deadline = time.monotonic() + PATIENCE
        while True:
            run = await self.wait_for(run_id, "PAUSED", "COMPLETED", "ERROR", "CANCELLED")
            if run["status"] != "PAUSED":
                break
            pending = [row for row in await self.approvals(run_id) if row["status"] == "pending"]
            for row in pending:
                await self._answer(row, message, figures)
            assert time.monotonic() < deadline, run
        figures.ends[run["status"]] += 1
        rows = await self.approvals(run_id)
        call = next(row for row in rows if row["kind"] == "approval")
        made = self.ledger.count()[message]
        figures.twice += made > 1
        if call["status"] == "rejected":
            figures.rejected += 1
            figures.unapproved += made
            return
        figures.calls += 1
        figures.missing += call["execution"] == "done" and not made
        figures.unasked += bool(made) and call["execution"] != "done"

    async def _answer(self, row: dict[str, Any], message: str, figures: Figures) -> None:
        if row["kind"] == "approval":
            # The decision of this round died with its server.
            await self.decide(row, "approve")
            return
        figures.doubtful += 1
        await asyncio.to_thread(self.wait_until_quiet)
        if self.ledger.count()[message]:
            await self.decide(row, "complete", arguments_hash=None, result="the ledger has it")
        else:
            figures.retried += 1
            await self.decide(row, "retry")


async def kill_at_each_statement(cluster: Cluster, figures: Figures, step: int) -> None:
    """Kill the server that decides and executes, before each statement of the leg."""
    for number in range(1, MOST_STATEMENTS, step):
        cluster.start_all()
        victim = 0
        cluster.kill(victim)
        cluster.start(victim, kill_at=number)
        message = f"statement {number}"
        run = await cluster.pause_run(message)
        (approval,) = await cluster.approvals(run["run_id"])
        with contextlib.suppress(ConnectionError):
            await cluster.decide(approval, "approve", slot=victim)
        await cluster.settle(run["run_id"], message, figures)
        was_killed = not cluster.is_alive(victim)
        figures.kills += was_killed
        report(figures, f"statement {number}")
        if not was_killed:
            return


async def kill_at_random(
    cluster: Cluster, figures: Figures, moments: int, runs: int, seed: int
) -> None:
    """Kill servers at random moments while they execute `runs` legs each round."""
    chance = random.Random(seed)
    number = 0
    while figures.kills < moments:
        cluster.start_all()
        number += 1
        messages = [f"round {number} call {index}" for index in range(runs)]
        paused = await asyncio.gather(*map(cluster.pause_run, messages))
        asked = await asyncio.gather(*(cluster.approvals(run["run_id"]) for run in paused))
        decisions = [
            cluster.decide(approval, "reject" if chance.random() < 0.1 else "approve")
            for (approval,) in asked
        ]
        deciding = asyncio.gather(*decisions)
        slots = cluster.alive()
        chance.shuffle(slots)
        for slot in slots[: chance.randint(1, len(slots))]:
            await asyncio.sleep(chance.random() * 0.4)
            cluster.kill(slot)
            figures.kills += 1
        cluster.start_all()
        await deciding
        await asyncio.gather(
            *(
                cluster.settle(run["run_id"], message, figures)
                for run, message in zip(paused, messages, strict=True)
            )
        )
        report(figures, f"round {number}")


def report(figures: Figures, place: str) -> None:
    print(
        f"{place}: {figures.kills} kills, {figures.calls} calls, {figures.doubtful} in doubt,"
        f" {figures.twice} twice, {figures.missing} missing, {dict(figures.ends)}",
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def open_cluster(kind: str, git: Path) -> Iterator[Cluster]:
    """Start the endpoint, the database and the ledger of a test."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentctl-kills-")))
        ledger = GitLedger(folder / "ledger")
        endpoint = start_endpoint()
        stack.callback(endpoint.stop)
        places: Any = None
        if kind == "postgres":
            url = stack.enter_context(running_postgres(durable=True))
            places = stack.enter_context(postgres_schemas(url))
        world = folder / "world"
        world.mkdir()
        extra = _AGENT.format(model_url=endpoint.base_url, command=git, folder=ledger.folder)
        options = {} if places is None else {"databases": places}
        deployment = create_deployment(world, endpoint.base_url, extra=extra, **options)
        cluster = Cluster(deployment, ledger, 3 if kind == "postgres" else 2)
        stack.callback(cluster.stop_all)
        yield cluster


def run_test(kind: str, git: Path, *, step: int, moments: int, runs: int, seed: int) -> Figures:
    """Run the test on one kind of database and return its figures."""
    figures = Figures()
    began = time.monotonic()
    with open_cluster(kind, git) as cluster:
        if step:
            asyncio.run(kill_at_each_statement(cluster, figures, step))
        if moments:
            asyncio.run(kill_at_random(cluster, figures, figures.kills + moments, runs, seed))
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--git", type=Path, required=True, help="the program mcp-server-git")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--step", type=int, default=1, help="kill at every Nth statement; 0: none")
    parser.add_argument("--moments", type=int, default=0, help="kills at random moments")
    parser.add_argument("--runs", type=int, default=8, help="legs at the same time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = run_test(
        options.database,
        options.git.absolute(),
        step=options.step,
        moments=options.moments,
        runs=options.runs,
        seed=options.seed,
    )
    print(json.dumps({**vars(figures), "ends": dict(figures.ends)}))
    return 0 if figures.is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
