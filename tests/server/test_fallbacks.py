"""Runs of a server whose model provider refuses half of the requests.

docs/internals/security-cases.md M21.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.kit.conditions import wait_for
from tests.kit.deployment import create_deployment
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


def test_runs_complete_under_a_provider_that_refuses_half(
    model_endpoint: ModelEndpoint, tmp_path: Path
) -> None:
    model_endpoint.forget()
    deployment = create_deployment(
        tmp_path, model_endpoint.base_url, extra=MODELS.format(url=model_endpoint.base_url)
    )
    with serve_in_thread(deployment) as served, deployment.client(served.url) as client:

        def run(number: int) -> tuple[str, dict[str, Any]]:
            message = f"message {number} with some words"
            body = {"message": message, "session_id": f"s{number}"}
            text = ""
            run_id = ""
            with client.stream("POST", "/agents/flaky/runs", json=body) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: "):
                        event = json.loads(line.removeprefix("data: "))
                        run_id = event["run_id"]
                        text += event["content"] if event["event"] == "RunContent" else ""
            assert text == message
            return message, client.get(f"/agents/flaky/runs/{run_id}").json()

        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(run, range(RUNS)))

        for message, record in results:
            assert (record["status"], record["content"]) == ("COMPLETED", message)
            assert [each["content"] for each in record["messages"]] == [message, message]
        answered = {record["messages"][-1]["model"] for _, record in results}
        assert answered <= {"flaky", "spare", "echo"}
        assert len(model_endpoint.requests("flaky")) > RUNS

        run_id = client.post(
            "/agents/later/runs",
            json={"message": "x", "background": True, "stream": False, "session_id": "waits"},
        ).json()["run_id"]
        wait_for(lambda: model_endpoint.requests("later:25") and not model_endpoint.open_calls())
        answer = client.post(f"/agents/later/runs/{run_id}/cancel?session_id=waits&wait=30").json()
        assert (answer["cancel"], answer["status"]) == ("stopped", "CANCELLED")
