"""Two versions of an agent side by side: sessions keep their side, and are counted separately."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agentctl.config import load_settings
from agentctl.errors import InvalidConfiguration
from agentctl.interface.requests import Page, RunFilter, RunRequest, VersionFilter
from agentctl.interface.requests.administration import UsageFilter
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.runtime.components.catalog import Catalog
from agentctl.service.service import Service
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, open_service, user

T = TypeVar("T")

SESSIONS = 10_000 if os.environ.get("AGENTCTL_TEST_LONG") else 24
"""Of them, some are on each side."""

PERCENT = 30
"""The share of the sessions that belong to the new side."""

EXTRA = f"""
[[agents]]
id = "writer"
model = "echo"
instructions = "Old side."
next = "writer-v2"
percent = {PERCENT}

[[agents]]
id = "writer-v2"
model = "echo"
instructions = "New side."

[[agents]]
id = "payer"
model = "tool-add"
instructions = "First configuration."
tools = ["world_tools:add"]
approve = {{ add = "user" }}
on_change = "fail"
next = "payer-v2"
percent = {PERCENT}

[[agents]]
id = "payer-v2"
model = "tool-add"
tools = ["world_tools:add"]
approve = {{ add = "user" }}
on_change = "fail"
"""


@pytest.fixture
def world(
    tmp_path: Path, model_endpoint: ModelEndpoint, databases: Mapping[str, str]
) -> Deployment:
    url = model_endpoint.base_url
    return create_deployment(tmp_path, url, extra=EXTRA, databases=databases)


@pytest.fixture
def config_file(tmp_path: Path, model_endpoint: ModelEndpoint) -> Path:
    """A configuration whose databases are not opened."""
    return create_deployment(tmp_path, model_endpoint.base_url, extra=EXTRA).path


def is_on_new_side(component: str, session_id: str) -> bool:
    """Return True if a session belongs to the percentage that the next entry answers."""
    digest = hashlib.sha256(f"agent/{component}/{session_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100 < PERCENT


async def read_current(service: Service, name: str) -> str:
    document: Any = await user(service).components.list_versions("agent", name, VersionFilter())
    (current,) = [row["version"] for row in document.value["data"] if row["is_current"]]
    return str(current)


async def read_old_side(service: Service, new: str) -> str:
    """Return the version of the writer that is not the new one: both are current."""
    document: Any = await user(service).components.list_versions("agent", "writer", VersionFilter())
    assert {row["is_current"] for row in document.value["data"]} == {True}
    (old,) = {row["version"] for row in document.value["data"]} - {new}
    return str(old)


async def approve(service: Service, run: dict[str, Any]) -> dict[str, Any]:
    """Approve the only call of a run of the payer; return the run when it has ended."""
    (asked,) = run["approvals"]
    ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
    document = await user(service).runs.continue_run(
        "agent", "payer", run["run_id"], ContinueRequest((ruling,))
    )
    return dict(document.value)


def test_session_on_the_new_side_stays_there_when_percent_grows(config_file: Path) -> None:
    text = config_file.read_text()
    sides: dict[str, list[bool]] = {f"s{number}": [] for number in range(300)}

    for percent in (0, 1, 5, 30, 99, 100):
        config_file.write_text(text.replace(f"percent = {PERCENT}", f"percent = {percent}"))
        catalog = Catalog.from_settings(load_settings(config_file, {}))
        writer = catalog.get("agent", "writer")
        assert writer is not None
        for session_id, seen in sides.items():
            side = catalog.choose_side(writer, session_id)
            assert (side.id, side.kind) == ("writer", "agent")
            seen.append(side.spec.id == "writer-v2")

        percent_seen = sum(seen[-1] for seen in sides.values()) / 3
        assert abs(percent_seen - percent) < 10

    assert all(seen == sorted(seen) for seen in sides.values())
    assert {seen[0] for seen in sides.values()} == {False}
    assert {seen[-1] for seen in sides.values()} == {True}


async def in_tens(work: Callable[[str], Awaitable[T]], names: list[str]) -> list[T]:
    """Do some work for all names, ten at a time; return the results in the order of the names."""
    results = list[T]()
    for start in range(0, len(names), 10):
        results += await asyncio.gather(*(work(name) for name in names[start : start + 10]))
    return results


@dataclass
class Servers:
    """Services of one database, of which each request takes one at random."""

    services: list[Service]

    chance: random.Random = field(default_factory=lambda: random.Random(5))

    def choose(self) -> Service:
        return self.chance.choice(self.services)

    async def talk(self, session_id: str) -> list[dict[str, Any]]:
        """Send two messages to the writer in a session; return the runs."""
        runs = []
        for turn in range(2):
            request = RunRequest(f"{turn}", session_id=session_id)
            document = await user(self.choose()).runs.create("agent", "writer", request)
            runs.append(dict(document.value))
        return runs

    async def pay(self, session_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Let a run of the payer pause on one service, and continue it on another.

        Return the run as it paused and as it ended.
        """
        request = RunRequest('{"a": 1, "b": 2}', session_id=session_id)
        document = await user(self.choose()).runs.create("agent", "payer", request)
        paused = dict(document.value)
        return paused, await approve(self.choose(), paused)


