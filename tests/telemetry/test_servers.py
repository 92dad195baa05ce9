"""Traces over servers: one tree through their interfaces, and the places that show it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port
from tests.kit.process import ServerProcess, serve_config
from tests.telemetry.receiver import Collector
from tests.telemetry.test_traces import CALLER, draw

IS_LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

SCOPES = ("agents:run", "agents:read", "sessions:read", "agent_os:admin")

EXTRA = """
[tracing]
enabled = true
endpoint = "{collector}"
propagate = ["mcp", "models"]
metrics = true
url = "https://jaeger.example.org/trace/{{trace_id}}"

[log]
format = "json"
level = "info"

[metrics]
listen = "127.0.0.1:{metrics}"

[openai]
enabled = true

[mcp_endpoint]
enabled = true

[[models]]
id = "next"
provider = "openai"
model = "echo"
base_url = "{models}/v1"
api_key_env = "AGENT_TOKEN"

[[models]]
id = "asker"
provider = "openai"
model = "tool:peer_agent_middle"
base_url = "{endpoint}"

[[mcp_servers]]
id = "peer"
url = "{tools}/mcp"
headers = {{ Authorization = "Bearer ${{env:AGENT_TOKEN}}" }}

[[agents]]
id = "middle"
model = "next"

[[models]]
id = "own"
provider = "openai"
model = "echo"
base_url = "{endpoint}"

[[agents]]
id = "coded"
object = "own_agents:coded"

[[agents]]
id = "front"
model = "asker"
tools = ["mcp:peer.agent_middle"]
"""

CODE = """
from pydantic_ai import Agent

from agentctl.pydantic_ai import Model

