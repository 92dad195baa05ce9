"""Pages that talk to a server over HTTP, and the agents that they talk to."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.agui.protocol import Event, parse_stream
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.kit.world_agents import OFFICE, PLANNED

SCOPES = ("agents:run", "teams:run", "workflows:run", "sessions:read")
APPROVER = ("approvals:read", "approvals:write")
ORIGIN = "https://app.example.org"

CODE = '''
from collections.abc import AsyncIterator

from agentctl import Progress, RunContext, Thinking


async def tell(message: str, context: RunContext) -> AsyncIterator[object]:
    """Think, report progress, change the state, and answer."""
    yield Thinking("I look ")
    yield Thinking("it up.")
    yield Progress("half", 0.5)
    context.state["seen"] = [*context.state.get("seen", []), message]
    context.state.pop("draft", None)
    yield "Hello "
    yield f"{message} {dict(context.dependencies)}"


async def clerk(message: str, context: RunContext) -> str:
    """Ask."""
    schema = {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]}
    answer = await context.ask("How many seats?", schema)
    return f"{answer}"
'''

CONFIG = (
    """
[agui]
enabled = true

[[agents]]
id = "teller"
object = "agui_agents:tell"

[[agents]]
id = "clerk"
object = "agui_agents:clerk"

[[workflows]]
id = "duty"
steps = [{{ name = "ask", agent = "asker" }}, {{ name = "work", agent = "hang" }}]
"""
    + PLANNED
    + OFFICE
)


def plan(*calls: Mapping[str, Any] | str) -> str:
    """Return the message that makes the model `plan` send these calls, or texts, in order."""
    messages: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        if isinstance(call, str):
            messages.append({"content": call})
            continue
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        messages.append(
            {"tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}
        )
    return json.dumps(messages)


@contextlib.contextmanager
def serve_agents(
    deploy: Deploy, config: str = CONFIG, origin: str = ORIGIN
) -> Iterator[ThreadedServer]:
    """Serve the agents of `CODE` for pages of another origin."""
    files = {"agui_agents.py": CODE}
    origins = f'cors_origins = ["{origin}"]'
    deployment = deploy(config.format(url=deploy.url), files=files, server=origins)
    with serve_in_thread(deployment) as host:
        yield host


@dataclass
class Thread:
    """A conversation of a page."""

    host: ThreadedServer
    component: str
    thread_id: str
    user: str = "ada"
    scopes: tuple[str, ...] = SCOPES
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def build(self, message: str | None = None, **fields: Any) -> dict[str, Any]:
        """Return a request with one message, as `@ag-ui/client` sends it."""
        messages = [] if message is None else [{"id": "m1", "role": "user", "content": message}]
        return {
            "threadId": self.thread_id,
            "runId": f"run-{next(self._numbers)}",
            "protocolVersion": "1.0",
            "state": {},
            "messages": messages,
            "tools": [],
            "context": [],
            "forwardedProps": {},
            **fields,
        }

    def post(self, body: Any, **headers: str) -> httpx2.Response:
        fields = {**self.host.bearer(self.user, *self.scopes), **headers}
        return self.host.client.post(f"/agui/{self.component}", json=body, headers=fields)

    def send(self, message: str | None = None, **fields: Any) -> list[Event]:
        """Send a request and return the events of its stream, which has to be valid."""
        body = self.build(message, **fields)
        response = self.post(body)
        assert response.status_code == 200, response.text
        events = parse_stream(response.text.splitlines())
        assert (events[0]["threadId"], events[0]["runId"]) == (body["threadId"], body["runId"])
        return events

    def refuse(self, status: int, message: str | None = None, **fields: Any) -> str:
        """Send a request that is refused, and return the text of the error."""
        response = self.post(self.build(message, **fields))
        assert response.status_code == status, response.text
        return str(response.json()["detail"])


def answer(interrupt: Mapping[str, Any], payload: Any = None, **fields: Any) -> dict[str, Any]:
    """Return an entry of `resume`."""
    given = {} if payload is None else {"payload": payload}
    return {"interruptId": interrupt["id"], "status": "resolved", **given, **fields}


def interrupts_of(events: list[Event]) -> list[dict[str, Any]]:
    outcome = events[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    found: list[dict[str, Any]] = outcome["interrupts"]
    return found
