"""Put the newest AgentOS and LangGraph to the kill test: a kill in a call, then go on.

    python -m compat.kills.peers [--rounds 10] [--test approval|steps]

A call writes one line to a ledger and then works for a second. The process is killed in that
second, started again, and asked to continue, as its documentation describes. The lines of the
ledger show how often each call was made.

`approval` kills in the only call, which was approved; `steps` in the second of three calls, of a
run in the queue of AgentOS (`QueueConfig(durable=True)` on PostgreSQL, with checkpoints after each
call), and of a graph with a checkpointer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.model import start_endpoint
from tests.kit.ports import find_free_port
from tests.kit.postgres_server import run_postgres_server

HERE = Path(__file__).parent


def read_lines(folder: Path) -> list[str]:
    path = folder / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def count_lines(folder: Path) -> int:
    return len(read_lines(folder))


def count_calls(folder: Path) -> str:
    """Return how often each of the three calls was made, such as `1, 2, 1`."""
    lines = read_lines(folder)
    return ", ".join(str(lines.count(str(number))) for number in range(3))


@contextlib.contextmanager
def run_agentos(
    folder: Path, model_url: str, *queue: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = find_free_port()
    words = [sys.executable, str(HERE / "peer_agentos.py"), str(port), str(folder), model_url]
    words += queue
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"{url}/health").status_code == 200
        return False

    try:
        wait_for(answers)
        yield process, url
    finally:
        process.kill()
        process.wait()


def kill_agentos(folder: Path, model_url: str) -> tuple[int, str]:
    """Return the number of payments, and the status that AgentOS reports in the end."""
    confirmed: dict[str, Any] = {}
    with run_agentos(folder, model_url) as (process, url):
        body = {"message": json.dumps({"note": "pay bob"}), "stream": "false", "session_id": "s"}
        run = httpx2.post(f"{url}/agents/payer/runs", data=body, timeout=PATIENCE).json()
        tools = [{**tool, "confirmed": True} for tool in run["tools"]]
        confirmed = {"tools": json.dumps(tools), "session_id": "s", "stream": "false"}
        path = f"/agents/payer/runs/{run['run_id']}/continue"
        asking = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys, json, httpx2; httpx2.post(sys.argv[1], data=json.loads(sys.argv[2]))",
                f"{url}{path}",
                json.dumps(confirmed),
            ],
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: count_lines(folder))
        process.send_signal(signal.SIGKILL)
        process.wait()
        asking.wait()
    with run_agentos(folder, model_url) as (_, url):
        answer = httpx2.post(f"{url}{path}", data=confirmed, timeout=PATIENCE)
        return count_lines(folder), str(answer.json().get("status", answer.status_code))


def kill_langgraph(folder: Path, model_url: str) -> tuple[int, str]:
    """Return the number of payments, and the state of the graph in the end."""
    words = [sys.executable, str(HERE / "peer_langgraph.py")]
    subprocess.run([*words, "start", str(folder)], check=True, capture_output=True)
    working = subprocess.Popen([*words, "resume", str(folder)], stdout=subprocess.DEVNULL)
    wait_for(lambda: count_lines(folder))
    working.kill()
    working.wait()
    done = subprocess.run(
        [*words, "resume", str(folder)], check=True, capture_output=True, text=True
    )
    return count_lines(folder), done.stdout.strip()


def kill_queue_of_agentos(folder: Path, model_url: str, *, attempts: int) -> tuple[str, str]:
    """Return how often each call was made, and the status that AgentOS reports in the end."""
    plan = [
        {
            "content": "",
            "tool_calls": [
                {
                    "id": f"call-{number}",
                    "type": "function",
                    "function": {"name": "step", "arguments": json.dumps({"number": number})},
                }
            ],
        }
        for number in range(3)
    ]
    with run_postgres_server() as postgres:
        url = postgres.url.replace("postgresql:", "postgresql+asyncpg:")
        queue = (url, str(attempts))
        with run_agentos(folder, model_url, *queue) as (process, url):
            message = json.dumps([*plan, {"content": "done"}])
            body = {"message": message, "stream": "false", "background": "true", "session_id": "s"}
            run = httpx2.post(f"{url}/agents/worker/runs", data=body, timeout=PATIENCE).json()
            wait_for(lambda: count_lines(folder) == 2)
            process.kill()
            process.wait()
        with run_agentos(folder, model_url, *queue) as (_, url):
            path = f"{url}/agents/worker/runs/{run['run_id']}?session_id=s"

            def read_end() -> str:
                status = str(httpx2.get(path, timeout=PATIENCE).json().get("status"))
                return status if status in ("COMPLETED", "ERROR", "CANCELLED", "PAUSED") else ""

            end = wait_for(read_end)
    return count_calls(folder), end


def kill_steps_of_langgraph(folder: Path, _model_url: str) -> tuple[str, str]:
    """Return how often each call was made, and the state of the graph in the end."""
    words = [sys.executable, str(HERE / "peer_langgraph.py")]
    working = subprocess.Popen([*words, "work", str(folder)], stdout=subprocess.DEVNULL)
    wait_for(lambda: count_lines(folder) == 2)
    working.kill()
    working.wait()
    done = subprocess.run(
        [*words, "go-on", str(folder)], check=True, capture_output=True, text=True
    )
    return count_calls(folder), done.stdout.strip()


Test = Callable[[Path, str], tuple[object, str]]

TESTS: dict[str, dict[str, Test]] = {
    "approval": {"AgentOS": kill_agentos, "LangGraph": kill_langgraph},
    "steps": {
        "AgentOS, max_attempts=1": partial(kill_queue_of_agentos, attempts=1),
        "AgentOS, max_attempts=2": partial(kill_queue_of_agentos, attempts=2),
        "LangGraph": kill_steps_of_langgraph,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--test", choices=TESTS, default="approval")
    options = parser.parse_args()
    endpoint = start_endpoint()
    try:
        for name, kill in TESTS[options.test].items():
            counts = Counter[object]()
            ends = Counter[str]()
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory(prefix="agentctl-peers-") as folder:
                    count, end = kill(Path(folder), endpoint.base_url)
                counts[count] += 1
                ends[end] += 1
            print(f"{name}: calls {dict(counts)}, ends {dict(ends)}", flush=True)
    finally:
        endpoint.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
