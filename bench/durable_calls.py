"""The cost of a tool call of a durable agent, and of another one (docs/durable.md).

`python -m bench.durable_calls [--engine postgresql] [--rounds 5]`. Two agents that
differ in `durable` execute the same runs in turns: one with many calls of a tool that returns at
once, and one with none. The difference between the two is the cost of a call, with the call of the
model that asks for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import get_args

from agentctl.auth.principal import local_principal
from agentctl.interface.requests import RunRequest
from agentctl.service.service import Service
from bench.database_costs import Costs, Engine, Measured, open_measured
from tests.kit.deployment import SQLITE_DATABASES, create_deployment
from tests.kit.model import start_endpoint

ROUNDS = 5

RUNS = 10
CALLS = 20
"""Runs of each round and agent, and the calls of each of them."""

TOOLS = '''
def note(text: str) -> str:
    """Note."""
    return text
'''

EXTRA = """
[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[agents]]
id = "plain"
model = "plan"
tools = ["durable_cost_tools:note"]

[[agents]]
id = "durable"
model = "plan"
tools = ["durable_cost_tools:note"]
durable = true
"""

AGENTS = ("plain", "durable")


async def measure(engine: Engine, rounds: int, runs: int = RUNS) -> dict[str, list[Costs]]:
    """Return the costs of one call by the id of the agent, one of each round.

    The statements are those of a last round, because PostgreSQL spends CPU time to log them.
    """
    with tempfile.TemporaryDirectory(prefix="agentctl-calls-") as name, ExitStack() as stack:
        folder = Path(name)
        endpoint = start_endpoint()
        stack.callback(endpoint.stop)
        url = endpoint.base_url
        async with open_measured(engine, folder) as measured:
            (folder / "durable_cost_tools.py").write_text(TOOLS)
            deployment = create_deployment(
                folder,
                url,
                extra=EXTRA.format(url=url),
                databases={**SQLITE_DATABASES, "main": measured.entry},
            )
            async with Service.open(deployment.settings, create=True) as service:
                found: dict[str, list[Costs]] = {agent: [] for agent in AGENTS}
                for number in range(-1, rounds + 1):
                    await measured.count_statements(number == rounds)
                    for agent, costs in found.items():
                        costs.append(await _measure_call(service, measured, agent, runs))
                await measured.count_statements(False)
    for agent, (_, *plain, counted) in found.items():
        found[agent] = [each._replace(statements=counted.statements) for each in plain]
    return found


async def _measure_call(service: Service, measured: Measured, agent: str, runs: int) -> Costs:
    times = [await measured.read()]
    for calls in (CALLS, 0):
        for _ in range(runs):
            await _run(service, agent, calls)
        times.append(await measured.read())
    with_calls, without = (after.since(before, runs) for before, after in pairwise(times))
    return with_calls.since(without, CALLS)


async def _run(service: Service, agent: str, calls: int) -> None:
    plan = [
        {
            "content": "",
            "tool_calls": [
                {
                    "id": f"call-{number}",
                    "type": "function",
                    "function": {"name": "note", "arguments": '{"text": "x"}'},
                }
            ],
        }
        for number in range(calls)
    ]
    request = RunRequest(json.dumps([*plan, {"content": "done"}]))
    operations = service.operations_for(local_principal("ann"))
    record = (await operations.runs.create("agent", agent, request)).value
    assert record["status"] == "COMPLETED", record["error"]


def main(engine: Engine, rounds: int) -> None:
    """Print a table with the costs of a call, and the median ratio of a round."""
    found = asyncio.run(measure(engine, rounds))
    print("| | ms | CPU µs | of the database | statements | commits |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for agent in AGENTS:
        middle = Costs(*(median(values) for values in zip(*found[agent], strict=True)))
        print(
            f"| {agent} | {middle.seconds * 1e3:.1f} | {middle.all_cpu * 1e6:,.0f} |"
            f" {middle.database_cpu * 1e6:,.0f} | {middle.statements:.1f} | {middle.commits:.1f} |"
        )
    pairs = list(zip(found["plain"], found["durable"], strict=True))
    seconds = median(durable.seconds / plain.seconds for plain, durable in pairs)
    cpu = median(durable.all_cpu / plain.all_cpu for plain, durable in pairs)
    print(f"| ratio | {seconds:.2f} | {cpu:.2f} | | | |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=get_args(Engine), default="sqlite")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    main(options.engine, options.rounds)
