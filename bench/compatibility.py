"""Compare reads in the shapes of AgentOS with those of the contract, on one server.

    python -m bench.compatibility [READS]    print a table; default 1,000 reads each

Each read is sent in turns of 20 with and without `Agentctl-Interface: contract`, so that other work
on the machine meets both. The ratio is the median of those of the pairs; below 1 the shapes of
AgentOS are faster.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import start_endpoint
from tests.kit.process import serve_config

TURN = 20
"""Reads in a row."""

CONTRACT = {"Agentctl-Interface": "contract"}


class Reader:
    """A connection of an administrator."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"))
        self._headers = {"Authorization": f"Bearer {token}"}

    def send(self, path: str, headers: dict[str, str], body: str | None = None) -> bytes:
        """Send a request; return the body of its response."""
        method = "GET" if body is None else "POST"
        self._connection.request(method, path, body, self._headers | headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.status == 200, content
        return content

    def time_turn(self, path: str, headers: dict[str, str]) -> float:
        """Return the milliseconds of one read, on average over a turn."""
        begin = time.perf_counter()
        for _ in range(TURN):
            self.send(path, headers)
        return (time.perf_counter() - begin) * 1_000 / TURN

    def compare(self, path: str, reads: int) -> tuple[float, float, float]:
        """Return milliseconds with the contract, those with AgentOS, and the ratio."""
        pairs = list[tuple[float, float]]()
        for number in range(reads // TURN):
            if number % 2:
                native = self.time_turn(path, CONTRACT)
                pairs.append((native, self.time_turn(path, {})))
            else:
                adapted = self.time_turn(path, {})
                pairs.append((self.time_turn(path, CONTRACT), adapted))
        middle = [statistics.median(times) for times in zip(*pairs, strict=True)]
        return middle[0], middle[1], statistics.median(b / a for a, b in pairs)


def fill(reader: Reader) -> dict[str, str]:
    """Create a session of five runs and 20 of one; return the paths to read."""
    headers = {**CONTRACT, "Content-Type": "application/json"}

    def run(agent: str, message: str, session_id: str) -> str:
        body = json.dumps({"message": message, "stream": False, "session_id": session_id})
        started = json.loads(reader.send(f"/agents/{agent}/runs", headers, body))
        return str(started["run_id"])

    ids = [run("tool-add", '{"a": 2, "b": 3}', "five") for _ in range(5)]
    for number in range(20):
        run("echo", "hello", f"one-{number}")
    return {
        "list of agents": "/agents",
        "an agent": "/agents/tool-add",
        "list of teams": "/teams",
        "list of 20 sessions": "/sessions",
        "a session of five runs": "/sessions/five",
        "its runs": "/sessions/five/runs",
        "one run": f"/agents/tool-add/runs/{ids[0]}?session_id=five",
    }


def main(reads: int) -> None:
    """Print the table."""
    endpoint = start_endpoint()
    try:
        with tempfile.TemporaryDirectory() as folder:
            server = 'compatibility = "agentos"'
            deployment = create_deployment(Path(folder), endpoint.base_url, server=server)
            with serve_config(deployment.path) as running:
                reader = Reader(running.url, deployment.token("root", ADMIN, seconds=3_600))
                print("| read | contract | AgentOS | ratio |\n| --- | --- | --- | --- |")
                for name, path in fill(reader).items():
                    native, adapted, ratio = reader.compare(path, reads)
                    print(f"| {name} | {native:.2f} ms | {adapted:.2f} ms | {ratio:.2f} |")
    finally:
        endpoint.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
