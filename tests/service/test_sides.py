"""Two versions of an agent side by side: sessions keep their side, and are counted separately."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from tests.service.callers import admin, open_service, user

SESSIONS = 10_000 if os.environ.get("AGENTCTL_TEST_LONG") else 24

PERCENT = 30

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


def find_bucket(component: str, session_id: str) -> int:
    digest = hashlib.sha256(f"agent/{component}/{session_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 100


async def read_current(service: Service, name: str) -> str:
    document: Any = await user(service).components.list_versions("agent", name, VersionFilter())
    (current,) = [each["version"] for each in document.value["data"] if each["is_current"]]
    return str(current)


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
        share = sum(seen[-1] for seen in sides.values()) / 3
        assert abs(share - percent) < 10
    assert all(seen == sorted(seen) for seen in sides.values())
    assert {seen[0] for seen in sides.values()} == {False}
    assert {seen[-1] for seen in sides.values()} == {True}


async def test_sessions_keep_their_side_over_servers_of_two_configurations(
    world: Deployment, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    async with contextlib.AsyncExitStack() as stack:
        services = []
        for number in range(3):
            if number == 2:
                text = world.path.read_text()
                world.path.write_text(text.replace("First config", "Second config"))
            service = await stack.enter_async_context(open_service(world))
            await service.prepare()
            services.append(service)
        new = await read_current(services[0], "writer-v2")
        listed: Any = await user(services[0]).components.list_versions(
            "agent", "writer", VersionFilter()
        )
        versions = {each["version"] for each in listed.value["data"]}
        assert {each["is_current"] for each in listed.value["data"]} == {True}
        (old,) = versions - {new}

        chosen = random.Random(5)

        async def talk(number: int) -> None:
            session_id = f"session-{number}"
            for turn in range(2):
                request = RunRequest(f"{turn}", session_id=session_id)
                service = chosen.choice(services)
                run: Any = (await user(service).runs.create("agent", "writer", request)).value
                assert (run["status"], run["agent_id"]) == ("COMPLETED", "writer")
                is_new = find_bucket("writer", session_id) < PERCENT
                assert run["version"] == (new if is_new else old)
            if number % 6 == 0:
                await pay(f"paying-{number}")

        async def pay(session_id: str) -> None:
            request = RunRequest('{"a": 1, "b": 2}', session_id=session_id)
            first = chosen.choice(services)
            run: Any = (await user(first).runs.create("agent", "payer", request)).value
            assert run["status"] == "PAUSED"
            (asked,) = run["approvals"]
            ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
            decided = await user(chosen.choice(services)).runs.continue_run(
                "agent", "payer", run["run_id"], ContinueRequest((ruling,))
            )
            ended: Any = decided.value
            assert ended["status"] == "COMPLETED", ended["error"]
            assert (ended["version"], ended["version_changes"]) == (run["version"], [])

        for start in range(0, SESSIONS, 10):
            await asyncio.gather(*(talk(n) for n in range(start, min(start + 10, SESSIONS))))

        expected = Counter(
            new if find_bucket("writer", f"session-{number}") < PERCENT else old
            for number in range(SESSIONS)
        )
        await services[0].hosting.sums.add_ended_runs()
        usage: Any = await admin(services[1]).usage.get(
            UsageFilter(by=("version",), component_id="writer")
        )
        counted = {row["version"]: row["runs"] for row in usage.value["data"]}
        assert counted == {version: 2 * count for version, count in expected.items()}
        instructions = Counter(
            body["messages"][0]["content"] for body in model_endpoint.requests("echo")
        )
        assert instructions == {"Old side.": counted[old], "New side.": counted[new]}


async def test_run_of_the_new_side_goes_on_after_the_way_back(world: Deployment) -> None:
    session_id = next(
        name for name in map(str, range(1_000)) if find_bucket("payer", name) < PERCENT
    )
    async with open_service(world) as service:
        await service.prepare()
        request = RunRequest('{"a": 1, "b": 2}', session_id=session_id)
        run: Any = (await user(service).runs.create("agent", "payer", request)).value
        assert run["version"] == await read_current(service, "payer-v2")
    text = world.path.read_text()
    world.path.write_text(text.replace(f"percent = {PERCENT}", "percent = 0"))
    async with open_service(world) as service:
        await service.prepare()
        (asked,) = run["approvals"]
        ruling = Ruling("approve", asked["arguments_hash"], approval_id=asked["approval_id"])
        ended: Any = (
            await user(service).runs.continue_run(
                "agent", "payer", run["run_id"], ContinueRequest((ruling,))
            )
        ).value
        assert (ended["status"], ended["version"]) == ("COMPLETED", run["version"])
        again = RunRequest('{"a": 1, "b": 2}', session_id=session_id)
        later: Any = (await user(service).runs.create("agent", "payer", again)).value
        assert later["version"] != run["version"]
        page: Any = await user(service).runs.list(
            RunFilter(session_id=session_id, version=run["version"], page=Page())
        )
        assert [each["run_id"] for each in page.value["data"]] == [run["run_id"]]


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
