"""Traces in Phoenix, a real receiver, of agents whose authors have instrumented their libraries."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.documents import ROOT
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


def deploy_instrumented_agents(folder: Path, endpoint: str, collector: str) -> Deployment:
    agents = Path(__file__).with_name("instrumented_agents.py")
    (folder / agents.name).write_text(agents.read_text())
    return create_deployment(
        folder, endpoint, extra=CONFIG.format(url=collector, endpoint=endpoint)
    )


@pytest.fixture
def instrumented(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers import the packages that instrument the libraries, and export at once."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER / "instrumentation"))
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")


NAMES = ("plain", "library", "graph", "clerk")
"""The agents whose runs are traced: of a model with a tool, and of code in three ways."""


def run_each_agent(deployment: Deployment, url: str) -> dict[str, dict[str, Any]]:
    """Run each agent of `NAMES` below the span `CALLER`; return the records by agent."""
    headers = {
        "Authorization": f"Bearer {deployment.token('me', 'agents:run', 'teams:run')}",
        "traceparent": CALLER.traceparent,
    }
    records: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        body = {"message": f'{{"word": "{MARKER}"}}', "stream": False, "session_id": f"of-{name}"}
        answer = httpx2.post(
            f"{url}/agents/{name}/runs", json=body, headers=headers, timeout=PATIENCE
        )
        assert answer.json()["status"] == "COMPLETED", answer.text
        records[name] = answer.json()
    return records


def count_spans(records: Iterable[dict[str, Any]]) -> int:
    """Return the number of spans of the server: of each run, and of each of its calls."""
    return sum(1 + len(record["spans"]) for record in records)


def check_spans_of_run(spans: list[dict[str, Any]], name: str, record: dict[str, Any]) -> None:
    """Compare the spans of a run with its record, and find that of its own code below it."""
    ours = [span for span in spans if _is_ours(span)]
    places = {span["context"]["span_id"]: span for span in spans}
    own = next(span for span in ours if span["name"] == f"invoke_agent {name}")
    assert own["parent_id"] == CALLER.span_id
    calls = [span for span in ours if span["parent_id"] == own["context"]["span_id"]]
    assert len(calls) == len(record["spans"])
    tokens = [
        call["attributes"].get("llm.token_count.prompt", 0)
        for call in calls
        if call["span_kind"] == "LLM"
    ]
    assert sum(tokens) == record["metrics"]["input_tokens"], name

    inside = [
        span
        for span in spans
        if span["name"] == "read the shelf" and _find_run(places, span) == own
    ]
    assert inside[0]["context"]["trace_id"] == CALLER.trace_id


def check_session_of_library(spans: list[dict[str, Any]], name: str) -> None:
    """Check that the spans that a library makes itself name the session of the run."""
    places = {span["context"]["span_id"]: span for span in spans}
    sessions = {
        span["attributes"].get("session.id") or span["attributes"].get("gen_ai.conversation.id")
        for span in spans
        if not _is_ours(span) and _find_run(places, span)["name"] == f"invoke_agent {name}"
    }
    assert f"of-{name}" in sessions, (name, sessions)


SPAN_KINDS = {"invoke_agent": "AGENT", "chat": "LLM", "execute_tool": "TOOL"}


@pytest.mark.usefixtures("instrumented")
def test_phoenix_shows_every_kind_of_agent_under_one_trace(
    phoenix: str, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy_instrumented_agents(tmp_path, model_endpoint.base_url, phoenix)
    with serve_config(deployment.path) as server:
        records = run_each_agent(deployment, server.url)
        # Before the server stops: it waits for a slow collector for 2 seconds only.
        spans = wait_for_spans(phoenix, count_spans(records.values()))

    ours = [span for span in spans if _is_ours(span)]
    print(f"{len(ours)} spans of the server, {len(spans)} in all")
    assert len(ours) == count_spans(records.values())
    assert {span["context"]["trace_id"] for span in spans} == {CALLER.trace_id}
    for span in ours:
        assert span["span_kind"] == SPAN_KINDS[span["name"].partition(" ")[0]], span["name"]
    for name, record in records.items():
        check_spans_of_run(spans, name, record)
    for name in ("library", "graph", "clerk"):
        check_session_of_library(spans, name)


PROJECTS = "{ projects { edges { node { name tokenCountTotal costSummary { total { cost } } } } } }"
"""A query for the tokens and the costs of each project."""


def read_projects(phoenix: str) -> dict[str, dict[str, Any]]:
    answer = httpx2.post(f"{phoenix}/graphql", json={"query": PROJECTS}, timeout=PATIENCE).json()
    return {edge["node"]["name"]: edge["node"] for edge in answer["data"]["projects"]["edges"]}


@pytest.mark.usefixtures("instrumented")
def test_phoenix_prices_each_call_once_below_a_chain(
    phoenix: str, tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "openinference.project.name=priced")
    deployment = deploy_instrumented_agents(tmp_path, model_endpoint.base_url, phoenix)
    headers = deployment.bearer("me", "workflows:run")
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
    project = read_projects(phoenix)["priced"]
    assert project["tokenCountTotal"] == record["total_tokens"]
    assert project["costSummary"]["total"]["cost"] > 0


def _find_run(places: dict[str, dict[str, Any]], span: dict[str, Any]) -> dict[str, Any]:
    """Return the span of the run in which a span is."""
    while not span["name"].startswith("invoke_agent ") or not _is_ours(span):
        span = places[span["parent_id"]]
    return span


@pytest.mark.usefixtures("instrumented")
def test_no_text_of_a_run_reaches_the_collector(
    tmp_path: Path, model_endpoint: ModelEndpoint, collector: Collector
) -> None:
    deployment = deploy_instrumented_agents(tmp_path, model_endpoint.base_url, collector.url)
    with serve_config(deployment.path) as server:
        run_each_agent(deployment, server.url)

    assert {span.name for span in collector.spans} >= {"invoke_agent clerk", "read the shelf"}
    found = {
        (span.scope, name)
        for span in collector.spans
        for name, value in span.attributes.items()
        if MARKER in str(value)
    }
    # This instrumentation has no setting for the arguments of tools.
    assert found <= {("openinference.instrumentation.agno", "tool.parameters")}
