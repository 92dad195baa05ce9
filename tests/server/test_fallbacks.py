"""Runs of a server whose model provider refuses half of the requests.

docs/internals/security-cases.md M21.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.kit.conditions import wait_for
from tests.kit.deployment import Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

RUNS = 40

MODELS = """
[[models]]
id = "flaky"
provider = "openai"
model = "flaky"
base_url = "{url}"
retries = 1
fallbacks = ["spare"]

[[models]]
id = "spare"
provider = "openai"
model = "later:0"
base_url = "{url}"
retries = 1
fallbacks = ["echo"]

[[models]]
id = "later"
provider = "openai"
model = "later:25"
base_url = "{url}"

[[agents]]
id = "flaky"
model = "flaky"

[[agents]]
id = "later"
model = "later"

[metrics]
listen = "127.0.0.1:0"
"""


@pytest.fixture(scope="module")
def client(deploy: Deploy) -> Iterator[httpx2.Client]:
    deployment = deploy(MODELS.format(url=deploy.url))
    with serve_in_thread(deployment) as served, deployment.client(served.url) as opened:
        yield opened


def test_runs_complete_under_a_provider_that_refuses_half(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()

    def run(number: int) -> tuple[str, str, dict[str, Any]]:
        message = f"message {number} with some words"
        body = {"message": message, "session_id": f"s{number}"}
        text, run_id = collect_stream(client, "/agents/flaky/runs", body)
        return message, text, client.get(f"/agents/flaky/runs/{run_id}").json()

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(run, range(RUNS)))

    for message, text, record in results:
        assert text == message
        assert (record["status"], record["content"]) == ("COMPLETED", message)
        assert [each["content"] for each in record["messages"]] == [message, message]
    answered = {record["messages"][-1]["model"] for _, _, record in results}
    assert answered <= {"flaky", "spare", "echo"}
    assert len(model_endpoint.requests("flaky")) > RUNS


def test_run_that_waits_for_its_next_attempt_can_be_cancelled(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    body = {"message": "x", "background": True, "stream": False, "session_id": "waits"}
    run_id = client.post("/agents/later/runs", json=body).json()["run_id"]
    wait_for(lambda: model_endpoint.requests("later:25") and not model_endpoint.open_calls())

    answer = client.post(f"/agents/later/runs/{run_id}/cancel?session_id=waits&wait=30").json()

    assert (answer["cancel"], answer["status"]) == ("stopped", "CANCELLED")


def collect_stream(client: httpx2.Client, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """Return the text that a run streams, and its id."""
    text = ""
    run_id = ""
    with client.stream("POST", path, json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                run_id = event["run_id"]
                if event["event"] == "RunContent":
                    text += event["content"]
    return text, run_id
