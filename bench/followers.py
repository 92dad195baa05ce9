"""Clients that join a live stream late: `python -m bench.followers`.

One server executes a run of 50 tokens a second. Some time later all clients follow it from its
first event through another server, with a small pool of connections to PostgreSQL. A client has
caught up at its first token that is less than `CAUGHT_UP` old; the model puts the time into each
token. The report has the seconds until the last client has caught up, the delay of all tokens of
the window after that, and the statements of the server that is followed (from PostgreSQL's log).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import httpx2
import uvloop

from bench.postgres_meter import Meter
from bench.scale_counts import ROLES, SCHEMA, create_roles, running_servers
from bench.streams import Usage, raise_file_limit
from tests.kit.deployment import ADMIN
from tests.kit.postgres_server import PostgresServer, run_postgres_server
from tests.lab.servers import Server

CAUGHT_UP = 1.0
"""Seconds."""

GIVE_UP_SECONDS = 120.0

_STAMP = re.compile(rb"\b(\d{20}) ")


@dataclass
class Clients:
    """The events that all clients have received.

    Attributes:
        caught_up: seconds from the request of a client until it had caught up.
        refused: the answers other than 200, with their texts.
        delays: those of the last token of each received part, in seconds, while `is_counting`.
        ended: number of streams that have ended.
    """

    caught_up: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    delays: list[float] = field(default_factory=list)
    is_counting: bool = False
    ended: int = 0


class _Follower(asyncio.Protocol):
    """One client: it reads the last stamp of what it receives."""

    def __init__(self, clients: Clients, request: bytes) -> None:
        self._clients = clients
        self._request = request
        self._began = time.monotonic()
        self._has_status = self._has_caught_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._has_status:
            self._has_status = True
            if b" 200 " not in data.split(b"\r\n", 1)[0]:
                body = data.partition(b"\r\n\r\n")[2].decode()
                self._clients.refused[body] += 1
        found = _STAMP.findall(data[-1_000:])
        if not found:
            return
        now = time.monotonic()
        delay = now - int(found[-1]) / 1e9
        if not self._has_caught_up and delay < CAUGHT_UP:
            self._has_caught_up = True
            self._clients.caught_up.append(now - self._began)
        if self._clients.is_counting:
            self._clients.delays.append(delay)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.ended += 1


async def _start_run(server: Server, headers: dict[str, str]) -> str:
    message = {"words": 1_000_000, "size": 6, "seconds": 0.02, "hold": False, "stamp": True}
    body = {"message": json.dumps(message), "session_id": "long", "background": True}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        response = await client.post("/agents/paced/runs", json=body | {"stream": False})
        assert response.status_code == 202, response.text
        return str(response.json()["run_id"])


async def measure(
    postgres: PostgresServer, servers: list[Server], count: int, lead: float, window: float
) -> None:
    """Print the figures of some clients that join after `lead` seconds."""
    headers = servers[0].deployment.bearer("me", ADMIN, seconds=3_600)
    run_id = await _start_run(servers[0], headers)
    await asyncio.sleep(lead)
    meter = Meter(postgres, SCHEMA)
    await meter.open()
    await meter.log_statements(True)
    request = (
        f"POST /agents/paced/runs/{run_id}/resume?session_id=long HTTP/1.1\r\nHost: here\r\n"
        f"Authorization: {headers['Authorization']}\r\nContent-Length: 0\r\n\r\n"
    ).encode()
    clients = Clients()
    port = int(servers[1].url.rpartition(":")[2])
    connect = asyncio.get_running_loop().create_connection
    usage = Usage(servers[1].process.pid)
    first = await meter.read()
    opened = await asyncio.gather(
        *(connect(lambda: _Follower(clients, request), "127.0.0.1", port) for _ in range(count))
    )
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while len(clients.caught_up) + sum(clients.refused.values()) < count:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.02)
    second = await meter.read()
    cpu = usage.cpu_seconds
    late = max(clients.caught_up, default=0.0)
    statements = meter.count_statements(first, second)[ROLES[1]]
    print(f"{count} clients, {lead:.0f} s late: {len(clients.caught_up)} have caught up", end=" ")
    print(f"within {late:.2f} s, with {statements} statements and {cpu:.2f} s of CPU")
    for text, number in clients.refused.items():
        print(f"  refused {number}: {text}")
    clients.is_counting = True
    await asyncio.sleep(window)
    clients.is_counting = False
    third = await meter.read()
    seconds = third.seconds - second.seconds
    rate = meter.count_statements(second, third)[ROLES[1]] / seconds
    share = (usage.cpu_seconds - cpu) / seconds
    worst = max(clients.delays, default=0.0)
    quantiles = statistics.quantiles(clients.delays, n=100)
    print(f"  then {seconds:.0f} s: {rate:.1f} statements/s, {share:.0%} of a core, delay", end=" ")
    print(
        f"{quantiles[49]:.2f} s (median), {quantiles[98]:.2f} s (p99), {worst:.2f} s at most;",
        end=" ",
    )
    print(f"{clients.ended} streams ended", flush=True)
    usage.end()
    for transport, _ in opened:
        transport.close()
    async with httpx2.AsyncClient(base_url=servers[0].url, headers=headers) as client:
        await client.post(f"/agents/paced/runs/{run_id}/cancel?session_id=long")
    await meter.close()


def main() -> None:
    """Measure some numbers of clients, one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--lead", type=float, default=30.0, help="seconds before the clients join")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the window after that")
    parser.add_argument("--pool-size", type=int, default=4)
    parser.add_argument("--followed-runs", type=int, default=10_000)
    options = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder, run_postgres_server(durable=True) as postgres:
        create_roles(postgres)
        pool = f"pool_size = {options.pool_size}"
        limit = f"followed_runs = {options.followed_runs}\n"
        with running_servers(postgres, Path(folder), pool, limit) as servers:
            for count in options.clients:
                uvloop.run(measure(postgres, servers, count, options.lead, options.seconds))


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    main()
