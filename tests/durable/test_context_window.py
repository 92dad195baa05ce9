"""A durable agent that outgrows its context window sends the same from every process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from agentctl.interface.requests import RunRequest
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.site import Server, Site, create_site

TOOLS = '''
import time
from pathlib import Path

from agentctl import tool

FOLDER = Path(__file__).parent


@tool(idempotent=True)
def fetch(size: int, mark: str) -> str:
    """Fetch a page of some size."""
    if mark.split()[0] == "8" and (FOLDER / "hold").exists():
        (FOLDER / f"held-{size}").touch()
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

[[agents]]
id = "stepping"
durable = true
model = "tokens"
tools = ["fetching:fetch"]
summary = {{ model = "tokens" }}
"""

AGENTS = {
    "long": ("work 14 500", ["tool_result", "turns"]),
    "stepping": ("work 14 400 60", ["tool_result", "summarized"]),
}
"""The end of a message, and what the last call of its run leaves out, by agent."""


async def run(site: Site, server: Server, agent: str, message: str) -> str:
    async with site.connect(server) as operations:
        request = RunRequest(message, background=True)
        return str((await operations.runs.create("agent", agent, request)).value["run_id"])


def list_requests(endpoint: ModelEndpoint, message: str) -> list[Any]:
    """Return the requests of a run, without the ids of calls and its message."""
    bodies = [[body["messages"], body.get("tools")] for body in endpoint.requests()]
    texts = [text for text in map(json.dumps, bodies) if message in text]
    # The request for a summary of the session has neither tools nor their calls.
    texts = [text for text in texts if "fetch" in text]
    return [re.sub(r"call_\d+_0", "call", text.replace(message, "message")) for text in texts]


async def test_lost_run_goes_on_with_the_same_requests(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "fetching.py").write_text(TOOLS)
    site = create_site(
        folder, model_endpoint.base_url, extra=AGENT.format(url=model_endpoint.base_url)
    )
    (folder / "hold").touch()
    first: dict[str, Any] = {}
    with site.serve_in_thread() as server:
        for agent, (work, _) in AGENTS.items():
            first[agent] = await run(site, server, agent, f"lost {work}")
        for size in (500, 400):
            await wait_until((folder / f"held-{size}").exists)
        server.kill()
    (folder / "hold").unlink()
    with site.serve_in_thread() as server:
        for agent, (work, kinds) in AGENTS.items():
            lost = await site.wait_for_end(server, first[agent])
            second = await run(site, server, agent, f"kept {work}")
            kept = await site.wait_for_end(server, second)
            assert (lost["status"], kept["status"]) == ("COMPLETED", "COMPLETED")
            requests = list_requests(model_endpoint, f"lost {work}")
            assert requests == list_requests(model_endpoint, f"kept {work}")
            turns = [request for request in requests if "read_tool_result" in request]
            assert turns[-1] == requests[-1]
            assert len([text for text in requests if not text.endswith("null]")]) == 15
            compacted = [
                [each["compacted"] for each in record["messages"] if "compacted" in each]
                for record in (lost, kept)
            ]
            assert [each["kind"] for each in compacted[0][-1]["omissions"]] == kinds
            assert [len(each) for each in compacted] == [len(compacted[0])] * 2
            texts = [[each["summary"] for each in one if each["summary"]] for one in compacted]
            assert texts[0] == texts[1]
            assert bool(texts[0]) == (agent == "stepping")
