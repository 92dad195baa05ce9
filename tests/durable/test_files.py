"""Runs with a picture that go on in another process: their states have references alone."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl.interface.requests import RunRequest
from tests.durable.test_kills import wait_until_done
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.site import SCOPES, Server, Site, answer, call, create_site
from tests.server.files_of_runs import build_png, upload

AGENTS = """
[[models]]
id = "holding"
provider = "openai"
model = "tool:hold"
base_url = "{url}"
takes = ["image"]

[[agents]]
id = "configured"
durable = true
model = "holding"
tools = ["looking_agents:hold"]

[[agents]]
id = "graph"
durable = true
object = "looking_agents:durable_graph"

[[agents]]
id = "typed"
durable = true
object = "looking_agents:typed"

[[models]]
id = "seeing"
provider = "openai"
model = "plan"
base_url = "{url}"
takes = ["image"]

[[agents]]
id = "showing-graph"
durable = true
object = "looking_agents:showing_graph"

[[agents]]
id = "showing"
durable = true
object = "looking_agents:showing"

[[agents]]
id = "confirming"
object = "looking_agents:confirming"

[[agents]]
id = "asking"
object = "looking_agents:asking"
"""

KILLED = ("configured", "graph", "typed")
PAUSED = ("confirming", "asking")
SHOWING = ("showing-graph", "showing")

PICTURE = build_png(77)


async def start(site: Site, server: Server, agent: str, message: str = "") -> str:
    headers = site.deployment.bearer("ann", *SCOPES)
    with httpx2.Client(base_url=server.url, headers=headers) as client:
        file_id = upload(client, "dot.png", PICTURE)
    message = message or f'{{"who": "{agent}"}}'
    request = RunRequest(message, background=True, files=(file_id,))
    async with site.connect(server) as operations:
        return str((await operations.runs.create("agent", agent, request)).value["run_id"])


def find_stored(folder: Path) -> list[str]:
    """Return the forms in which the database has the bytes of the picture."""
    stored = b"".join(path.read_bytes() for path in folder.glob("*.db*") if path.is_file())
    forms = {
        "bytes": PICTURE,
        "base64": base64.b64encode(PICTURE),
        "url": base64.urlsafe_b64encode(PICTURE),
        "twice": base64.b64encode(base64.b64encode(PICTURE))[8:-8],
    }
    return [name for name, form in forms.items() if form in stored]


@dataclass(frozen=True)
class Lost:
    """A second server, with the runs that a killed one had, by their agents."""

    site: Site
    server: Server
    runs: dict[str, str]


async def start_all(site: Site, server: Server) -> dict[str, str]:
    """Start a run of each agent, and wait until it waits or calls a tool that waits."""
    folder = site.deployment.folder
    runs = {agent: await start(site, server, agent) for agent in (*KILLED, *PAUSED)}
    for agent in SHOWING:
        plan = [answer(call("show"), call("hold", who=agent)), answer(text="done")]
        runs[agent] = await start(site, server, agent, json.dumps(plan))

    for agent in (*KILLED, *SHOWING):
        await wait_until((folder / f"held-{agent}").exists)
    for agent in PAUSED:
        await site.wait_for_end(server, runs[agent], "PAUSED")
    for agent in SHOWING:
        await wait_until_done(site, {"run_id": runs[agent]}, 1)
    return runs


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Lost]:
    folder = tmp_path_factory.mktemp("files")
    shutil.copy(Path(__file__).with_name("looking_agents.py"), folder)
    (folder / "picture.png").write_bytes(PICTURE)
    (folder / "hold").touch()
    url = model_endpoint.base_url
    site = create_site(folder, url, extra=AGENTS.format(url=url))
    with site.serve_in_thread() as server:
        runs = asyncio.run(start_all(site, server))
        server.kill()
    assert find_stored(folder) == []
    (folder / "hold").unlink()
    # Only what an earlier process has stored shows it.
    (folder / "picture.png").unlink()
    model_endpoint.forget()
    with site.serve_in_thread() as server:
        yield Lost(site, server, runs)


@pytest.mark.parametrize("agent", [*KILLED, *PAUSED])
async def test_run_with_a_picture_goes_on_after_a_death(
    lost: Lost, model_endpoint: ModelEndpoint, agent: str
) -> None:
    site = lost.site
    run_id = lost.runs[agent]
    if agent in PAUSED:
        await site.decide(lost.server, run_id, "approve", "hold")
    record = await site.wait_for_end(lost.server, run_id)
    assert (record["status"], record["content"]) == ("COMPLETED", f"held {agent}"), record
    assert [each["name"] for each in record["messages"][0]["files"]] == ["dot.png"]
    sent = [
        body["messages"]
        for body in model_endpoint.requests()
        if f'"who\\": \\"{agent}' in json.dumps(body["messages"][0])
    ]
    prompt: dict[str, Any] = sent[-1][0]
    shown = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    assert [part["image_url"]["url"] for part in prompt["content"][1:]] == [shown]
    assert find_stored(site.deployment.folder) == []


async def test_results_with_pictures_are_kept_without_their_bytes(
    lost: Lost, model_endpoint: ModelEndpoint
) -> None:
    site = lost.site
    records = {agent: await site.wait_for_end(lost.server, lost.runs[agent]) for agent in SHOWING}
    assert [record["status"] for record in records.values()] == ["COMPLETED"] * 2, records
    assert records["showing-graph"]["content"] == hashlib.sha256(PICTURE).hexdigest()
    sent = json.dumps(model_endpoint.requests("plan")[-1]["messages"])
    # The picture of the user, and that of the tool.
    assert sent.count(base64.b64encode(PICTURE).decode()) == 2
    assert find_stored(site.deployment.folder) == []
