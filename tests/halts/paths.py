"""The ways to begin work of a lane, each with the scope of its halt."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx2

from tests.server.mcp_wire import McpWire

TOOL = '''
import os
import pathlib

import agentctl

LEDGER = pathlib.Path(__file__).parents[{above}] / "ledger.log"


@agentctl.tool(idempotent=True)
async def mark(note: str) -> str:
    """Note that the call was made."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, note.encode() + b"\\n")
    os.close(file)
    return "marked"
'''

LANE = """
[[agents]]
id = "lane-{n}"
model = "counted"
tools = ["marks:mark"]

[[agents]]
id = "queued-{n}"
model = "counted"
tools = ["marks:mark"]
on_busy = "enqueue"

[[agents]]
id = "asks-{n}"
model = "counted"
tools = ["marks:mark"]
approve = {{ mark = "user" }}

[[agents]]
id = "durable-{n}"
model = "counted"
tools = ["marks:mark"]
durable = true

[[teams]]
id = "team-{n}"
mode = "route"
model = "counted"
members = ["lane-{n}"]

[[workflows]]
id = "flow-{n}"
steps = [{{ name = "one", agent = "lane-{n}" }}, {{ name = "two", agent = "lane-{n}" }}]
"""

HEAD = """
[[models]]
id = "counted"
provider = "openai"
model = "counted"
base_url = "{url}/v1"
retries = 0

[mcp_endpoint]
enabled = true
[openai]
enabled = true
[agui]
enabled = true
[ai_sdk]
enabled = true
"""

_numbers = itertools.count(1)
_lock = threading.Lock()


def next_text(lane: int, path: str) -> str:
    """Return a message that names its lane and no other run has."""
    with _lock:
        return f"lane-{lane}-{path}-{next(_numbers)}"


class Path(NamedTuple):
    """A way to begin work."""

    begin: Callable[[httpx2.Client, int], object]
    """Begins work of a lane once; returns when it has ended, was refused, or waits."""

    scope: str = "agent"
    component: str = "lane"


def _run(client: httpx2.Client, component: str, lane: int, path: str, **body: Any) -> Any:
    kind = "agents"
    if component in ("team", "flow"):
        kind = "teams" if component == "team" else "workflows"
    text = {"message": next_text(lane, path), "stream": False, **body}
    return client.post(f"/{kind}/{component}-{lane}/runs", json=text)


def begin_start(client: httpx2.Client, lane: int) -> object:
    return _run(client, "lane", lane, "start")


def begin_queue(client: httpx2.Client, lane: int) -> object:
    for _ in range(3):
        session = {"session_id": f"queue-{lane}", "background": True}
        _run(client, "queued", lane, "queue", **session)
    return None


def begin_retry(client: httpx2.Client, lane: int) -> object:
    return _repeat(client, lane, "retry", {})


def begin_fork(client: httpx2.Client, lane: int) -> object:
    return _repeat(client, lane, "fork", {"at": 0})


def _repeat(client: httpx2.Client, lane: int, verb: str, body: dict[str, Any]) -> object:
    first = _run(client, "lane", lane, verb)
    if first.status_code != 200:
        return None
    run_id = first.json()["run_id"]
    path = f"/agents/lane-{lane}/runs/{run_id}/{verb}"
    asked = client.post(path, json={**body, "stream": False})
    if asked.status_code == 409:
        confirm = asked.json()["plan"]["confirm"]
        return client.post(path, json={**body, "stream": False, "confirm": confirm})
    return asked


def begin_member(client: httpx2.Client, lane: int) -> object:
    return _run(client, "team", lane, "member")


def begin_step(client: httpx2.Client, lane: int) -> object:
    return _run(client, "flow", lane, "step")


def begin_decided(client: httpx2.Client, lane: int) -> object:
    run = _run(client, "asks", lane, "decided")
    if run.status_code != 200:
        return None
    filters = {"run_id": run.json()["run_id"], "status": "pending"}
    for asked in client.get("/approvals", params=filters).json()["data"]:
        client.post(
            f"/agents/asks-{lane}/approvals/{asked['approval_id']}/decide",
            json={"decision": "approve", "arguments_hash": asked["arguments_hash"]},
        )
    return None


def begin_durable(client: httpx2.Client, lane: int) -> object:
    return _run(client, "durable", lane, "durable", background=True)


def begin_mcp(client: httpx2.Client, lane: int) -> object:
    with McpWire(client).call(f"agent_lane-{lane}", 7, message=next_text(lane, "mcp")) as messages:
        return [*messages]


def begin_agui(client: httpx2.Client, lane: int) -> object:
    text = next_text(lane, "agui")
    body = {
        "threadId": text,
        "runId": text,
        "state": {},
        "messages": [{"id": "1", "role": "user", "content": text}],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    return client.post(f"/agui/agents/lane-{lane}", json=body)


def begin_openai(client: httpx2.Client, lane: int) -> object:
    messages = [{"role": "user", "content": next_text(lane, "openai")}]
    body = {"model": f"lane-{lane}", "messages": messages}
    return client.post("/v1/chat/completions", json=body)


def begin_ai_sdk(client: httpx2.Client, lane: int) -> object:
    text = next_text(lane, "ai")
    message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = {"id": text, "messages": [message], "trigger": "submit-message"}
    return client.post(f"/ai/agents/lane-{lane}", json=body)


PATHS: dict[str, Path] = {
    "start": Path(begin_start),
    "queue": Path(begin_queue, component="queued"),
    "retry": Path(begin_retry),
    "fork": Path(begin_fork),
    "member": Path(begin_member, "team", "team"),
    "step": Path(begin_step, "workflow", "flow"),
    "decided": Path(begin_decided, component="asks"),
    "durable": Path(begin_durable, component="durable"),
    "mcp": Path(begin_mcp),
    "agui": Path(begin_agui),
    "openai": Path(begin_openai),
    "ai": Path(begin_ai_sdk),
}
