"""Runs on several servers that are killed at random, with a receiver that fails.

    python -m tests.webhooks.soak --runs 1000 --servers 3

Every committed end of a root run must be accepted by the receiver at least once, under one id, with
a valid signature, and no other end may be sent.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from standardwebhooks import Webhook, WebhookVerificationError

from agentctl.webhooks.signing import generate_secret
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.process import ServerProcess, serve_config
from tests.webhooks.receiver import Answer, Received, Receiver, answer_badly, start_receiver

PROGRAM = (sys.executable, "-m", "tests.webhooks.impatient_server")
TOP = Path(__file__).parents[2]

AGENTS = """
[limits]
concurrent_runs = 100

[[agents]]
id = "short"
object = "soaked_agents:answer"

[[agents]]
id = "doomed"
object = "soaked_agents:fail"

[[webhooks]]
id = "all"
url = "{url}/all"
events = ["run.completed", "run.failed", "run.cancelled"]
secret_env = "SOAK_SECRET"
allow_private = true
"""

CODE = """
import asyncio
import random


async def answer(message, context):
    await asyncio.sleep(random.uniform(0, 0.5))
    return message


async def fail(message, context):
    await asyncio.sleep(random.uniform(0, 0.2))
    raise RuntimeError
"""

EVENTS = {"COMPLETED": "run.completed", "ERROR": "run.failed", "CANCELLED": "run.cancelled"}


@dataclass
class Result:
    """The figures of a soak; `missing`, `invented`, `ambiguous` and `unsigned` must be empty."""

    runs: int = 0
    kills: int = 0
    requests: int = 0
    accepted: int = 0
    twice: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    missing: list[Any] = field(default_factory=list)
    invented: list[Any] = field(default_factory=list)
    ambiguous: list[Any] = field(default_factory=list)
    unsigned: int = 0

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.invented or self.ambiguous or self.unsigned)


class Servers:
    """Servers on one database, which are killed and started again."""

    def __init__(self, deployment: Deployment, size: int, secret: str) -> None:
        self._deployment = deployment
        self._variables = {"SOAK_SECRET": secret, "PYTHONPATH": str(TOP)}
        self._stacks = [ExitStack() for _ in range(size)]
        self.running: list[ServerProcess | None] = [None] * size

    def start(self, slot: int) -> None:
        log = f"server-{slot}.log"
        kind = {"variables": self._variables, "program": PROGRAM}
        server = serve_config(self._deployment.path, log=log, **kind)
        self.running[slot] = self._stacks[slot].enter_context(server)

    def kill(self, slot: int) -> None:
        server = self.running[slot]
        self.running[slot] = None
        if server is not None:
            server.process.kill()
            server.process.wait()
        self._stacks[slot].close()

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()


def soak(
    folder: Path, *, runs: int, servers: int, kills: int, databases: dict[str, str] | None = None
) -> Result:
    """Start runs on random servers while `kills` servers are killed; compare facts and events."""
    (folder / "soaked_agents.py").write_text(CODE)
    began = time.monotonic()
    result = Result()
    secret = generate_secret()
    with start_receiver() as receiver:

        def verify(got: Received) -> Answer:
            try:
                Webhook(secret).verify(got.body, got.headers)
            except WebhookVerificationError:
                result.unsigned += 1
            return answer_badly(got)

        receiver.answers["/all"] = verify
        extra = AGENTS.format(url=receiver.url)
        places = {"databases": databases} if databases else {}
        deployment = create_deployment(folder, "http://127.0.0.1:1", extra=extra, **places)
        cluster = Servers(deployment, servers, secret)
        headers = deployment.bearer("boss", ADMIN, seconds=86_400)
        try:
            for slot in range(servers):
                cluster.start(slot)
            starting = threading.Thread(target=_start_runs, args=(cluster, headers, runs))
            starting.start()
            while starting.is_alive() or result.kills < kills:
                if result.kills < kills:
                    time.sleep(random.uniform(0.2, 1.5))
                    slot = random.randrange(servers)
                    cluster.kill(slot)
                    cluster.start(slot)
                    result.kills += 1
                else:
                    starting.join(1.0)
            facts = _wait_until_delivered(cluster, headers)
        finally:
            cluster.close()
        _compare(result, facts, receiver)
    result.seconds = time.monotonic() - began
    return result


def _start_runs(cluster: Servers, headers: dict[str, str], runs: int) -> None:
    with httpx2.Client(headers=headers, timeout=PATIENCE) as client:
        for number in range(runs):
            agent = "doomed" if number % 5 == 0 else "short"
            key = {"Idempotency-Key": str(uuid4())}
            body = {"message": f"run {number}", "stream": False, "background": True}
            for _ in range(600):
                server = random.choice(cluster.running)
                if server is None:
                    continue
                try:
                    response = client.post(
                        f"{server.url}/agents/{agent}/runs", json=body, headers=key
                    )
                except httpx2.HTTPError:
                    time.sleep(0.1)
                    continue
                if response.status_code == 202:
                    if number % 10 == 7:
                        path = f"/agents/{agent}/runs/{response.json()['run_id']}/cancel?wait=0"
                        with suppress(httpx2.HTTPError):
                            client.post(server.url + path)
                    break
                time.sleep(0.1)
            time.sleep(0.01)


def _wait_until_delivered(cluster: Servers, headers: dict[str, str]) -> list[tuple[str, str]]:
    """Wait until no run is live and nothing waits; return the ids and statuses of all runs."""
    deadline = time.monotonic() + PATIENCE
    server = next(server for server in cluster.running if server is not None)
    with httpx2.Client(base_url=server.url, headers=headers, timeout=PATIENCE) as client:
        while time.monotonic() < deadline:
            live = client.get("/runs", params={"live": "true", "limit": 1}).json()["data"]
            (row,) = client.get("/webhooks").json()
            if not live and not row["waiting"]:
                break
            time.sleep(0.3)
        else:
            raise AssertionError(f"not delivered: {row}")
        facts: list[tuple[str, str]] = []
        cursor = None
        while True:
            params: dict[str, Any] = {"limit": 100, "view": "summary"}
            page = client.get(
                "/runs", params=params | ({"cursor": cursor} if cursor else {})
            ).json()
            facts += [(run["run_id"], run["status"]) for run in page["data"]]
            if (cursor := page["meta"]["next_cursor"]) is None:
                return facts


def _compare(result: Result, facts: list[tuple[str, str]], receiver: Receiver) -> None:
    wanted = {(run_id, EVENTS[status]) for run_id, status in facts}
    ids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    deliveries = Counter[str]()
    for got in receiver.accepted:
        event = got.event
        ids[event["data"]["run_id"], event["type"]].add(got.event_id)
        deliveries[got.event_id] += 1
    result.runs = len(facts)
    result.statuses = Counter(status for _, status in facts)
    result.requests = len(receiver.requests)
    result.accepted = len(receiver.accepted)
    result.twice = sum(count > 1 for count in deliveries.values())
    result.missing = sorted(wanted - ids.keys())
    tried = {(got.event["data"]["run_id"], got.event["type"]) for got in receiver.requests}
    result.invented = sorted(tried - wanted)
    result.ambiguous = [fact for fact, found in ids.items() if len(found) > 1]


def main() -> None:
    """Soak on a new PostgreSQL and print the figures."""
    from tests.kit.postgres import running_postgres

    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_postgres(durable=True) as url:
        result = soak(Path(folder), databases=list_databases(url), **vars(arguments))
    print(result)
    raise SystemExit(not result.is_right)


def list_databases(url: str) -> dict[str, str]:
    """Return the settings of two databases in new schemas of a PostgreSQL server."""
    schema = f"soak_{uuid4().hex[:12]}"
    return {name: f'url = "{url}"\nsearch_path = "{schema}_{name}"' for name in ("main", "second")}


if __name__ == "__main__":
    main()
