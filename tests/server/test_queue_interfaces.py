"""A run that waits in the queue, as each interface shows and cancels it (docs/queue.md)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import openai
import pytest

from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.server import create_app
from tests.agui.protocol import parse_stream
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for, wait_until
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.process import serve_config
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import Event, parse_events
from tests.server.test_mcp_face import connect, get_text

EXTRA = """
[openai]
enabled = true

[mcp_endpoint]
enabled = true

[agui]
enabled = true

[[agents]]
id = "lined-agent"
model = "echo"
on_busy = "enqueue"

[[teams]]
id = "lined-team"
mode = "broadcast"
model = "echo"
members = ["echo"]
on_busy = "enqueue"

[[workflows]]
id = "lined-workflow"
steps = [{ name = "first", agent = "echo" }]
on_busy = "enqueue"
"""

BUSY: dict[ComponentKind, str] = {"agent": "hang", "team": "jam", "workflow": "stuck"}
"""A component of each kind whose runs work until they are cancelled."""

SCOPES = (
    "agents:read",
    "agents:run",
    "teams:run",
    "workflows:run",
    "sessions:read",
    "sessions:write",
)


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_in_thread(deploy(EXTRA)) as host:
        yield host


@dataclass
class Line:
    """A session whose first run is at work, so that the next one waits."""

    host: ThreadedServer
    session_id: str
    kind: ComponentKind
    first: str

    @property
    def path(self) -> str:
        return f"/{KINDS[self.kind].path}/lined-{self.kind}"

    @property
    def headers(self) -> dict[str, str]:
        return self.host.bearer("ada", *SCOPES)

    def list_waiting(self) -> list[dict[str, Any]]:
        query = {"session_id": self.session_id, "status": "PENDING"}
        page = self.host.client.get("/runs", params=query, headers=self.host.bearer("a", ADMIN))
        return [run for run in page.json()["data"] if run["queue_position"] is not None]

    def wait_for_place(self) -> str:
        """Wait until a run waits in the first place; return its id."""
        (run,) = wait_for(self.list_waiting)
        assert run["queue_position"] == 1
        return str(run["run_id"])

    def cancel(self, run_id: str, path: str | None = None) -> dict[str, Any]:
        place = f"{path or self.path}/runs/{run_id}/cancel"
        query = {"session_id": self.session_id, "wait": 30}
        found = self.host.client.post(place, params=query, headers=self.headers)
        assert found.status_code == 200, found.text
        return dict(found.json())

    def release(self) -> None:
        """End the first run, so that the next one begins."""
        self.cancel(self.first, f"/{KINDS[self.kind].path}/{BUSY[self.kind]}")

    def wait_for_end(self, run_id: str, status: str) -> None:
        path = f"/runs/{run_id}"
        headers = self.host.bearer("a", ADMIN)
        wait_for(lambda: self.host.client.get(path, headers=headers).json()["status"] == status)


@pytest.fixture
def line(served: ThreadedServer, request: pytest.FixtureRequest) -> Iterator[Line]:
    with open_line(served, request.node.name) as opened:
        yield opened


@contextmanager
def open_line(served: ThreadedServer, name: str, kind: ComponentKind = "agent") -> Iterator[Line]:
    line = Line(served, f"line-{name}", kind, "")
    body = {"message": "x", "session_id": line.session_id, "stream": False, "background": True}
    path = f"/{KINDS[kind].path}/{BUSY[kind]}/runs"
    line.first = served.client.post(path, json=body, headers=line.headers).json()["run_id"]
    yield line
    line.release()


@contextmanager
def open_stream(line: Line, **options: Any) -> Iterator[Iterator[Event]]:
    """Start a run of the line with a stream of its events."""
    sent: dict[str, Any] = {"json": {"message": "me too", "session_id": line.session_id}}
    sent = {"url": f"{line.path}/runs", **(options or sent)}
    with line.host.client.stream("POST", headers=line.headers, **sent) as response:
        assert response.status_code == 200, response.read()
        yield parse_events(each for each in response.iter_lines() if not each.startswith(":"))


@pytest.mark.parametrize("kind", ["agent", "team", "workflow"])
def test_a_stream_names_the_place_then_the_run_begins(
    served: ThreadedServer, kind: ComponentKind
) -> None:
    prefix = {"agent": "Run", "team": "TeamRun", "workflow": "Workflow"}[kind]
    with open_line(served, f"stream-{kind}", kind) as line, open_stream(line) as events:
        name, data, _ = next(events)
        assert (name, data["queue_position"]) == (f"{prefix}Queued", 1)
        line.release()
        names = [event[0] for event in events]
        assert (names[0], names[-1]) == (f"{prefix}Started", f"{prefix}Completed")


@pytest.mark.parametrize("kind", ["agent", "team", "workflow"])
def test_a_cancel_of_a_queued_run_ends_its_stream(
    served: ThreadedServer, kind: ComponentKind
) -> None:
    with open_line(served, f"cancel-{kind}", kind) as line, open_stream(line) as events:
        _, data, _ = next(events)
        assert line.cancel(data["run_id"])["cancel"] == "stopped"
        ((name, ended, _),) = list(events)
        assert name.endswith("Cancelled")
        assert ended["run_id"] == data["run_id"]


def test_a_command_shows_the_place_and_the_answer(line: Line) -> None:
    def release() -> None:
        line.wait_for_place()
        line.release()

    with in_thread(release):
        words = (
            "start",
            "--agent",
            "lined-agent",
            "--message",
            "hello",
            "--session",
            line.session_id,
        )
        shown = run(line, *words, "--stream", "-o", "jsonl")
    events = [json.loads(text)["event"] for text in shown.splitlines()]
    assert (events[0], events[1], events[-1]) == ("RunQueued", "RunStarted", "RunCompleted")


def test_a_command_cancels_a_queued_run(line: Line) -> None:
    with open_stream(line) as events:
        run_id = next(events)[1]["run_id"]
        listed = run(line, "list", "--session", line.session_id)
        assert "queued" in listed
        run(line, "cancel", run_id, "--yes")
        assert [event[0] for event in events] == ["RunCancelled"]


@contextmanager
def in_thread(work: Any) -> Iterator[None]:
    failures: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=call)
    thread.start()
    yield
    thread.join(PATIENCE)
    assert not failures, failures


def run(line: Line, *words: str) -> str:
    """Run a command of the group `runs` on the server; return what it prints."""
    token = line.host.deployment.token("ada", *SCOPES)
    options = ("--url", line.host.url)
    environment = {"AGENTCTL_TOKEN": token, "HOME": str(line.host.deployment.folder)}
    folder = line.host.deployment.folder
    result = run_command("runs", *words, *options, environment=environment, folder=folder)
    assert result.code == 0, result.stderr
    return result.stdout


@pytest.fixture
def client(served: ThreadedServer) -> Iterator[openai.OpenAI]:
    key = served.deployment.token("ada", *SCOPES)
    with openai.OpenAI(api_key=key, base_url=f"{served.url}/v1", max_retries=0) as opened:
        yield opened


def test_a_response_of_openai_is_queued_and_cancelled(line: Line, client: openai.OpenAI) -> None:
    headers = {"X-Session-ID": line.session_id}
    created = client.responses.create(
        model="lined-agent", input="hello", background=True, extra_headers=headers
    )
    assert created.status == "queued"
    assert client.responses.retrieve(created.id).status == "queued"
    assert client.responses.cancel(created.id).status == "cancelled"
    assert not line.list_waiting()


def test_a_completion_of_openai_waits_for_its_turn(line: Line, client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    headers = {"X-Session-ID": line.session_id}
    stream = client.chat.completions.create(
        model="lined-agent", messages=messages, stream=True, extra_headers=headers
    )
    line.wait_for_place()
    line.release()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == "hello"


def test_a_completion_of_openai_leaves_the_queue_with_its_client(
    line: Line, client: openai.OpenAI
) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    headers = {"X-Session-ID": line.session_id}
    stream = client.chat.completions.create(
        model="lined-agent", messages=messages, stream=True, extra_headers=headers
    )
    run_id = line.wait_for_place()
    stream.close()
    line.wait_for_end(run_id, "CANCELLED")


def test_a_page_sees_the_place_then_the_run(line: Line) -> None:
    with open_page(line) as lines:
        seen = [read_until(lines, "agentctl.queued")]
        line.release()
        events = parse_stream([*seen[0], *lines])
    kinds = [event["type"] for event in events]
    assert kinds.index("CUSTOM") < kinds.index("TEXT_MESSAGE_START")
    (queued,) = [event for event in events if event["type"] == "CUSTOM"]
    assert (queued["name"], queued["value"]) == ("agentctl.queued", {"queue_position": 1})
    assert kinds[-1] == "RUN_FINISHED"


def test_a_page_that_leaves_takes_its_run_out_of_the_queue(line: Line) -> None:
    with open_page(line) as lines:
        read_until(lines, "agentctl.queued")
        run_id = line.wait_for_place()
    line.wait_for_end(run_id, "CANCELLED")


@contextmanager
def open_page(line: Line) -> Iterator[Iterator[str]]:
    messages = [{"id": "m1", "role": "user", "content": "hello"}]
    body = {"threadId": line.session_id, "runId": "r", "messages": messages, "tools": []}
    body |= {"protocolVersion": "1.0", "state": {}, "context": [], "forwardedProps": {}}
    # A separate client: the connection closes with the stream.
    with (
        httpx2.Client(base_url=line.host.url, timeout=PATIENCE) as http,
        http.stream(
            "POST", "/agui/agents/lined-agent", json=body, headers=line.headers
        ) as response,
    ):
        assert response.status_code == 200, response.read()
        yield response.iter_lines()


def read_until(lines: Iterator[str], text: str) -> list[str]:
    read: list[str] = []
    for each in lines:
        read.append(each)
        if text in each:
            return read
    raise AssertionError(read)


async def test_a_tool_call_of_mcp_waits_and_leaves(served: ThreadedServer) -> None:
    with open_line(served, "mcp") as line:
        async with connect(served) as session:
            given = {"message": "hello", "session_id": line.session_id}
            call = asyncio.create_task(session.call_tool("agent_lined-agent", given))
            await wait_until(line.list_waiting)
            left = line.wait_for_place()
            call.cancel()
            await wait_until(lambda: not line.list_waiting())
            call = asyncio.create_task(session.call_tool("agent_lined-agent", given))
            await wait_until(line.list_waiting)
            line.release()
            assert get_text(await call) == "hello"
        line.wait_for_end(left, "CANCELLED")


def test_a_client_of_agentos_sees_the_place_and_cancels(served: ThreadedServer) -> None:
    deployment = served.deployment
    settings = deployment.settings
    adapted = replace(settings, server=replace(settings.server, compatibility="agentos"))
    form = {"message": "hello", "stream": "true", "session_id": "line-agentos"}
    with (
        serve_in_thread(deployment, create_app(adapted)) as host,
        open_line(host, "agentos") as line,
        open_stream(line, data=form) as events,
    ):
        name, data, _ = next(events)
        assert (name, data["queue_position"]) == ("CustomEvent", 1)
        cancel = f"{line.path}/runs/{data['run_id']}/cancel"
        line.host.client.post(cancel, headers=line.headers)
        names = [event[0] for event in events]
        assert names == ["RunCancelled"]


def test_a_shutdown_answers_requests_that_wait_and_keeps_their_runs(deploy: Deploy) -> None:
    deployment = deploy(EXTRA)
    first = {"message": "x", "session_id": "s", "stream": False, "background": True}
    waiting = {"message": "me too", "session_id": "s", "stream": False}
    with serve_config(deployment.path) as server, deployment.client(server.url) as client:
        client.post("/agents/hang/runs", json=first)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(client.post, "/agents/lined-agent/runs", json=waiting)
            # The first run is pending, too, until it begins.
            place = "/runs?status=PENDING&component_type=agent&component_id=lined-agent"
            (queued,) = wait_for(lambda: client.get(place).json()["data"])
            assert server.stop() == 0
            answer = asked.result()
        assert (answer.status_code, answer.json()["run_id"]) == (202, queued["run_id"])
        assert (answer.json()["status"], answer.json()["queue_position"]) == ("PENDING", 1)
    with serve_in_thread(deployment) as host, deployment.client(host.url) as client:
        read = lambda: client.get(f"/runs/{queued['run_id']}").json()  # noqa: E731
        ended = wait_for(lambda: (run := read())["finished_at"] and run)
        assert (ended["status"], ended["content"]) == ("COMPLETED", "me too")
