"""Tokens that each run of a long conversation sends, with and without a summary of the session.

`python -m bench.summaries` has a conversation of 200 turns with two agents that receive
the whole history; one of them summarizes after each run. It prints the input tokens of some turns,
as the endpoint of the tests counts them, and the median time of a run, of both agents in turn.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import httpx2

from tests.kit.deployment import create_deployment
from tests.kit.model import start_endpoint
from tests.kit.process import serve_config

__all__ = ["main"]

TURNS = 200
SHOWN = (1, 10, 50, 100, 200)

QUESTION = "Question {number}: what does article {number} cost, and how many are left?"

EXTRA = """
[[models]]
id = "summarizer"
provider = "openai"
model = "facts"
base_url = "{url}"

[[agents]]
id = "whole"
model = "echo"
history_runs = 1000

[[agents]]
id = "summarized"
model = "echo"
history_runs = 1000
summary = {{ every_runs = 1, model = "summarizer" }}
"""


def _measure(client: httpx2.Client) -> None:
    tokens: dict[str, list[int]] = {"whole": [], "summarized": []}
    seconds: dict[str, list[float]] = {"whole": [], "summarized": []}
    for number in range(1, TURNS + 1):
        for agent, sent in tokens.items():
            message = QUESTION.format(number=number)
            body = {"message": message, "session_id": agent, "stream": False}
            began = time.perf_counter()
            record = client.post(f"/agents/{agent}/runs", json=body).json()
            seconds[agent].append(time.perf_counter() - began)
            sent.append(record["metrics"]["input_tokens"])
    print("| turn | whole history | with a summary |")
    print("| --- | --- | --- |")
    for turn in SHOWN:
        print(f"| {turn} | {tokens['whole'][turn - 1]} | {tokens['summarized'][turn - 1]} |")
    # The first turns, in which both agents send about the same.
    early = {agent: statistics.median(times[:20]) for agent, times in seconds.items()}
    ratio = early["summarized"] / early["whole"]
    print(f"\nmedian time of the first 20 runs, with a summary to without: {ratio:.2f}")
    print(f"tokens of all runs: {sum(tokens['whole'])} and {sum(tokens['summarized'])}")


def main() -> None:
    """Have the conversations and print the tables."""
    endpoint = start_endpoint()
    try:
        with tempfile.TemporaryDirectory() as folder:
            extra = EXTRA.format(url=endpoint.base_url)
            deployment = create_deployment(Path(folder), endpoint.base_url, extra=extra)
            headers = deployment.bearer("me", "agents:run", "sessions:read")
            with (
                serve_config(deployment.path) as server,
                httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client,
            ):
                _measure(client)
    finally:
        endpoint.stop()


if __name__ == "__main__":
    main()
