"""Messages to runs of graphs: the model call that gets them is the one that shows them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.conditions import wait_for_run
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.service import open_service, user
from tests.steering.stepping_models import SteppingModels
from tests.steering.test_messages import read_fate, send, start, wait_for_requests

_AGENT = """
[[agents]]
id = "{name}"
object = "stepping_graphs:{name}"
"""

_CONFIG = """
[[models]]
id = "steps"
provider = "openai"
model = "steps"
base_url = "{url}"
retries = 0
"""

NAMES = ("twice", "threaded", "joining", "deaf", "limited", "pair")


@pytest.fixture
def graphs(tmp_path: Path, models: SteppingModels) -> Deployment:
    """A deployment of graphs whose nodes call models in other ways."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "stepping_graphs.py", folder)
    agents = "".join(_AGENT.format(name=name) for name in NAMES)
    config = _CONFIG.format(url=models.url) + agents
    return create_deployment(folder, models.url, extra=config)


@pytest.mark.parametrize(
    ("name", "requests", "call_id"),
    [("twice", 2, "model-4"), ("threaded", 1, "model-2"), ("joining", 1, "model-2")],
)
async def test_record_names_the_call_that_shows_the_message(
    graphs: Deployment, models: SteppingModels, name: str, requests: int, call_id: str
) -> None:
    """Also of a graph that no checkpointer could store, and in a thread."""
    models.hold()
    async with open_service(graphs) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", name)
        models.release(requests - 1)
        await wait_for_requests(models, requests)
        sent = await send(operations, run_id, "only primes")
        models.let_go()

        run = await wait_for_run(operations, run_id)
        assert run["status"] == "COMPLETED", run
        assert run["content"].endswith("work 1 a | only primes")
        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("delivered", call_id)
        roles = [message["role"] for message in run["messages"]]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_member_that_gets_the_message_is_no_call_of_the_run(
    graphs: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(graphs) as service:
        operations = user(service)
        run_id = await start(operations, "work 0 a", "pair")
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "only primes")
        models.let_go()

        run = await wait_for_run(operations, run_id)
        assert run["content"].endswith("done after work 0 a | only primes")
        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("delivered", None)
        roles = [message["role"] for message in run["messages"]]
        assert roles == ["user", "assistant", "user", "assistant"]


async def test_message_that_no_model_call_shows_becomes_the_next_run(
    graphs: Deployment, models: SteppingModels
) -> None:
    models.hold()
    async with open_service(graphs) as service:
        operations = user(service)
        run_id = await start(operations, "work 1 a", "deaf")
        await wait_for_requests(models, 1)
        sent = await send(operations, run_id, "only primes")
        models.let_go()

        run = await wait_for_run(operations, run_id)
        assert run["content"] == "done after work 1 a"
        assert [message for message in run["messages"] if "message_id" in message] == []
        fate = await read_fate(operations, run_id, sent["message_id"])
        assert (fate["status"], fate["model_call_id"]) == ("next_run", None)
        next_run = await wait_for_run(operations, fate["next_run_id"])
        assert next_run["status"] == "COMPLETED"


async def test_message_gives_the_graph_no_further_steps(
    graphs: Deployment, models: SteppingModels
) -> None:
    async with open_service(graphs) as service:
        operations = user(service)
        run = await wait_for_run(operations, await start(operations, "work 9 a", "limited"))
        assert run["error"]["code"] == "AGENT_FAILED"
        count = len(models.requests)
        models.requests.clear()

        models.hold()
        run_id = await start(operations, "work 9 b", "limited")
        await wait_for_requests(models, 1)
        await send(operations, run_id, "only primes")
        models.let_go()
        run = await wait_for_run(operations, run_id)
        assert run["error"]["code"] == "AGENT_FAILED"
        assert any("only primes" in request.texts for request in models.requests)
        assert len(models.requests) == count
