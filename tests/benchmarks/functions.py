"""CPU time of the server for a run of a Python function, and of an agent of the configuration.

`python -m tests.benchmarks.functions [ROUNDS]`. All agents echo the message; the configured one
uses the model `echo` of the provider `demo`, in the process of the server.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.client import encode_form
from tests.benchmarks.load import require_wrk
from tests.benchmarks.measure import run_rounds
from tests.benchmarks.servers import RunningServer, serve_agentctl
from tests.benchmarks.work import create_work

ROUNDS = 5

CODE = """
from agentctl import RunContext


async def function(message: str) -> str:
    return message


async def with_context(message: str, context: RunContext) -> str:
    context.state["runs"] = 1
    return f"{context.user_id}: {message}"


async def generator(message: str):
    for word in message.split():
        yield word + " "


def in_thread(message: str) -> str:
    return message
"""

OBJECTS = ("function", "with_context", "generator", "in_thread")

CONFIGURED = """
[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "configured"
model = "echo"
history_runs = 0
"""


def main(rounds: int) -> None:
    """Start a server, run the rounds, and print milliseconds of CPU time for each run."""
    require_wrk()
    with tempfile.TemporaryDirectory() as name:
        work = create_work(Path(name) / "work", "http://127.0.0.1:9", [])
        (work.folder / "echoes.py").write_text(CODE)
        agents = [
            f'[[agents]]\nid = "{each}"\nobject = "echoes:{each}"\nhistory_runs = 0\n'
            for each in OBJECTS
        ]
        with (work.folder / "agentctl.toml").open("a") as file:
            file.write("\n".join([CONFIGURED, *agents]))
        with serve_agentctl(work) as server:
            report(server, rounds)


def report(server: RunningServer, rounds: int) -> None:
    """Measure every agent, streamed and not, and print a table."""
    for stream in (False, True):
        body = encode_form(stream=stream, words=10)
        loads = {
            name: server.post(f"/agents/{name}/runs", body, seconds=2)
            for name in ("configured", *OBJECTS)
        }
        found = run_rounds({name: load.by_processor for name, load in loads.items()}, rounds)
        base = median(found["configured"])
        for name, rates in found.items():
            cost = 1_000 / median(rates)
            ratio = base / median(rates)
            print(f"{'streamed' if stream else 'plain':8}  {name:12}  {cost:6.2f} ms  {ratio:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
