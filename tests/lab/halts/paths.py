"""The ways to begin work that a halt has to stop, and the agents that work on each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx2

from tests.kit.mcp_wire import McpWire
from tests.lab.halts.counting_endpoint import TAKEOVER

TOOL = '''
import agentctl
import lab_ledger


@agentctl.tool(idempotent=True)
async def mark(note: str) -> str:
    """Note that the call was made."""
    lab_ledger.write(note=note)
    return "marked"
'''
"""The tool of all agents: an entry of the ledger for each call, with the time of its begin."""

CONFIG = """
[runs]
on_halt = "{on_halt}"

[mcp_endpoint]
enabled = true
[openai]
enabled = true
[agui]
enabled = true
[ai_sdk]
enabled = true

[[models]]
id = "counted"
provider = "openai"
model = "counted"
base_url = "{url}"
retries = 0

[[agents]]
id = "marker"
model = "counted"
tools = ["marks:mark"]

[[agents]]
id = "queued"
model = "counted"
tools = ["marks:mark"]
on_busy = "enqueue"

[[agents]]
id = "asks"
model = "counted"
tools = ["marks:mark"]
approve = { mark = "user" }

[[agents]]
id = "lasting"
model = "counted"
model_calls = 200
tools = ["marks:mark"]
durable = true

[[teams]]
id = "office"
mode = "route"
model = "counted"
members = ["marker"]

[[workflows]]
id = "flow"
steps = [{ name = "one", agent = "marker" }, { name = "two", agent = "marker" }]
"""

COMPONENTS = (
    ("agent", "marker"),
    ("agent", "queued"),
    ("agent", "asks"),
    ("agent", "lasting"),
    ("team", "office"),
    ("workflow", "flow"),
)
"""The components of the paths: halts of all of them stop every path."""

QUEUED_RUNS = 3

REPEATED_RUNS = 20
"""Runs that are retried or forked from one run, before another one takes its place."""

_numbers = itertools.count(1)
_lock = threading.Lock()


def next_text(path: str) -> str:
    """Return a message that names its path and that no other run has."""
    with _lock:
        return f"work-{path}-{next(_numbers)}"


class Caller:
    """A client that begins work of one path again and again.

    Attributes:
        client: sends the requests.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.client: httpx2.Client
        self._repeated_id: str | None = None
        self._repetitions = 0

    def start(self, component: str, kind: str = "agents", **body: Any) -> httpx2.Response:
        """Start a run and wait for its end, or its place in the queue."""
        body = {"message": next_text(self.path), "stream": False, **body}
        return self.client.post(f"/{kind}/{component}/runs", json=body)

    def repeat(self, verb: str, **body: Any) -> httpx2.Response:
        """Retry or fork a run that has ended."""
        if self._repeated_id is None or self._repetitions >= REPEATED_RUNS:
            first = self.start("marker")
            # A run that is lost with its process has not stored the results of all its calls.
            if first.status_code != 200 or first.json()["status"] != "COMPLETED":
                return first
            self._repeated_id = first.json()["run_id"]
            self._repetitions = 0

        self._repetitions += 1
        path = f"/agents/marker/runs/{self._repeated_id}/{verb}"
        body["stream"] = False
        answer = self.client.post(path, json=body)
        if answer.status_code == 409:
            confirm = answer.json()["plan"]["confirm"]
            answer = self.client.post(path, json={**body, "confirm": confirm})
        return answer


def begin_start(caller: Caller) -> httpx2.Response:
    return caller.start("marker")


def begin_queue(caller: Caller) -> httpx2.Response:
    session_id = next_text("session")
    for _ in range(QUEUED_RUNS - 1):
        queued = caller.start("queued", session_id=session_id, background=True)
        if queued.status_code != 202:
            return queued
    return caller.start("queued", session_id=session_id)


def begin_retry(caller: Caller) -> httpx2.Response:
    return caller.repeat("retry")


def begin_fork(caller: Caller) -> httpx2.Response:
    return caller.repeat("fork", at=0)


def begin_member(caller: Caller) -> httpx2.Response:
    return caller.start("office", "teams")


def begin_step(caller: Caller) -> httpx2.Response:
    return caller.start("flow", "workflows")


def begin_decided(caller: Caller) -> httpx2.Response:
    run = caller.start("asks")
    if run.status_code != 200:
        return run
    filters = {"run_id": run.json()["run_id"], "status": "pending"}
    asked = caller.client.get("/approvals", params=filters)
    for approval in asked.json().get("data", ()):
        caller.client.post(
            f"/agents/asks/approvals/{approval['approval_id']}/decide",
            json={"decision": "approve", "arguments_hash": approval["arguments_hash"]},
        )
    return run


def begin_durable(caller: Caller) -> httpx2.Response:
    return caller.start("lasting")


def begin_takeover(caller: Caller) -> httpx2.Response:
    """Begin a run that hangs in this process until it dies."""
    return caller.start("lasting", background=True)


def begin_mcp(caller: Caller) -> httpx2.Response:
    wire = McpWire(caller.client)
    call = {"name": "agent_marker", "arguments": {"message": next_text("mcp")}}
    return wire.post({"id": 7, "method": "tools/call", "params": call})


def begin_agui(caller: Caller) -> httpx2.Response:
    text = next_text("agui")
    body = {
        "threadId": text,
        "runId": text,
        "state": {},
        "messages": [{"id": "1", "role": "user", "content": text}],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    return caller.client.post("/agui/agents/marker", json=body)


def begin_openai(caller: Caller) -> httpx2.Response:
    body = {"model": "marker", "messages": [{"role": "user", "content": next_text("openai")}]}
    return caller.client.post("/v1/chat/completions", json=body)


def begin_ai(caller: Caller) -> httpx2.Response:
    text = next_text("ai")
    message = {"id": "1", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = {"id": text, "messages": [message], "trigger": "submit-message"}
    return caller.client.post("/ai/agents/marker", json=body)


class Path(NamedTuple):
    """A way to begin work."""

    begin: Callable[[Caller], httpx2.Response]
    """Begins work once; returns the answer when it has ended, was refused, or waits."""

    agents: int = 1
    """The agents that work on a message, one after another; each calls the model and the tool."""

    team_calls: int = 0
    """Calls of the model by the team above them."""

    first_calls: int = 0
    """Calls of a run before the event that the path is about: a decision, or a takeover."""


PATHS: dict[str, Path] = {
    "start": Path(begin_start),
    "queue": Path(begin_queue),
    "retry": Path(begin_retry),
    "fork": Path(begin_fork),
    "member": Path(begin_member, team_calls=1),
    "step": Path(begin_step, agents=2),
    "decided": Path(begin_decided, first_calls=1),
    "durable": Path(begin_durable),
    # A call of the model, of the tool, and the call that hangs.
    TAKEOVER: Path(begin_takeover, first_calls=3),
    "mcp": Path(begin_mcp),
    "agui": Path(begin_agui),
    "openai": Path(begin_openai),
    "ai": Path(begin_ai),
}
