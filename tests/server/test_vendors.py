"""A server whose model is called in threads: cancel and shutdown while the model hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.conditions import wait_for
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import serve_config

MODELS = """
[[models]]
id = "bedrock"
provider = "bedrock"
model = "hang"
base_url = "{url}"
region = "eu-central-1"

[[agents]]
id = "bedrock"
model = "bedrock"
"""


def test_hanging_call_in_a_thread_is_cancelled_and_shut_down(
    model_endpoint: ModelEndpoint,
    vendor_endpoint: ModelEndpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "k")
    vendor_endpoint.forget()
    extra = MODELS.format(url=vendor_endpoint.root_url)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=extra)
    with serve_config(deployment.path) as served, deployment.client(served.url) as client:

        def start(number: int) -> str:
            body = {"message": "x", "background": True, "stream": False, "session_id": f"s{number}"}
            run_id: str = client.post("/agents/bedrock/runs", json=body).json()["run_id"]
            wait_for(lambda: len(vendor_endpoint.requests("hang")) >= number)
            return run_id

        run_id = start(1)
        answer = client.post(f"/agents/bedrock/runs/{run_id}/cancel?session_id=s1&wait=30").json()
        assert (answer["cancel"], answer["status"]) == ("stopped", "CANCELLED")
        start(2)
        # The connections of both calls are still open.
        assert served.stop() == 0
