"""The console in a real browser, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser

from agentctl.server import create_app
from tests.console.browser import CHROMIUM, expect, open_browser, open_console
from tests.deployment import create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.server.threaded_server import ThreadedServer, serve_in_thread

__all__ = ["model_endpoint"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
]

READS = ("agents:read", "teams:read", "workflows:read", "sessions:read")
RUNS = ("agents:run", "teams:run", "workflows:run")

HOLD = """
import time
from pathlib import Path


def hold(name: str) -> str:
    \"\"\"Block the thread until a file exists.\"\"\"
    while not (Path(__file__).parent / name).exists():
        time.sleep(0.02)
    return "let go"
"""
"""A tool that cannot be interrupted and that a test ends."""

EXTRA = """
[[models]]
id = "hold"
provider = "openai"
model = "tool:hold"
base_url = "{url}"

[[agents]]
id = "hold"
name = "Hold"
model = "hold"
tools = ["console_tools:hold"]
"""

PHASES = Path(__file__).parents[1] / "records" / "phases.json"


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    folder, url = tmp_path_factory.mktemp("console"), model_endpoint.base_url
    (folder / "console_tools.py").write_text(HOLD)
    deployment = create_deployment(folder, url, extra=EXTRA.format(url=url))
    with serve_in_thread(deployment, create_app(deployment.settings)) as host:
        yield host


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def token(server: ThreadedServer, *scopes: str) -> str:
    return server.deployment.token("me", *(scopes or (*READS, *RUNS, "sessions:write")))


def start(
    server: ThreadedServer, component: str, session: str, message: str, **more: Any
) -> httpx2.Response:
    """Start a run as `me`, by default to its end."""
    body = {"message": message, "session_id": session, "stream": False, **more}
    headers = server.bearer("me", *READS, *RUNS)
    answer = server.client.post(f"/{component}/runs", json=body, headers=headers)
    assert answer.status_code in (200, 202), answer.text
    return answer


def test_browser_is_led_to_the_page_and_programs_are_not(server: ThreadedServer) -> None:
    page = server.client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["location"]) == (307, "console")
    assert server.client.get("/", headers={"Accept": "*/*"}).json()["name"] == "World"


def test_page_and_files_have_strict_headers(server: ThreadedServer) -> None:
    answer = server.client.get("/console", headers={"Accept-Encoding": "identity"})
    rules = dict(
        rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
    )
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == rules["style-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == "'none'"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    names = [part.split('"')[0] for part in answer.text.split('"console/')[1:]]
    assert names
    for name in names:
        for accepted in ("identity", "gzip"):
            asset = server.client.get(f"/console/{name}", headers={"Accept-Encoding": accepted})
            assert asset.status_code == 200
            assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert asset.headers.get("content-encoding") == (
                None if accepted == "identity" else "gzip"
            )


def test_phases_are_those_of_the_fixture(server: ThreadedServer, browser: Browser) -> None:
    cases = json.loads(PHASES.read_text())
    code = """async ([url, cases]) => {
        const {describePhase} = await import(url);
        return cases.map((each) => describePhase(each.run, Date.parse(each.at)));
    }"""
    with open_console(browser, server.url) as shown:
        main = shown.page.locator("script[type=module]").get_attribute("src") or ""
        url = f"{server.url}/{main.replace('main.js', 'phase.js')}"
        found = shown.evaluate(code, [url, cases])
    assert found == [case["phase"] for case in cases]


def test_bad_token_is_refused_and_not_kept(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/sessions") as shown:
        shown.page.fill("textarea[name=token]", "not.a.token")
        shown.page.click("button[type=submit]")
        shown.see("401:", "agentctl auth explain GET /auth/me")
        start(server, "agents/echo", "after-sign-in", "Shown after the sign-in")
        shown.sign_in(token(server))
        shown.see("Shown after the sign-in")
        assert shown.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
            0, 0, "",
        ]  # fmt: skip
        shown.page.click("text=Sign out")
        expect(shown.page.locator("textarea[name=token]")).to_have_value("")


def test_transcript_shows_tools_members_and_errors(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/tool-add", "told", '{"a": 1, "b": 2}')
    start(server, "agents/http-500", "told", "a failure")
    start(server, "teams/choir", "told-team", "sing")
    with open_console(browser, server.url, "#/sessions/told", token=token(server)) as shown:
        shown.see("add(a=1, b=2)", "✓ completed", "✗ failed", "MODEL_UNAVAILABLE")
        shown.page.click("text=add(a=1, b=2)")
        shown.see("Arguments", '"a": 1')
        shown.go("#/sessions/told-team")
        shown.see("Choir", "Echo: sing", "Http-500: sing", "MODEL_UNAVAILABLE")


def test_cancel_of_a_thread_tool_shows_both_facts(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "held", '{"name": "go"}', background=True)
    with open_console(browser, server.url, "#/sessions/held", token=token(server)) as shown:
        shown.see('hold(name="go")')
        shown.page.click("[data-cancel]")
        shown.page.fill("dialog input", "wrong customer")
        shown.page.click("dialog .danger")
        facts = shown.page.locator("[data-facts]")
        expect(facts).to_contain_text("Cancel requested")
        expect(facts).to_contain_text("Ended, but")
        shown.see("■ stopped", "! work goes on", "Reason: wrong customer")
        (server.deployment.folder / "go").touch()
        expect(facts).to_contain_text("a late result was dropped")
        expect(shown.page.locator("article")).not_to_contain_text("work goes on")


def test_message_starts_a_run_that_is_followed(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "chat", "first")
    with open_console(browser, server.url, "#/sessions/chat", token=token(server)) as shown:
        shown.see("first")
        shown.page.fill("[data-message]", "second, with **bold** words")
        shown.page.keyboard.press("Enter")
        expect(shown.page.locator(".turn")).to_have_count(2)
        expect(shown.page.locator(".turn strong")).to_have_text("bold")
        expect(shown.page.locator(".turn .status").last).to_contain_text("completed")
