"""Traces in Phoenix, a real receiver, of agents whose authors have instrumented their libraries."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.docs.pages import ROOT
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port
from tests.kit.process import serve_config
from tests.telemetry.receiver import Collector
from tests.telemetry.test_traces import CALLER, MARKER

FOLDER = ROOT / ".peers" / "traces"
pytestmark = [
    pytest.mark.skipif(
        os.environ.get("AGENTCTL_TEST_LONG") != "1" or not (FOLDER / ".installed").exists(),
        reason="needs the package arize-phoenix: make test-traces",
    )
]

CONFIG = """
[tracing]
enabled = true
endpoint = "{url}"

[[models]]
id = "look"
provider = "openai"
model = "tool:look_up"
base_url = "{endpoint}"

[[models]]
id = "priced"
provider = "openai"
model = "gpt-4o-mini"
base_url = "{endpoint}"

[[agents]]
id = "priced"
model = "priced"

[[workflows]]
id = "chain"
steps = [{{ name = "only", agent = "priced" }}]

[[agents]]
id = "plain"
model = "look"
tools = ["instrumented_agents:look_up"]

[[agents]]
id = "library"
object = "instrumented_agents:library"

[[agents]]
id = "graph"
object = "instrumented_agents:graph"

[[agents]]
id = "clerk"
object = "instrumented_agents:clerk"

[[teams]]
id = "shop"
model = "delegate"
members = ["plain", "clerk"]
"""


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run Phoenix; yield its URL."""
    folder = tmp_path_factory.mktemp("phoenix")
    port = find_free_port()
    variables = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(find_free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}"
    log = folder / "phoenix.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [FOLDER / "bin" / "phoenix", "serve"],
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    if httpx2.get(f"{url}/healthz", timeout=PATIENCE).status_code == 200:
                        break
                except httpx2.TransportError:
                    pass
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE)


def read_spans(phoenix: str, project: str) -> list[dict[str, Any]]:
    url = f"{phoenix}/v1/projects/{project}/spans"
    answer = httpx2.get(url, params={"limit": 500}, timeout=PATIENCE)
    return list(answer.json()["data"]) if answer.status_code == 200 else []


def wait_for_spans(phoenix: str, count: int, project: str = "default") -> list[dict[str, Any]]:
    """Wait until this number of spans of the server is there, and return all spans."""
    deadline = time.monotonic() + PATIENCE
    while True:
        spans = read_spans(phoenix, project)
        if sum(_is_ours(span) for span in spans) >= count:
            return spans
        assert time.monotonic() < deadline, [span["name"] for span in spans]
        time.sleep(0.5)


def _is_ours(span: dict[str, Any]) -> bool:
    return "agentctl.run.id" in span["attributes"]


def test_phoenix_shows_every_kind_of_agent_under_one_trace(
    phoenix: str, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    agents = Path(__file__).with_name("instrumented_agents.py")
    (tmp_path / agents.name).write_text(agents.read_text())
    text = CONFIG.format(url=phoenix, endpoint=model_endpoint.base_url)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=text)
    headers = {
        "Authorization": f"Bearer {deployment.token('me', 'agents:run', 'teams:run')}",
        "traceparent": CALLER.traceparent,
    }
    records: dict[str, Any] = {}
    message = f'{{"word": "{MARKER}"}}'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FOLDER / "instrumentation"))
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with serve_config(deployment.path) as server:
            for path in ("agents/plain", "agents/library", "agents/graph", "agents/clerk"):
                body = {"message": message, "stream": False, "session_id": f"of-{path[7:]}"}
                answer = httpx2.post(
                    f"{server.url}/{path}/runs", json=body, headers=headers, timeout=PATIENCE
                )
                records[path[7:]] = answer.json()
                assert answer.json()["status"] == "COMPLETED", (answer.text, server.log_text)
            # Before the server stops: it waits for a slow collector for 2 seconds only.
            spans = wait_for_spans(phoenix, sum(1 + len(run["spans"]) for run in records.values()))
    ours = [span for span in spans if _is_ours(span)]
    assert len(ours) == sum(1 + len(run["spans"]) for run in records.values())
    assert {span["context"]["trace_id"] for span in spans} == {CALLER.trace_id}
    kinds = {"invoke_agent": "AGENT", "chat": "LLM", "execute_tool": "TOOL"}
    for span in ours:
        assert span["span_kind"] == kinds[span["name"].partition(" ")[0]], span["name"]
    places = {span["context"]["span_id"]: span for span in spans}
    for name, record in records.items():
        own = next(span for span in ours if span["name"] == f"invoke_agent {name}")
        assert own["parent_id"] == CALLER.span_id
        calls = [s for s in ours if s["parent_id"] == own["context"]["span_id"]]
        assert len(calls) == len(record["spans"])
        tokens = [
            call["attributes"].get("llm.token_count.prompt", 0)
            for call in calls
            if call["span_kind"] == "LLM"
        ]
        assert sum(tokens) == record["metrics"]["input_tokens"], name
        inside = next(
            span
            for span in spans
            if span["name"] == "read the shelf" and _find_run(places, span) == own
        )
        assert inside["context"]["trace_id"] == CALLER.trace_id
    print(f"{len(ours)} spans of the server, {len(spans)} in all")
    theirs = [span for span in spans if not _is_ours(span)]
    for name in ("library", "graph", "clerk"):
        sessions = {
            span["attributes"].get("session.id") or span["attributes"].get("gen_ai.conversation.id")
            for span in theirs
            if _find_run(places, span)["name"] == f"invoke_agent {name}"
        }
        assert f"of-{name}" in sessions, (name, sessions)