@contextlib.asynccontextmanager
async def serve_three_times(world: Deployment) -> AsyncIterator[Servers]:
    """Open three services, the last one after a change of the instructions of the payer."""
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for number in range(3):
            if number == 2:
                text = world.path.read_text()
                world.path.write_text(text.replace("First config", "Second config"))
            service = await stack.enter_async_context(open_service(world))
            await service.prepare()
            services.append(service)
        yield Servers(services)


async def test_sessions_keep_their_side_over_servers_of_two_configurations(
    world: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    names = [f"session-{number}" for number in range(SESSIONS)]
    async with serve_three_times(world) as servers:
        new = await read_current(servers.services[0], "writer-v2")
        old = await read_old_side(servers.services[0], new)

        runs_of_sessions = await in_tens(servers.talk, names)

        await servers.services[0].hosting.sums.add_ended_runs()
        wanted = UsageFilter(by=("version",), component_id="writer")
        usage: Any = await admin(servers.services[1]).usage.get(wanted)

    for name, runs in zip(names, runs_of_sessions, strict=True):
        version = new if is_on_new_side("writer", name) else old
        answers = [(run["status"], run["agent_id"], run["version"]) for run in runs]
        assert answers == [("COMPLETED", "writer", version)] * 2

    counts = {row["version"]: row["runs"] for row in usage.value["data"]}
    assert counts == Counter(run["version"] for runs in runs_of_sessions for run in runs)
    assert counts.keys() == {old, new}
    instructions = Counter(
        body["messages"][0]["content"] for body in model_endpoint.requests("echo")
    )
    assert instructions == {"Old side.": counts[old], "New side.": counts[new]}


async def test_paused_runs_keep_their_version_over_servers_of_two_configurations(
    world: Deployment,
) -> None:
    async with serve_three_times(world) as servers:
        names = [f"paying-{number}" for number in range(0, SESSIONS, 6)]
        for paused, ended in await in_tens(servers.pay, names):
            assert paused["status"] == "PAUSED"
            assert ended["status"] == "COMPLETED", ended["error"]
            assert (ended["version"], ended["version_changes"]) == (paused["version"], [])


async def test_run_of_the_new_side_goes_on_after_the_way_back(world: Deployment) -> None:
    session_id = next(name for name in map(str, range(1_000)) if is_on_new_side("payer", name))
    request = RunRequest('{"a": 1, "b": 2}', session_id=session_id)
    async with open_service(world) as service:
        await service.prepare()
        paused: Any = (await user(service).runs.create("agent", "payer", request)).value
        assert paused["version"] == await read_current(service, "payer-v2")

    text = world.path.read_text()
    world.path.write_text(text.replace(f"percent = {PERCENT}", "percent = 0"))

    async with open_service(world) as service:
        await service.prepare()
        ended = await approve(service, paused)
        later: Any = (await user(service).runs.create("agent", "payer", request)).value
        wanted = RunFilter(session_id=session_id, version=paused["version"], page=Page())
        page: Any = await user(service).runs.list(wanted)

    assert (ended["status"], ended["version"]) == ("COMPLETED", paused["version"])
    assert later["version"] != paused["version"]
    assert [row["run_id"] for row in page.value["data"]] == [paused["run_id"]]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('next = "writer-v2"', 'next = "absent"', "agents.writer.next"),
        ('next = "writer-v2"', 'next = "writer"', "must be another entry"),
        ('next = "writer-v2"', 'next = "payer"', "must be another entry"),
        ('next = "writer-v2"\n', "", "has no effect without next"),
        (f"percent = {PERCENT}", "percent = 101", "percent"),
    ],
)
def test_wrong_sides_are_refused(config_file: Path, old: str, new: str, problem: str) -> None:
    text = config_file.read_text()
    assert old in text
    config_file.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidConfiguration, match=problem):
        load_settings(config_file, {})
