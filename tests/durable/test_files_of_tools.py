"""Files in results of MCP tools, in runs that go on in another process after a kill."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentctl.store.database import Sql
from tests.durable.test_files import PICTURE, find_stored
from tests.durable.test_kills import is_called, start, wait_until_done
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.site import Server, Site, answer, call, create_site
from tests.server.files_of_runs import PDF

CONFIG = """
[[mcp_servers]]
id = "media"
command = "{python}"
args = ["{script}", "{picture}", "{paper}", "{folder}/drawn"]

[[mcp_servers]]
id = "again"
command = "{python}"
args = ["{script}", "{picture}", "{paper}", "{folder}/drawn-again"]
idempotent_tools = ["draw"]

[[models]]
id = "seeing"
provider = "openai"
model = "plan"
base_url = "{url}"
takes = ["image"]

[[agents]]
id = "durable"
durable = true
model = "seeing"
tools = ["mcp:media", "ledger_tools:visit", "ledger_tools:refund"]

[[agents]]
id = "paused"
model = "seeing"
tools = ["mcp:media", "ledger_tools:refund"]

[[agents]]
id = "repeating"
durable = true
model = "seeing"
tools = ["mcp:again"]
"""

PAY = answer(call("refund", amount=3, to="ann"))
PLANS = {
    "durable": [answer(call("media_draw")), answer(call("visit", place="inn")), PAY],
    "paused": [answer(call("media_draw")), PAY],
    "repeating": [answer(call("again_draw"))],
}

NAMES = ["_2Fpaper.pdf", "draw-1.png"]


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def count_files(site: Site, run_id: str) -> int:
    stored = Sql("SELECT count(*) FROM files WHERE run_id = :run_id")
    async with site.open_database() as database:
        return int(await database.read(stored.value(run_id=run_id)))


def check_files(site: Site, server: Server, record: dict[str, Any]) -> None:
    """Check that the session has each file of the tool once, and that its bytes are whole."""
    assert sorted(each["name"] for each in record["files"]) == NAMES
    with site.deployment.client(server.url) as client:
        query = {"session_id": record["session_id"]}
        stored = client.get("/files", params=query).json()["data"]
        assert sorted(each["name"] for each in stored) == NAMES
        for file in stored:
            content = client.get(f"/files/{file['file_id']}/content").content
            assert content == (PICTURE if file["name"] == NAMES[1] else PDF)


def count_shown(endpoint: ModelEndpoint, tool: str) -> list[int]:
    """Return how often each request of a run shows the picture, the newest request last."""
    sent = [json.dumps(body["messages"]) for body in endpoint.requests("plan")]
    return [each.count(encode(PICTURE)) for each in sent if tool in each and "drawn" in each]


@dataclass(frozen=True)
class Lost:
    """A second server, with the runs that a killed one had."""

    site: Site
    server: Server
    durable: dict[str, Any]
    paused: dict[str, Any]
    repeating: list[dict[str, Any]]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Lost]:
    folder = tmp_path_factory.mktemp("media")
    config = CONFIG.format(
        python=sys.executable,
        script=Path(__file__).parents[1] / "server" / "media_server.py",
        picture=encode(PICTURE),
        paper=encode(PDF),
        folder=folder,
        url=model_endpoint.base_url,
    )
    site = create_site(folder, model_endpoint.base_url, extra=config)
    (folder / "hold").touch()

    async def start_all(server: Server) -> list[dict[str, Any]]:
        durable, paused = [
            await start(site, server, PLANS[name], "agent", name) for name in ("durable", "paused")
        ]
        await site.wait_for_end(server, paused["run_id"], "PAUSED")
        await wait_until(partial(is_called, site, durable, "visit"))
        await wait_until_done(site, durable, 1)
        repeating = [
            await start(site, server, PLANS["repeating"], "agent", "repeating") for _ in range(4)
        ]

        async def has_saved() -> bool:
            return any([await count_files(site, run["run_id"]) for run in repeating])

        await wait_until(has_saved)
        return [durable, paused, *repeating]

    with site.serve_in_thread() as server:
        durable, paused, *repeating = asyncio.run(start_all(server))
        server.kill()
    assert find_stored(folder) == []
    (folder / "hold").unlink()
    model_endpoint.forget()
    with site.serve_in_thread() as server:
        yield Lost(site, server, durable, paused, repeating)


async def test_killed_and_paused_runs_have_each_file_of_a_tool_once(
    lost: Lost, model_endpoint: ModelEndpoint
) -> None:
    site = lost.site
    folder = site.deployment.folder
    await site.wait_for_end(lost.server, lost.durable["run_id"], "PAUSED")
    for run in (lost.durable, lost.paused):
        await site.decide(lost.server, run["run_id"], "approve", "refund")
        record = await site.wait_for_end(lost.server, run["run_id"])
        assert (record["status"], record["content"]) == ("COMPLETED", "paid 3 to ann"), record
        check_files(site, lost.server, record)
    shown = count_shown(model_endpoint, "media_draw")
    assert shown == [1] * len(shown)
    assert len(shown) == 3  # after the visit, and after each payment
    assert (folder / "drawn").read_text().splitlines() == ["draw", "draw"]
    assert site.tools_called(lost.durable) == ["refund", "visit", "visit"]
    assert site.tools_called(lost.paused) == ["refund"]
    assert find_stored(folder) == []


async def test_tool_that_is_called_again_after_a_kill_has_saved_its_files_once(
    lost: Lost, model_endpoint: ModelEndpoint
) -> None:
    for run in lost.repeating:
        record = await lost.site.wait_for_end(lost.server, run["run_id"])
        assert record["status"] == "COMPLETED", record
        check_files(lost.site, lost.server, record)
    assert set(count_shown(model_endpoint, "again_draw")) <= {1}
    assert find_stored(lost.site.deployment.folder) == []
