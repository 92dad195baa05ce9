"""A server whose agents follow plans and wait for a file, for tests that repeat runs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import httpx2

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.database_checks import stored_events

__all__ = [
    "CODE", "EXTRA", "PLAN", "SCOPES", "Place", "Run", "call", "create_place_deployment",
    "open_place", "say", "serve_place",
]  # fmt: skip

Run = dict[str, Any]

CODE = '''
import asyncio
import pathlib

from agentctl import RunContext

FOLDER = pathlib.Path(__file__).parent


def _write(line):
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(line + "\\n")


def record(entry: str) -> str:
    """Write an entry."""
    _write(entry)
    return f"recorded {entry}"


async def hold(entry: str) -> str:
    """Write an entry, and wait until the gate is open."""
    _write(entry)
    while not (FOLDER / "gate").exists():
        await asyncio.sleep(0.01)
    return f"held {entry}"


def refuse(entry: str) -> str:
    """Fail until the gate is open."""
    _write(entry)
    if not (FOLDER / "gate").exists():
        raise ValueError("closed")
    return f"let in {entry}"


async def code(message: str, context: RunContext) -> str:
    _write(f"code {message}")
    return f"{len(context.history)} before: {message}"
'''

EXTRA = """
[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"
retries = 0

[[agents]]
id = "planner"
name = "Planner"
model = "plan"
instructions = "Follow the plan."
tools = ["repeated:record", "repeated:hold", "repeated:refuse"]

[[agents]]
id = "code"
name = "Code"
object = "repeated:code"

[[teams]]
id = "planners"
name = "Planners"
mode = "coordinate"
model = "plan"
members = ["planner", "echo"]

[[teams]]
id = "all"
name = "All"
mode = "broadcast"
model = "history"
members = ["planner"]

[[workflows]]
id = "steps"
name = "Steps"
steps = [
  {{ name = "first", agent = "planner" }},
  {{ name = "second", agent = "planner" }},
]
"""

SCOPES = (
    "agents:run", "agents:read", "teams:run", "teams:read", "workflows:run", "workflows:read",
    "sessions:read", "sessions:delete",
)  # fmt: skip


class Place:
    """The server with its ledger, and the calls of one user."""

    def __init__(self, server: ThreadedServer, endpoint: ModelEndpoint) -> None:
        self.server = server
        self.endpoint = endpoint
        self.folder = server.deployment.folder
        self.headers = server.bearer("ann", *SCOPES)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Run]:
        response = self.server.client.post(path, json=body, headers={**self.headers, **headers})
        return response.status_code, response.json() if response.content else {}

    def start(self, component: str, message: Any, **more: Any) -> Run:
        text = message if isinstance(message, str) else json.dumps(message)
        body = {"message": text, "stream": False, **more}
        status, run = self.post(f"/{component}/runs", body)
        assert status in (200, 202), run
        return run

    def get(self, run_id: str) -> Run:
        response = self.server.client.get(f"/runs/{run_id}", headers=self.headers)
        assert response.status_code == 200, response.text
        record: Run = response.json()
        return record

    def clear(self) -> None:
        """Remove the file that the agents wait for, and the ledger."""
        for name in ("gate", "ledger"):
            (self.folder / name).unlink(missing_ok=True)

    def ledger(self) -> list[str]:
        file = self.folder / "ledger"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def wait_for_entry(self, entry: str) -> None:
        self.wait_for_entries(entry, 1)

    def wait_for_entries(self, entry: str, number: int) -> None:
        wait_for(lambda: self.ledger().count(entry) >= number, problem=self.ledger)

    def wait_for_stored_call(self, run: Run, tool_call_id: str) -> None:
        """Wait until the database has the start of a tool call, which is stored after it begins."""
        with contextlib.closing(apsw.Connection(str(self.folder / "main.db"))) as connection:

            def is_stored() -> bool:
                events = stored_events(connection, run["run_id"])
                calls = (event.data.get("tool", {}).get("tool_call_id") for event in events)
                return tool_call_id in calls

            wait_for(is_stored, problem=lambda: self.get(run["run_id"]))

    def wait_for_end(self, run: Run) -> Run:
        get = partial(self.get, run["run_id"])
        return dict(wait_for(lambda: (now := get())["finished_at"] and now, problem=get))

    def cancel(self, component: str, run: Run) -> None:
        path = f"/{component}/runs/{run['run_id']}/cancel?session_id={run['session_id']}&wait=30"
        status, record = self.post(path, None)
        assert (status, record["cancel"]) == (200, "stopped"), record

    def interrupt(self, component: str, plan: list[Any], entry: str) -> Run:
        """Start a run and cancel it while it holds."""
        run = self.start(component, plan, background=True)
        self.wait_for_entry(entry)
        self.cancel(component, run)
        (self.folder / "gate").touch()
        return self.get(run["run_id"])

    def repeat(self, component: str, run: Run, verb: str = "retry", **body: Any) -> tuple[int, Run]:
        return self.post(f"/{component}/runs/{run['run_id']}/{verb}", {"stream": False, **body})

    def confirm(self, component: str, run: Run, verb: str = "retry", **body: Any) -> Run:
        """Repeat a run with the hash of the plan that a 409 shows."""
        status, refusal = self.repeat(component, run, verb, **body)
        assert (status, refusal["error_code"]) == (409, "NEEDS_CONFIRMATION"), refusal
        confirmed = {**body, "confirm": refusal["plan"]["confirm"]}
        status, record = self.repeat(component, run, verb, **confirmed)
        assert status == 200, record
        return record


def create_place_deployment(folder: Path, endpoint: ModelEndpoint) -> Deployment:
    """Write the configuration and the code of the agents."""
    (folder / "repeated.py").write_text(CODE)
    url = endpoint.base_url
    return create_deployment(folder, url, extra=EXTRA.format(url=url))


@contextlib.contextmanager
def open_place(folder: Path, endpoint: ModelEndpoint) -> Iterator[Place]:
    """Serve the agents in a thread."""
    deployment = create_place_deployment(folder, endpoint)
    with serve_in_thread(deployment) as host:
        yield Place(host, endpoint)


@contextlib.contextmanager
def serve_place(
    deployment: Deployment, endpoint: ModelEndpoint
) -> Iterator[tuple[Place, ServerProcess]]:
    """Serve the agents in a process."""
    with (
        serve_config(deployment.path) as server,
        httpx2.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        yield Place(ThreadedServer(deployment, server.url, client), endpoint), server


def call(name: str, call_id: str, **arguments: Any) -> Run:
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": f"next {call_id}", "tool_calls": calls}


def say(text: str) -> Run:
    return {"role": "assistant", "content": text}


PLAN = [
    call("record", "c1", entry="one"),
    call("hold", "c2", entry="two"),
    call("record", "c3", entry="three"),
    say("finished"),
]
