"""The cost of webhooks for runs: without endpoints, with a receiver, and with a dead one.

    python -m bench.webhooks [RUNS]

Three servers execute the same runs in turns. The dead receiver accepts connections and never
responds, so every attempt takes its whole time.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx2

from agentctl.webhooks.signing import generate_secret
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.process import serve_config
from tests.webhooks.receiver import start_receiver

ROUNDS = 7
CALLERS = 8

NO_REUSE = httpx2.Limits(max_keepalive_connections=0)

AGENT = "async def answer(message, context):\n    return message\n"

AGENTS = '[[agents]]\nid = "quick"\nobject = "quick_agent:answer"\n'

ENDPOINT = """
[[webhooks]]
id = "ops"
url = "{url}/"
events = ["run.completed"]
secret_env = "BENCH_SECRET"
allow_private = true
"""


def start(stack: ExitStack, folder: Path, url: str | None) -> httpx2.Client:
    """Start a server whose webhook has a URL; None for no webhook. Return a client for it."""
    folder.mkdir()
    (folder / "quick_agent.py").write_text(AGENT)
    extra = AGENTS if url is None else AGENTS + ENDPOINT.format(url=url)
    deployment = create_deployment(folder, "http://127.0.0.1:1", extra=extra)
    variables = {"BENCH_SECRET": generate_secret()}
    server = stack.enter_context(serve_config(deployment.path, variables=variables))
    headers = deployment.bearer("boss", ADMIN, seconds=7_200)
    return stack.enter_context(
        httpx2.Client(base_url=server.url, headers=headers, timeout=60, limits=NO_REUSE)
    )


def execute(client: httpx2.Client, runs: int) -> float:
    """Execute runs with several callers; return the seconds of one run."""

    def run(number: int) -> None:
        body = {"message": f"{number}", "stream": False}
        assert client.post("/agents/quick/runs", json=body).status_code == 200

    began = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(run, range(runs)))
    return (time.perf_counter() - began) / runs


def main() -> None:
    """Print the median of a run for each server, and its ratio to the first one by round."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        receiver = stack.enter_context(start_receiver())
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        urls = {"no webhook": None, "receiver": receiver.url, "dead receiver": dead}
        clients = {
            name: start(stack, top / name.replace(" ", "-"), url) for name, url in urls.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in clients}
        for client in clients.values():
            execute(client, 20)
        for _ in range(ROUNDS):
            for name, client in clients.items():
                seconds[name].append(execute(client, runs))
        base = seconds["no webhook"]
        for name, each in seconds.items():
            ratios = sorted(one / other for one, other in zip(each, base, strict=True))
            print(
                f"{name}: {statistics.median(each) * 1_000:.2f} ms a run, ratio"
                f" {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


if __name__ == "__main__":
    main()
