"""Costs of log lines and metrics: the same requests to servers that differ only in these.

    python -m bench.observability [ROUNDS]
    python -m bench.observability readable|json 2> FILE

The table has requests per second, as a ratio to a server without log and metrics, and the CPU time
of the server per request. The second form writes log lines without a server, which other work of
the machine disturbs less.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import get_args

from agentctl.config.telemetry import Log, LogFormat
from agentctl.records.logs import add_log_context, set_log_context
from agentctl.server.app import log_request
from agentctl.telemetry.log import FinishedRequest, log_to_stderr
from agentctl.telemetry.measurements import RequestCounters
from bench.load import Load
from bench.measure import run_rounds
from bench.seeding import seed_database
from bench.work import Session, create_work
from tests.kit.process import base_environment, serve_config

ROUNDS = 7
SECONDS = 1
LINES = 20_000

PATHS = ("/agents", "/sessions/runs-1")

VARIANTS: dict[str, dict[str, str]] = {
    "neither": {},
    "log, readable": {"AGENTCTL_LOG__LEVEL": "info"},
    "log, json": {"AGENTCTL_LOG__LEVEL": "info", "AGENTCTL_LOG__FORMAT": "json"},
    "metrics": {"AGENTCTL_METRICS__LISTEN": "127.0.0.1:0"},
}


@dataclass(frozen=True)
class Round:
    """A round against one server: its rate, and its CPU time per request in microseconds."""

    load: Load

    def __call__(self) -> tuple[float, float]:
        before = cpu_seconds(self.load.process_id)
        rate = self.load()
        spent = cpu_seconds(self.load.process_id) - before
        return rate, spent / (rate * self.load.seconds) * 1_000_000


def cpu_seconds(process_id: int) -> float:
    """Return the CPU seconds that the scheduler has counted for all threads of the process."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def main(rounds: int) -> None:
    """Start all servers, run the rounds, and print a table."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = create_work(folder / "work", "http://127.0.0.1:9", [Session("runs-1", 1, 1)])
        seed_database(work)
        servers = {}
        for number, (name, more) in enumerate(VARIANTS.items()):
            config = work.folder / "agentctl.toml"
            log = f"server-{number}.log"
            server = serve_config(config, log=log, environment=base_environment() | more)
            servers[name] = stack.enter_context(server)
        for path in PATHS:
            acts = {
                name: Round(
                    Load(server.url + path, server.process.pid, work.headers, seconds=SECONDS)
                )
                for name, server in servers.items()
            }
            print_medians(path, run_rounds(acts, rounds))  # type: ignore[type-var,arg-type]


def print_medians(path: str, found: dict[str, list[tuple[float, float]]]) -> None:
    """Print the medians of a path."""
    plain = found["neither"]
    for name, turned in found.items():
        ratios = [one[0] / other[0] for one, other in zip(turned, plain, strict=True)]
        rate, spent = (median(column) for column in zip(*turned, strict=True))
        more = spent - median(one[1] for one in plain)
        print(
            f"| `GET {path}` | {name} | {rate:,.0f} | {median(ratios):.2f} | {spent:.0f} us "
            f"| {more:+.0f} us |"
        )


def measure_lines(form: LogFormat) -> None:
    """Write log lines to stderr; print the time of a line and of counting a request."""
    log_to_stderr(Log(form, "info"))
    request = FinishedRequest("get_agents", "GET", 200, 0.00123, "user-4711")
    traffic = RequestCounters()
    for what, act in (("a line", log_request), ("counting", traffic.count)):
        took = []
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(LINES):
                set_log_context(request_id="01a1f9b9-a779-74d5-a5d9-1075b3a26fef")
                add_log_context(principal="user-4711")
                act(request)
            took.append((time.process_time() - began) / LINES * 1_000_000)
        print(f"{form}, {what}: {median(took):.1f} us, {min(took):.1f} to {max(took):.1f}")


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else str(ROUNDS)
    if given in get_args(LogFormat):
        measure_lines("json" if given == "json" else "readable")
    else:
        main(int(given))
