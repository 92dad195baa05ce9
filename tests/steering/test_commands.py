"""`agentctl runs send`, `runs messages` and the client, on a server and locally."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl.client import Client
from agentctl.runs.life.live import LiveRun
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.steering.stepping_models import SteppingModels


@pytest.fixture
def server(site: Deployment) -> Iterator[ThreadedServer]:
    with serve_in_thread(site) as served:
        yield served


Command = Callable[..., Result]


@pytest.fixture(params=["local", "remote"])
def agentctl(
    request: pytest.FixtureRequest, site: Deployment, server: ThreadedServer, tmp_path: Path
) -> Command:
    """`agentctl` for an administrator of the site, on its database or through its server."""
    door = ("--config", str(site.path))
    if request.param == "remote":
        token_file = tmp_path / "token"
        token_file.write_text(site.token("me", ADMIN))
        door = ("--url", server.url, "--token-file", str(token_file))

    def run(*arguments: str) -> Result:
        return run_command(*arguments, *door, environment={"HOME": str(tmp_path)}, folder=tmp_path)

    return run


@pytest.fixture
def client(site: Deployment, server: ThreadedServer) -> Iterator[Client]:
    with Client(server.url, site.token("me", ADMIN)) as opened:
        yield opened


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a run of this process has learned of a message."""
    noticed = threading.Event()
    note_messages = LiveRun.note_messages

    def note_and_tell(run: LiveRun) -> None:
        note_messages(run)
        noticed.set()

    monkeypatch.setattr(LiveRun, "note_messages", note_and_tell)
    return noticed


def start_held_run(client: Client, models: SteppingModels, steps: int) -> str:
    """Start a run of some steps, which waits for the first answer of its model; return its id."""
    models.hold()
    run = client.runs.start(agent="worker", message=f"work {steps} a", background=True)
    wait_for(lambda: bool(models.requests))
    return str(run["run_id"])


def finish(client: Client, models: SteppingModels, run_id: str) -> dict[str, Any]:
    """Let a run end, and return its record."""
    models.let_go()
    wait_for(lambda: client.runs.get(run_id)["status"] == "COMPLETED")
    return dict(client.runs.get(run_id))


def test_command_sends_a_message_that_the_run_answers(
    client: Client, models: SteppingModels, noticed: threading.Event, agentctl: Command
) -> None:
    run_id = start_held_run(client, models, steps=3)
    sent = agentctl("runs", "send", run_id, "only primes", "-o", "json")
    assert sent.code == 0, sent.stderr
    record = json.loads(sent.stdout)
    assert (record["status"], record["content"]) == ("waiting", "only primes")
    assert f"sent to run {run_id}" in sent.stderr

    # A server learns of the message of a command a moment later: the run might end before.
    wait_for(noticed.is_set)
    assert "only primes" in finish(client, models, run_id)["content"]


def test_command_lists_the_messages_of_a_run(
    client: Client, models: SteppingModels, agentctl: Command
) -> None:
    run_id = start_held_run(client, models, steps=1)
    client.runs.send(run_id, "only primes")
    finish(client, models, run_id)

    listed = agentctl("runs", "messages", run_id, "-o", "json")
    assert json.loads(listed.stdout) == client.runs.messages(run_id)["messages"]
    table = agentctl("runs", "messages", run_id, "-o", "table").stdout
    assert table.split()[:3] == ["ID", "STATUS", "CONTENT"]
    assert "delivered  only primes" in table
    assert agentctl("runs", "messages", "nothing").code != 0


def test_command_refuses_a_late_message_on_request(
    client: Client, models: SteppingModels, agentctl: Command
) -> None:
    run_id = start_held_run(client, models, steps=0)
    finish(client, models, run_id)

    late = agentctl("runs", "send", run_id, "x", "--late", "refuse")
    assert late.code != 0
    assert "the run had ended as COMPLETED" in late.stderr


def test_client_sends_a_message_to_a_run(client: Client, models: SteppingModels) -> None:
    run_id = start_held_run(client, models, steps=1)
    sent = client.runs.send(client.runs.get(run_id), "only primes")
    finish(client, models, run_id)
    (listed,) = client.runs.messages(run_id)["messages"]
    assert (listed["message_id"], listed["status"]) == (sent["message_id"], "delivered")


@pytest.mark.parametrize("agentctl", ["remote"], indirect=True)
def test_start_in_a_busy_session_is_sent_to_its_run(
    client: Client, models: SteppingModels, agentctl: Command
) -> None:
    start = partial(agentctl, "runs", "start", "--agent", "steered", "--session", "s1")
    models.hold()
    run = client.runs.start(agent="steered", session_id="s1", message="work 2 a", background=True)
    wait_for(lambda: bool(models.requests))

    sent = start("--message", "only primes", "--background", "-o", "json")
    assert sent.code == 0, sent.stderr
    record = json.loads(sent.stdout)
    assert record["run_id"] == run["run_id"]
    assert record["sent_message"]["status"] == "waiting"
    assert f"sent to run {run['run_id']}" in sent.stderr

    def let_go_when_sent() -> None:
        wait_for(lambda: client.runs.messages(run["run_id"])["total"] == 2)
        models.let_go()

    # The command waits for the end of the run.
    with ThreadPoolExecutor() as threads:
        sent_both = threads.submit(let_go_when_sent)
        result = start("--message", "and odd")
        sent_both.result()
    assert result.code == 0, result.stderr
    assert result.stdout == "done after work 2 a | only primes | and odd\n"
    assert f"sent to run {run['run_id']}" in result.stderr


