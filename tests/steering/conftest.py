"""Fixtures: a deployment whose agents take steps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deployment import Deployment, create_deployment
from tests.steering.stepping_models import SteppingModels, serve_stepping_models

_CONFIG = """
[agui]
enabled = true

[[models]]
id = "steps"
provider = "openai"
model = "steps"
base_url = "{url}"
retries = 0

[[agents]]
id = "worker"
model = "steps"
tools = ["world_tools:add"]

[[agents]]
id = "durable"
model = "steps"
tools = ["world_tools:add"]
durable = true

[[agents]]
id = "asking"
model = "steps"
tools = ["world_tools:add"]
approve = {{ add = "user" }}

[[teams]]
id = "office"
model = "steps"
members = ["worker"]
tools = ["world_tools:add"]

[[agents]]
id = "listener"
object = "listening_agents:listen"

[[agents]]
id = "durable-listener"
object = "listening_agents:listen"
durable = true

[[agents]]
id = "typed"
object = "listening_agents:typed"

[[agents]]
id = "durable-typed"
object = "listening_agents:typed"
durable = true

[[agents]]
id = "graph"
object = "listening_agents:graph"

[[agents]]
id = "durable-graph"
object = "listening_agents:graph"
durable = true

[[agents]]
id = "keeping-graph"
object = "listening_agents:keeping_graph"

[[agents]]
id = "listing-graph"
object = "listening_agents:listing_graph"

[[agents]]
id = "asking-graph"
object = "listening_agents:asking_graph"

[[agents]]
id = "asking-keeping-graph"
object = "listening_agents:asking_keeping_graph"

[[agents]]
id = "runner"
object = "listening_agents:runner"

[[workflows]]
id = "lane"
steps = [{{ name = "first", agent = "worker" }}]

[[agents]]
id = "steered"
model = "steps"
tools = ["world_tools:add"]
on_busy = "steer"

[[agents]]
id = "steered-durable"
model = "steps"
tools = ["world_tools:add"]
durable = true
on_busy = "steer"

[[agents]]
id = "steered-asking"
model = "steps"
tools = ["world_tools:add"]
approve = {{ add = "user" }}
on_busy = "steer"

[[teams]]
id = "steered-office"
model = "steps"
members = ["worker"]
tools = ["world_tools:add"]
on_busy = "steer"

[[agents]]
id = "steered-listener"
object = "listening_agents:listen"
on_busy = "steer"

[[agents]]
id = "steered-typed"
object = "listening_agents:typed"
on_busy = "steer"

[[agents]]
id = "steered-graph"
object = "listening_agents:graph"
on_busy = "steer"

[[workflows]]
id = "steered-lane"
steps = [{{ name = "first", agent = "worker" }}]
on_busy = "steer"
"""


@pytest.fixture
def models() -> Iterator[SteppingModels]:
    with serve_stepping_models() as served:
        yield served


@pytest.fixture
def site(tmp_path: Path, models: SteppingModels) -> Deployment:
    """A deployment of one test."""
    return create_site(tmp_path, models)


def create_site(place: Path, models: SteppingModels) -> Deployment:
    """Create a deployment in a folder, with an agent of each kind."""
    folder = place / "site"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "listening_agents.py", folder)
    return create_deployment(folder, models.url, extra=_CONFIG.format(url=models.url))
