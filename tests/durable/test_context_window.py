"""A durable agent that outgrows its context window sends the same from every process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentctl.interface.requests import RunRequest
from tests.endpoint import ModelEndpoint
from tests.gated.site import Site, create_site, kill
from tests.loops import wait_until
from tests.process import ServerProcess

TOOLS = '''
import time
from pathlib import Path

from agentctl import tool

FOLDER = Path(__file__).parent


@tool(idempotent=True)
def fetch(size: int, mark: str) -> str:
    """Fetch a page of some size."""
    if mark == "8" and (FOLDER / "hold").exists():
        (FOLDER / "held").touch()
        while (FOLDER / "hold").exists():
            time.sleep(0.01)
    return (mark + " page ") * (size // 8)
'''

AGENT = """
[[models]]
id = "tokens"
provider = "openai"
model = "tokens:1000"
context_tokens = 1000
base_url = "{url}"

[[agents]]
id = "long"
durable = true
model = "tokens"
tools = ["fetching:fetch"]
"""


async def run(site: Site, server: ServerProcess, message: str) -> str:
    async with site.connect(server) as operations:
        request = RunRequest(message, background=True)
        return str((await operations.create_run("agent", "long", request)).value["run_id"])


def list_requests(endpoint: ModelEndpoint, message: str) -> list[Any]:
    """Return the requests of a run, without the ids of calls and its message."""
    # The request for a summary of the session has no tools.
    bodies = (body for body in endpoint.requests() if "tools" in body)
    texts = [json.dumps([body["messages"], body["tools"]]) for body in bodies]
    texts = [text for text in texts if message in text]
    return [re.sub(r"call_\d+_0", "call", text.replace(message, "message")) for text in texts]


@pytest.mark.slow
async def test_lost_run_goes_on_with_the_same_requests(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "fetching.py").write_text(TOOLS)
    site = create_site(
        folder, model_endpoint.base_url, extra=AGENT.format(url=model_endpoint.base_url)
    )
    lost, other = "lost work 14 500", "kept work 14 500"
    (folder / "hold").touch()
    with site.serve("first") as server:
        run_id = await run(site, server, lost)
        await wait_until((folder / "held").exists)
        kill(server)
    (folder / "hold").unlink()
    with site.serve("second") as server:
        first = await site.wait_for_end(server, run_id)
        second = await site.wait_for_end(server, await run(site, server, other))
    assert (first["status"], second["status"]) == ("COMPLETED", "COMPLETED")
    requests = list_requests(model_endpoint, lost)
    assert len(requests) == 15
    assert requests == list_requests(model_endpoint, other)
    assert "read_tool_result" in requests[-1]
    compacted = [
        [each["compacted"] for each in record["messages"] if "compacted" in each]
        for record in (first, second)
    ]
    kinds = [omission["kind"] for omission in compacted[0][-1]["omissions"]]
    assert kinds == ["tool_result", "turns"]
    assert [len(each) for each in compacted] == [len(compacted[0])] * 2