def test_stream_of_a_message_is_open_before_its_delivery(
    site: Deployment, server: ThreadedServer, models: SteppingModels
) -> None:
    token = site.token("me", ADMIN)
    models.hold()
    with Client(server.url, token) as client:
        client.runs.start(agent="steered", session_id="s1", message="work 1 a", background=True)
        wait_for(lambda: bool(models.requests))
        request = {"message": "only primes", "session_id": "s1"}
        url = f"{server.url}/agents/steered/runs"
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.stream(
            "POST", url, json=request, headers=headers, timeout=PATIENCE
        ) as response:
            assert response.status_code == 200
            assert len(models.requests) == 1
            models.let_go()
            lines = [line for line in response.iter_lines() if line.startswith("event:")]
    assert (lines[0], lines[-1]) == ("event: MessageDelivered", "event: RunCompleted")


def list_notes(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == "CUSTOM"]


def test_page_with_tools_sends_a_message_to_its_run(
    site: Deployment, server: ThreadedServer, client: Client, models: SteppingModels
) -> None:
    """Its requests wait in the queue: two streams with a call of its tool would make it twice."""
    headers = site.bearer("me", ADMIN)
    tools = [{"name": "show", "description": "Show a text", "parameters": {"type": "object"}}]

    def post(message: str) -> list[dict[str, Any]]:
        body = build_page_request(message, message.replace(" ", "-"), tools)
        url = f"{server.url}/agui/agents/steered"
        response = httpx2.post(url, json=body, headers=headers, timeout=PATIENCE)
        assert response.status_code == 200, response.text
        return read_page_events(response.text)

    models.hold()
    with ThreadPoolExecutor() as threads:
        working = threads.submit(post, "work 2 a")
        wait_for(lambda: bool(models.requests))
        queued = threads.submit(post, "work 0 b")
        wait_for(lambda: len([*client.runs.list(session_id="s1")]) == 2)
        run_id, _ = sorted(run["run_id"] for run in client.runs.list(session_id="s1"))
        assert client.runs.send(run_id, "only primes")["status"] == "waiting"
        models.let_go()

        notes = list_notes(working.result())
        assert [note["value"]["content"] for note in notes] == ["only primes"]
        assert read_page_text(working.result()) == "done after work 2 a | only primes"
        notes = list_notes(queued.result())
        assert [note["name"] for note in notes] == ["agentctl.queued"]
        assert read_page_text(queued.result()) == "done after work 0 b"


def build_page_request(message: str, run_id: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the body of a request of AG-UI."""
    return {
        "threadId": "s1",
        "runId": run_id,
        "state": {},
        "messages": [{"id": "m1", "role": "user", "content": message}],
        "tools": tools,
        "context": [],
        "forwardedProps": {},
    }


def read_page_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream of AG-UI."""
    lines = [line for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line.removeprefix("data:")) for line in lines]


def read_page_text(events: list[dict[str, Any]]) -> str:
    """Return the text that the events of a stream of AG-UI show."""
    return "".join(each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT")


def test_page_of_a_busy_thread_sends_a_message(
    site: Deployment, server: ThreadedServer, models: SteppingModels
) -> None:
    models.hold()
    token = site.token("me", ADMIN)
    with Client(server.url, token) as client, ThreadPoolExecutor() as threads:
        run = client.runs.start(
            agent="steered", session_id="s1", message="work 2 a", background=True
        )
        wait_for(lambda: bool(models.requests))
        body = build_page_request("only primes", "page-2", [])

        def post() -> httpx2.Response:
            headers = {"Authorization": f"Bearer {token}"}
            url = f"{server.url}/agui/agents/steered"
            return httpx2.post(url, json=body, headers=headers, timeout=PATIENCE)

        answer = threads.submit(post)
        wait_for(lambda: client.runs.messages(run["run_id"])["total"] == 1)
        models.let_go()
        response = answer.result()
        assert response.status_code == 200, response.text

    events = read_page_events(response.text)
    assert (events[0]["type"], events[0]["runId"]) == ("RUN_STARTED", "page-2")
    note = next(event for event in events if event["type"] == "CUSTOM")
    assert (note["name"], note["value"]["content"]) == ("agentctl.message", "only primes")
    assert read_page_text(events) == "done after work 2 a | only primes"
    assert events[-1]["type"] == "RUN_FINISHED"
