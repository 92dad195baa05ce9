"""agent-ui, the open chat page for AgentOS, on this server.

The requests of the page are replayed as its source makes them, in CI as well. The page itself is
opened in Chromium with `AGENTCTL_TEST_AGENT_UI`, the folder of a checkout of the repository
`agno-agi/agent-ui` that `npm install` and `npm run build` have built. It is not a package of npm,
and its build loads fonts from the network, so `make compat` does not install it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port
from tests.kit.process import base_environment, serve_config

CHECKOUT = os.environ.get("AGENTCTL_TEST_AGENT_UI", "")
CHROMIUM = "/usr/bin/chromium"

WAIT = 20_000.0
"""Milliseconds until an element must be visible."""


class Page:
    """The requests that the page makes."""

    def __init__(self, url: str, token: str, origin: str) -> None:
        headers = {"Authorization": f"Bearer {token}", "Origin": origin}
        self.client = httpx2.Client(base_url=url, headers=headers, timeout=30)

    def get(self, path: str, **query: str) -> Any:
        """Send a GET as the page does, with a content type and without a body."""
        answer = self.client.get(path, params=query, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, path: str, message: str, session_id: str = "") -> list[Any]:
        """Send a message; return the objects that the page finds in the answer."""
        fields = {"message": message, "stream": "true", "session_id": session_id}
        parts = {name: (None, value) for name, value in fields.items()}
        answer = self.client.post(f"{path}/runs", files=parts)
        assert answer.status_code == 200, answer.text
        return list(find_objects(answer.text))


def find_objects(text: str) -> Iterator[Any]:
    """Yield every complete JSON object with an event, and skip the text between them."""
    start = text.find("{")
    while start >= 0:
        found, end = json.JSONDecoder().raw_decode(text, start)
        assert "event" in found, found
        assert "data" not in found, found
        yield found
        start = text.find("{", end)


@contextmanager
def serve_page(folder: Path, model_url: str, origin: str) -> Iterator[tuple[str, str]]:
    """Serve for an origin; yield the address of the server and a token."""
    server = f'compatibility = "agentos"\ncors_origins = ["{origin}"]'
    deployment = create_deployment(folder, model_url, server=server)
    with serve_config(deployment.path) as running:
        yield running.url, deployment.token("ann", ADMIN)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("page")
    origin = "http://localhost:3000"
    with serve_page(folder, model_endpoint.base_url, origin) as (url, token):
        opened = Page(url, token, origin)
        yield opened
        opened.client.close()


def test_page_connects_and_lists(page: Page) -> None:
    preflight = page.client.options(
        "/agents/echo/runs",
        headers={
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        },
    )
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert page.get("/health")["status"] == "ok"
    for path in ("/agents", "/teams"):
        for entry in page.get(path):
            assert entry["id"]
            assert entry["name"]
            assert entry["db_id"]
            assert entry["model"]["model"]
            assert entry["model"]["provider"]
    wrong = page.client.get("/agents", headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401


def test_page_chats_and_opens_the_session(page: Page) -> None:
    events = page.send("/agents/tool-add", '{"a": 1, "b": 2}')
    started = events[0]
    ended = events[-1]
    assert (started["event"], ended["event"]) == ("RunStarted", "RunCompleted")
    assert (started["session_id"], ended["content"]) == (ended["session_id"], "3")
    assert "".join(e["content"] for e in events if e["event"] == "RunContent") == "3"
    (tool,) = [event["tool"] for event in events if event["event"] == "ToolCallCompleted"]
    assert (tool["tool_name"], tool["tool_call_id"] != "", tool["created_at"] > 0) == (
        "add", True, True
    )  # fmt: skip
    session_id = started["session_id"]
    page.send("/agents/tool-add", '{"a": 3, "b": 4}', session_id)
    wanted = {"type": "agent", "component_id": "tool-add", "db_id": "main"}
    (listed,) = page.get("/sessions", **wanted)["data"]
    assert (listed["session_id"], bool(listed["session_name"])) == (session_id, True)
    runs = page.get(f"/sessions/{session_id}/runs", type="agent", db_id="main")
    assert [(run["run_input"], run["content"]) for run in runs] == [
        ('{"a": 1, "b": 2}', "3"), ('{"a": 3, "b": 4}', "7")
    ]  # fmt: skip
    assert runs[0]["tools"][0]["tool_name"] == "add"
    assert page.client.delete(f"/sessions/{session_id}?db_id=main").status_code == 204
    assert page.get("/sessions", **wanted)["data"] == []


def test_page_shows_a_failure_and_the_own_line(page: Page) -> None:
    events = page.send("/agents/http-500", "why")
    assert (events[-1]["event"], bool(events[-1]["content"])) == ("RunError", True)
    runs = page.get(f"/sessions/{events[0]['session_id']}/runs", type="agent", db_id="main")
    assert [(run["run_input"], run["content"]) for run in runs] == [("why", events[-1]["content"])]
    missing = page.client.post("/agents/nothing/runs", files={"message": (None, "x")})
    assert (missing.status_code, missing.json()["detail"]) == (404, "Agent not found")


def test_page_reads_a_session_whose_run_works(page: Page) -> None:
    fields = {"message": (None, "wait"), "stream": (None, "true"), "session_id": (None, "live")}
    with page.client.stream("POST", "/agents/hang/runs", files=fields) as answer:
        lines = answer.iter_lines()  # Without a reference the stream would be closed.
        assert any('"RunStarted"' in line for line in lines)
        query = {"type": "agent", "db_id": "main"}
        assert page.client.get("/sessions/live/runs", params=query).status_code == 404


def test_page_shows_members_before_their_team(page: Page) -> None:
    events = page.send("/teams/crew", "use echo")
    assert (events[0]["event"], events[-1]["event"]) == ("TeamRunStarted", "TeamRunCompleted")
    session_id = events[0]["session_id"]
    member, team = page.get(f"/sessions/{session_id}/runs", type="team", db_id="main")
    assert (member["agent_id"], team["team_id"], team["run_input"]) == ("echo", "crew", "use echo")


@pytest.fixture(scope="module")
def agent_ui() -> Iterator[str]:
    """The page of the checkout, served by its own server; yields its origin."""
    if not CHECKOUT:
        pytest.skip("needs a built checkout of agent-ui: AGENTCTL_TEST_AGENT_UI=FOLDER")
    port = find_free_port()
    origin = f"http://localhost:{port}"
    command = ["node", "node_modules/next/dist/bin/next", "start", "-p", str(port)]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=CHECKOUT, env=base_environment(), **streams) as process:
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    urllib.request.urlopen(origin, timeout=5).close()
                    break
                except OSError:
                    assert time.monotonic() < deadline, "agent-ui did not start"
                    time.sleep(0.1)
            yield origin
        finally:
            process.terminate()


def test_agent_ui_works_in_a_browser(
    agent_ui: str, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    from playwright.sync_api import expect, sync_playwright

    with (
        serve_page(tmp_path, model_endpoint.base_url, agent_ui) as (url, token),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        view = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
        view.set_default_timeout(WAIT)
        expect.set_options(timeout=WAIT)
        stored = json.dumps({"state": {"selectedEndpoint": url}, "version": 0})
        view.add_init_script(f"localStorage.setItem('endpoint-storage', {json.dumps(stored)})")

        def sign_in() -> None:
            """Set the token, which a reload forgets."""
            view.get_by_text("NO TOKEN SET").click()
            view.get_by_placeholder("Enter authentication token...").fill(token)
            view.keyboard.press("Enter")

        def chat(component: str, message: str) -> None:
            """Open a component, set the token and send a message."""
            view.goto(f"{agent_ui}/?{component}")
            sign_in()
            box = view.get_by_placeholder("Ask anything")
            expect(box).to_be_enabled()
            box.fill(message)
            box.press("Enter")

        main = view.get_by_role("main")
        chat("agent=echo", "hello")
        expect(view.get_by_role("heading", name="hello")).to_be_visible()
        expect(main.get_by_text("hello", exact=True)).to_have_count(2)
        view.get_by_role("combobox").last.click()
        expect(view.get_by_role("option", name="Tool:Add")).to_be_visible()
        view.keyboard.press("Escape")
        chat("agent=tool-add", '{"a": 20, "b": 22}')
        expect(main.get_by_text("42", exact=True)).to_be_visible()
        expect(main.get_by_text("add", exact=True).first).to_be_visible()
        chat("agent=http-500", "a failure")
        expect(view.get_by_text("The model is not available now").first).to_be_visible()
        chat("team=crew", "use echo")
        expect(main.get_by_text("use echo", exact=True).nth(1)).to_be_visible()

        # Open a session after a reload, and delete it.
        view.goto(f"{agent_ui}/?agent=http-500")
        sign_in()
        session = view.get_by_role("heading", name="a failure")
        session.click()
        expect(view.get_by_text("a failure")).to_have_count(2)
        expect(view.get_by_text("The model is not available now").first).to_be_visible()
        session.hover()
        view.locator("h4").locator("xpath=../..").get_by_role("button").click()
        view.get_by_role("button", name="Delete").click()
        expect(session).to_be_hidden()
        browser.close()