def test_phoenix_prices_each_call_once_below_a_chain(
    phoenix: str, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    agents = Path(__file__).with_name("instrumented_agents.py")
    (tmp_path / agents.name).write_text(agents.read_text())
    text = CONFIG.format(url=phoenix, endpoint=model_endpoint.base_url)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=text)
    headers = deployment.bearer("me", "workflows:run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FOLDER / "instrumentation"))
        patch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=priced")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with serve_config(deployment.path) as server:
            body = {"message": "hello", "stream": False}
            url = f"{server.url}/workflows/chain/runs"
            record = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE).json()
            assert record["status"] == "COMPLETED", record
            spans = wait_for_spans(phoenix, 3, "priced")
    kinds = {span["name"]: span["span_kind"] for span in spans}
    assert kinds == {
        "invoke_workflow chain": "CHAIN", "invoke_agent priced": "AGENT", "chat gpt-4o-mini": "LLM",
    }  # fmt: skip
    query = (
        "{ projects { edges { node { name tokenCountTotal costSummary { total { cost } } } } } }"
    )
    answer = httpx2.post(f"{phoenix}/graphql", json={"query": query}, timeout=PATIENCE).json()
    projects = {edge["node"]["name"]: edge["node"] for edge in answer["data"]["projects"]["edges"]}
    assert projects["priced"]["tokenCountTotal"] == record["total_tokens"]
    assert projects["priced"]["costSummary"]["total"]["cost"] > 0


def _find_run(places: dict[str, dict[str, Any]], span: dict[str, Any]) -> dict[str, Any]:
    """Return the span of the run in which a span is."""
    while not span["name"].startswith("invoke_agent ") or not _is_ours(span):
        span = places[span["parent_id"]]
    return span


def test_no_text_of_a_run_reaches_the_collector(
    tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector
) -> None:
    agents = Path(__file__).with_name("instrumented_agents.py")
    (tmp_path / agents.name).write_text(agents.read_text())
    text = CONFIG.format(url=collector.url, endpoint=model_endpoint.base_url)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=text)
    headers = deployment.bearer("me", "agents:run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FOLDER / "instrumentation"))
        with serve_config(deployment.path) as server:
            for agent in ("plain", "library", "graph", "clerk"):
                body = {"message": f'{{"word": "{MARKER}"}}', "stream": False}
                url = f"{server.url}/agents/{agent}/runs"
                httpx2.post(url, json=body, headers=headers, timeout=PATIENCE)
    assert {span.name for span in collector.spans} >= {"invoke_agent clerk", "read the shelf"}
    found = {
        (span.scope, name)
        for span in collector.spans
        for name, value in span.attributes.items()
        if MARKER in str(value)
    }
    # This instrumentation has no setting for the arguments of tools.
    assert found <= {("openinference.instrumentation.agno", "tool.parameters")}