coded = Agent(Model("own"))
"""


class Served:
    """The servers of a test.

    Attributes:
        first: the one that a caller starts a run on.
        metrics: the port of its metrics.
    """

    def __init__(self, first: ServerProcess, deployment: Deployment, metrics: int) -> None:
        self.first = first
        self.metrics = metrics
        self.headers = deployment.bearer("me", *SCOPES)

    def request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = self.headers | options.pop("headers", {})
        return httpx2.request(
            method, f"{self.first.url}{path}", headers=headers, timeout=PATIENCE, **options
        )

    def run(self, agent: str, message: str, **headers: str) -> httpx2.Response:
        """Start a run and wait for its end."""
        body = {"message": message, "stream": False}
        return self.request("POST", f"/agents/{agent}/runs", json=body, headers=headers)

    def lines(self, run_id: str) -> list[dict[str, Any]]:
        """Return the lines of the log about a run."""
        lines = [json.loads(line) for line in self.first.log_text.splitlines() if line[:1] == "{"]
        return [line for line in lines if line.get("run_id") == run_id]


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    kept_collector: Collector,
) -> Iterator[Served]:
    """One server that calls itself; in the long mode three servers that call the next one."""
    ports = [find_free_port() for _ in range(3 if IS_LONG else 1)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        found: list[Served] = []
        for port in reversed(ports):
            folder = tmp_path_factory.mktemp("traced")
            metrics = find_free_port()
            extra = EXTRA.format(
                collector=kept_collector.url,
                endpoint=model_endpoint.base_url,
                metrics=metrics,
                models=urls[-1],
                tools=urls[len(urls) // 2],
            )
            (folder / "own_agents.py").write_text(CODE)
            deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
            patch.setenv("AGENT_TOKEN", deployment.token("agent", *SCOPES))
            server = stack.enter_context(serve_config(deployment.path, "--port", str(port)))
            found.append(Served(server, deployment, metrics))
        server.wait_for("mcp server peer is connected")
        yield found[-1]


def test_one_tree_over_servers(served: Served, kept_collector: Collector) -> None:
    answer = served.run("front", '{"message": "hello"}', traceparent=CALLER.traceparent)
    record = answer.json()
    assert (answer.status_code, record["status"]) == (200, "COMPLETED"), record
    assert "hello" in record["content"]
    assert answer.headers["x-trace-id"] == record["trace_id"] == CALLER.trace_id
    spans = kept_collector.wait_for_names(
        *("invoke_agent front", "invoke_agent middle", "invoke_agent echo")
    )
    assert {span.trace_id for span in spans} == {CALLER.trace_id}
    last = {"0 chat echo": {"0 invoke_agent echo": {"0 chat echo": {}}}}
    assert draw(spans, CALLER.span_id) == {
        "0 invoke_agent front": {
            "0 chat tool:peer_agent_middle": {},
            "1 execute_tool peer_agent_middle": {"0 invoke_agent middle": last},
            "2 chat tool:peer_agent_middle": {},
        }
    }
    own = next(span for span in spans if span.name == "invoke_agent front")
    # A request is logged when its response has been sent: the caller may be quicker.
    line = wait_for(lambda: served.lines(record["run_id"]))[-1]
    assert line["trace_id"] == CALLER.trace_id
    entries = served.request("GET", "/audit", params={"operation": "create_agent_run"}).json()
    found = [entry for entry in entries["data"] if record["run_id"] in entry["resource"]]
    assert [entry["trace_id"] for entry in found] == [CALLER.trace_id]
    assert own.attributes["agentctl.run.id"] == record["run_id"]


def test_requests_to_models_have_the_trace_of_their_run_alone(
    served: Served, model_endpoint: ModelEndpoint
) -> None:
    for agent in ("echo", "coded", "coded"):
        record = served.run(agent, "hello").json()
        sent = model_endpoint.headers("echo")["traceparent"]
        assert re.fullmatch(f"00-{record['trace_id']}-[0-9a-f]{{16}}-01", sent), sent


def test_errors_name_the_trace_of_an_identified_caller(served: Served) -> None:
    sent = {"traceparent": CALLER.traceparent}
    missing = served.run("nobody", "x", **sent)
    assert (missing.status_code, missing.headers["x-trace-id"]) == (404, CALLER.trace_id)
    refused = served.run("front", "x", Authorization="Bearer wrong", **sent)
    assert (refused.status_code, refused.headers.get("x-trace-id")) == (401, None)


@pytest.mark.parametrize("value", ["00-zz", f"00-{'0' * 32}-{'1' * 16}-01"])
def test_wrong_headers_start_a_new_trace(served: Served, value: str) -> None:
    record = served.run("echo", "x", traceparent=value).json()
    assert record["trace_id"] == record["run_id"].replace("-", "")


def test_metrics_of_models_on_the_page_and_by_otlp(
    served: Served, kept_collector: Collector
) -> None:
    record = served.run("echo", "one two").json()
    count = 'agentctl_model_seconds_count{model="echo",worker="0"}'
    page = f"http://127.0.0.1:{served.metrics}/metrics"
    # The calls of a run are counted after its end is stored.
    text = wait_for(lambda: text if count in (text := httpx2.get(page).text) else None)
    found = dict(re.findall(r'^(agentctl_\w+\{model="echo"[^}]*\}) (\S+)$', text, re.MULTILINE))
    calls = float(found[count])
    assert calls >= 1
    first = found['agentctl_model_first_token_seconds_count{model="echo",worker="0"}']
    assert float(first) == calls
    tokens = float(found['agentctl_tokens_total{model="echo",type="input",worker="0"}'])
    assert tokens >= record["metrics"]["input_tokens"]
    assert "agentctl_spans_dropped_total" in text
    names = {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
    }
    kept_collector.wait_for(lambda _: names <= {metric.name for metric in kept_collector.metrics})


def test_pages_of_traces_are_linked(served: Served, tmp_path: Path) -> None:
    record = served.run("echo", "hello", traceparent=CALLER.traceparent).json()
    page = f"https://jaeger.example.org/trace/{CALLER.trace_id}"
    assert served.request("GET", "/auth/me").json()["trace_url"] == page.replace(
        CALLER.trace_id, "{trace_id}"
    )
    token = served.headers["Authorization"].removeprefix("Bearer ")
    where = ("--url", served.first.url)
    environment = {"AGENTCTL_TOKEN": token}
    for command in (
        ("sessions", "get", record["session_id"], "-o", "text"),
        ("runs", "get", record["run_id"], "-o", "markdown"),
    ):
        done = run_command(*command, *where, environment=environment, folder=tmp_path)
        assert page in done.stdout, done
