"""Programs that speak OpenAI's API, on a server of this project (docs/openai.md)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.server import create_app
from tests.deployment import ADMIN, create_deployment
from tests.endpoint import ModelEndpoint
from tests.process import base_environment
from tests.server.threaded_server import ThreadedServer, serve_in_thread

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".peers" / "openai"
LLM = PACKAGES / "llm" / "bin" / "python"

NODE = shutil.which("node")

needs_node = pytest.mark.skipif(
    NODE is None or not (PACKAGES / "node_modules" / "openai").exists(),
    reason="needs node and its package openai: make test-peers",
)
needs_llm = pytest.mark.skipif(not LLM.exists(), reason="needs the program llm: make test-peers")


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    folder = tmp_path_factory.mktemp("openai-clients")
    extra = "[openai]\nenabled = true\n"
    deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
    with serve_in_thread(deployment, create_app(deployment.settings)) as host:
        yield host


def run(*line: str, key: str, **variables: str) -> str:
    """Run a program with a token as its key, and return its output."""
    environment = base_environment() | {"OPENAI_API_KEY": key} | variables
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@needs_node
def test_client_for_node_works(served: ThreadedServer) -> None:
    assert NODE is not None
    script = Path(__file__).with_name("openai_client.mjs")
    key = served.deployment.token("ada", "agents:run", "teams:run")
    found = json.loads(run(NODE, str(script), str(PACKAGES), f"{served.url}/v1", key=key))
    assert {"echo", "crew"} <= set(found.pop("models"))
    assert found.pop("usage") > 0
    assert found == {
        "plain": "hello",
        "streamed": "hello",
        "response": "hi",
        "conversation": "node",
        "last": "response.completed",
        "final": "a b",
        "error": ["NotFoundError", 404, "model_not_found"],
        "refused": ["BadRequestError", 400, "seed"],
    }
    deadline = time.monotonic() + 10
    while get_status(served, "aborted") != "CANCELLED":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def get_status(served: ThreadedServer, session_id: str) -> str:
    path, headers = f"/sessions/{session_id}/runs", served.bearer("root", ADMIN)
    status: str = served.client.get(path, headers=headers).json()[0]["status"]
    return status


@needs_llm
def test_program_llm_works(served: ThreadedServer, tmp_path: Path) -> None:
    models = [
        f'- model_id: agentctl/{name}\n  model_name: {name}\n  api_base: "{served.url}/v1"\n'
        "  api_key_name: agentctl\n"
        for name in ("echo", "history")
    ]
    (tmp_path / "extra-openai-models.yaml").write_text("".join(models))
    key = served.deployment.token("ada", "agents:run")
    (tmp_path / "keys.json").write_text(json.dumps({"agentctl": key}))

    def ask(model: str, *words: str) -> str:
        place = {"LLM_USER_PATH": str(tmp_path), "HOME": str(tmp_path)}
        line = (str(LLM), "-m", "llm", "-m", f"agentctl/{model}", *words)
        return run(*line, key="", **place).strip()

    assert ask("echo", "hello") == ask("echo", "--no-stream", "hello") == "hello"
    ask("history", "-s", "be brief", "one")
    sent = [text for role, text in json.loads(ask("history", "-c", "two")) if role == "user"]
    assert (sent[0], sent[-1]) == ("be brief", "two")
    assert "one" in sent
