"""Fixtures: a deployment whose agents take steps."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.kit.deployment import Deployment, create_deployment
from tests.steering.stepping_models import SteppingModels, serve_stepping_models

CONFIGURED = """
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

[[workflows]]
id = "steered-lane"
steps = [{{ name = "first", agent = "worker" }}]
on_busy = "steer"
"""
"""The components that every deployment has."""

IN_CODE = {
    "listener": "listening_agents:listen",
    "typed": "listening_agents:typed",
    "graph": "listening_graphs:graph",
    "keeping-graph": "listening_graphs:keeping_graph",
    "listing-graph": "listening_graphs:listing_graph",
    "asking-graph": "listening_graphs:asking_graph",
    "asking-keeping-graph": "listening_graphs:asking_keeping_graph",
    "runner": "listening_runner:runner",
}
"""The objects of the agents in code, by their ids. `durable-ID` and `steered-ID` are agents with
the same object, and with `durable` or `on_busy`."""


@pytest.fixture
def models() -> Iterator[SteppingModels]:
    with serve_stepping_models() as served:
        yield served


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, models: SteppingModels) -> Deployment:
    """A deployment of one test, with the agent in code that its parameter `component` names.

    A service opens all its components, which for each graph takes as long as the rest of a test.
    """
    names = []
    if "component" in request.fixturenames:
        names.append(request.getfixturevalue("component"))
    return create_site(tmp_path, models, names)


def create_site(place: Path, models: SteppingModels, names: Iterable[str]) -> Deployment:
    """Create a deployment in a folder, with the agents in code of these names.

    Names of `CONFIGURED` add nothing.
    """
    folder = place / "site"
    folder.mkdir()
    for source in Path(__file__).parent.glob("listening_*.py"):
        shutil.copy(source, folder)

    tables = [CONFIGURED.format(url=models.url)]
    tables += [_describe_agent(name) for name in names if _find_object_id(name) in IN_CODE]
    return create_deployment(folder, models.url, extra="\n".join(tables))


def _find_object_id(name: str) -> str:
    return name.removeprefix("durable-").removeprefix("steered-")


def _describe_agent(name: str) -> str:
    """Return the table of an agent in code."""
    lines = ["[[agents]]", f'id = "{name}"', f'object = "{IN_CODE[_find_object_id(name)]}"']
    if name.startswith("durable-"):
        lines.append("durable = true")
    if name.startswith("steered-"):
        lines.append('on_busy = "steer"')
    return "\n".join([*lines, ""])
