"""The refusal of a halted agent, as each interface words it: what, why and until when."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from agentctl.records.routes import INTERFACE_HEADER
from tests.agui.pages import Thread
from tests.ai_sdk.chats import Chat
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.mcp_wire import McpWire, read_messages
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

EXTRA = """
[openai]
enabled = true

[mcp_endpoint]
enabled = true

[agui]
enabled = true

[ai_sdk]
enabled = true
"""

SCOPES = ("agents:run", "sessions:read", "sessions:write")

DETAIL = "The agent echo is halted: too many mails (until an operator ends it)"


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    """A server with all interfaces, whose agent `echo` is halted."""
    with serve_in_thread(deploy(EXTRA, server='compatibility = "agentos"')) as host:
        halt = {"scope": "agent", "scope_id": "echo", "reason": "too many mails"}
        headers = {**host.bearer("boss", ADMIN), INTERFACE_HEADER: "2"}
        created = host.client.post("/halts", json=halt, headers=headers)
        assert created.status_code == 201, created.text
        yield host


def send_rest(served: ThreadedServer) -> httpx2.Response:
    headers = {**served.bearer("ada", *SCOPES), INTERFACE_HEADER: "2"}
    body = {"message": "x", "stream": False}
    return served.client.post("/agents/echo/runs", json=body, headers=headers)


def send_agentos(served: ThreadedServer) -> httpx2.Response:
    form = {"message": "x", "stream": "false"}
    headers = served.bearer("ada", *SCOPES)
    return served.client.post("/agents/echo/runs", data=form, headers=headers)


def send_ai_sdk(served: ThreadedServer) -> httpx2.Response:
    part = {"type": "text", "text": "x"}
    message = {"id": "m1", "role": "user", "parts": [part]}
    chat = Chat(served, "agents/echo", "halted-chat", scopes=SCOPES, messages=[message])
    return chat.post()


def send_agui(served: ThreadedServer) -> httpx2.Response:
    thread = Thread(served, "agents/echo", "halted-thread", scopes=SCOPES)
    return thread.post(thread.build("x"))


@pytest.mark.parametrize("send", [send_rest, send_agentos, send_ai_sdk, send_agui])
def test_http_has_status_code_reason_and_time(
    served: ThreadedServer, send: Callable[[ThreadedServer], httpx2.Response]
) -> None:
    refused = send(served)
    assert refused.status_code == 503, refused.text
    assert (refused.json()["detail"], refused.json()["error_code"]) == (DETAIL, "HALTED")
    assert refused.headers["Retry-After"] == "60"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("responses", {"input": "x"}),
    ],
)
def test_clients_of_openai_show_the_reason_at_once(
    served: ThreadedServer, path: str, body: dict[str, object]
) -> None:
    """A client that waited for `Retry-After`, and repeated the request, would hide it."""
    headers = served.bearer("ada", *SCOPES)
    refused = served.client.post(f"/v1/{path}", json={"model": "echo", **body}, headers=headers)
    assert refused.status_code == 503
    assert refused.json()["error"] == {
        "message": DETAIL,
        "type": "server_error",
        "param": None,
        "code": "halted",
    }
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["Retry-After"] == "60"


def test_page_of_ag_ui_gets_an_event(served: ThreadedServer) -> None:
    thread = Thread(served, "agents/echo", "halted-events", scopes=SCOPES)
    refused = thread.post(thread.build("x"), Accept="text/event-stream")
    assert json.loads(refused.text.removeprefix("data: ")) == {
        "type": "RUN_ERROR",
        "message": DETAIL,
        "code": "HALTED",
    }


def test_client_of_mcp_reads_the_reason(served: ThreadedServer) -> None:
    served_headers = served.bearer("ada", *SCOPES)
    with httpx2.Client(base_url=served.url, headers=served_headers, timeout=PATIENCE) as client:
        wire = McpWire(client)
        params = {"name": "agent_echo", "arguments": {"message": "x"}}
        called = wire.post({"id": 1, "method": "tools/call", "params": params})
    if called.headers["content-type"].startswith("application/json"):
        answer = called.json()
    else:
        *_, answer = read_messages(iter(called.text.splitlines()))
    assert answer["result"]["isError"]
    assert answer["result"]["content"] == [{"type": "text", "text": DETAIL}]


@pytest.mark.parametrize(
    ("words", "typed"),
    [(("runs", "start", "--agent", "echo", "--message", "x"), b""), (("chat", "echo"), b"x\n")],
)
def test_commands_name_the_reason_and_the_list(
    served: ThreadedServer, tmp_path: Path, words: tuple[str, ...], typed: bytes
) -> None:
    token = served.deployment.token("ada", "agents:read", *SCOPES)
    environment = {"AGENTCTL_TOKEN": token, "HOME": str(tmp_path)}
    ended = run_command(
        *words, "--url", served.url, environment=environment, folder=tmp_path, typed=typed
    )
    assert ended.code == 7, ended.stderr
    assert f"error: {DETAIL[0].lower()}{DETAIL[1:]}" in ended.stderr
    assert "hint: agentctl halts list" in ended.stderr
