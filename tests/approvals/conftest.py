"""A server with an agent that waits for people."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.approvals.people import People
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

AGENTS = """
[openai]
enabled = true

[mcp_endpoint]
enabled = true

[[agents]]
id = "payer"
object = "paying_agent:wait_for_people"

[[agents]]
id = "second-payer"
object = "paying_agent:wait_for_people"
database = "second"

[[agents]]
id = "busy"
object = "paying_agent:wait_for_people"
on_busy = "reject"
"""


@pytest.fixture(scope="session")
def waiting(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Deployment:
    """A configuration with agents that wait for people."""
    folder = tmp_path_factory.mktemp("waiting")
    shutil.copy(Path(__file__).with_name("paying_agent.py"), folder)
    (folder / "ledger.jsonl").touch()
    return create_deployment(folder, model_endpoint.base_url, extra=AGENTS)


@pytest.fixture(scope="session")
def people(waiting: Deployment) -> Iterator[People]:
    """People who use a server."""
    with serve_in_thread(waiting) as host:
        yield People(host)
