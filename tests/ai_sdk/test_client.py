"""The pages of docs/ai-sdk.md and of assistant-ui in a browser, with the packages of npm."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.agui.pages import CODE, SCOPES, plan
from tests.ai_sdk.chats import CONFIG
from tests.ai_sdk.client import PACKAGES, needs_client
from tests.console.browser import SECONDS, needs_browser, open_browser
from tests.deployment import ADMIN, create_deployment
from tests.docs.pages import page
from tests.endpoint import ModelEndpoint
from tests.process import base_environment
from tests.server.threaded_server import ThreadedServer, serve_in_thread

pytestmark = [*needs_browser, needs_client]

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}

API = "http://127.0.0.1:7777/ai/agents/clerk"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Site:
    """A folder with pages at a separate origin."""

    folder: Path
    url: str

    def bundle(self, name: str, html: str, script: str) -> str:
        """Write a page, and return its URL."""
        source = PACKAGES / f"{name}.jsx"
        source.write_text(script)
        command = [
            str(PACKAGES / "node_modules" / ".bin" / "esbuild"), str(source), "--bundle",
            "--jsx=automatic", "--log-level=error", f"--outfile={self.folder / name}.js",
            '--define:process.env.NODE_ENV="production"',
        ]  # fmt: skip
        subprocess.run(command, check=True, env=base_environment(), timeout=SECONDS)
        (self.folder / f"{name}.html").write_text(html.replace("bundle.js", f"{name}.js"))
        return f"{self.url}/{name}.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, site: Site
) -> Iterator[ThreadedServer]:
    folder, url = tmp_path_factory.mktemp("ai-page"), model_endpoint.base_url
    (folder / "agui_agents.py").write_text(CODE)
    origins = f'cors_origins = ["{site.url}"]'
    deployment = create_deployment(folder, url, extra=CONFIG.format(url=url), server=origins)
    with serve_in_thread(deployment) as host:
        yield host


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


class ChatPage:
    """The page of the guide, with one component."""

    def __init__(
        self,
        browser: Browser,
        served: ThreadedServer,
        site: Site,
        component: str,
        user: str = "ada",
    ) -> None:
        guide = page("docs/ai-sdk.md")
        (html,) = (block.text for block in guide.blocks("html"))
        (script,) = (block.text for block in guide.blocks("jsx"))
        assert API in script
        self.served = served
        api = f"{served.url}/ai/{component}"
        self.url = site.bundle(component.replace("/", "-"), html, script.replace(API, api))
        self.context = browser.new_context()
        token = json.dumps(served.deployment.token(user, *SCOPES))
        self.context.add_init_script(f"sessionStorage.token = {token}")
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(SECONDS * 1000)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.goto(self.url)

    @property
    def chat_id(self) -> str:
        return str(self.page.evaluate("sessionStorage.chat"))

    def say(self, text: str) -> None:
        self.page.fill("[name=text]", text)
        self.page.click("text=Send")

    def see(self, kind: str, *texts: str) -> None:
        expect(self.page.locator(f".assistant .{kind}")).to_have_text(list(texts))

    def wait_until_ready(self) -> None:
        expect(self.page.locator("#status")).to_have_text("ready")

    def run(self) -> Any:
        """Return the newest run of the chat."""
        headers = self.served.bearer("root", ADMIN)
        path = f"/sessions/{self.chat_id}/runs"
        return self.served.client.get(path, headers=headers).json()[-1]

    def close(self) -> None:
        assert self.faults == []
        self.context.close()


def test_text_thinking_and_tools(browser: Browser, served: ThreadedServer, site: Site) -> None:
    chat = ChatPage(browser, served, site, "agents/teller")
    chat.say("ada")
    chat.see("text", "Hello ada {}")
    chat.see("reasoning", "I look it up.")
    chat.say("ben")
    chat.see("text", "Hello ada {}", "Hello ben {}")
    chat.close()
    chat = ChatPage(browser, served, site, "agents/tool-add")
    chat.say('{"a": 1, "b": 2}')
    chat.see("call", 'add: "3"')
    chat.see("text", "3")
    chat.wait_until_ready()
    chat.close()


def test_approvals_and_questions(browser: Browser, served: ThreadedServer, site: Site) -> None:
    chat = ChatPage(browser, served, site, "agents/payer")
    chat.say(plan(ADD, ADD | {"arguments": {"a": 5, "b": 5}}))
    chat.page.click("text=Approve")
    chat.page.reload()
    chat.see("question", 'May add be called? {"a":5,"b":5}ApproveDeny')
    chat.page.click("text=Deny")
    chat.see("call", 'add: "3"', 'add: "output-denied"')
    chat.wait_until_ready()
    assert chat.run()["status"] == "COMPLETED"
    chat.close()
    chat = ChatPage(browser, served, site, "agents/clerk")
    chat.say("book")
    chat.page.fill("[name=answer]", '{"seats": 2}')
    chat.page.click(".question button")
    chat.see("text", "{'seats': 2}")
    chat.wait_until_ready()
    chat.close()


def test_stop_means_stopped(
    browser: Browser, served: ThreadedServer, site: Site, model_endpoint: ModelEndpoint
) -> None:
    chat = ChatPage(browser, served, site, "agents/hang")
    witness = ChatPage(browser, served, site, "agents/hang", "ben")
    for each in (chat, witness):
        each.say("hello")
    model_endpoint.wait_for_open(2, SECONDS)
    # A reload is no stop: the page goes on with the answer, which has no text yet.
    chat.page.reload()
    expect(chat.page.locator("#status")).to_have_text("submitted")
    model_endpoint.wait_for_open(2, SECONDS)
    chat.page.click("text=Stop")
    chat.wait_until_ready()
    assert chat.run()["status"] == "CANCELLED"
    model_endpoint.wait_for_open(1, SECONDS)
    assert witness.run()["status"] == "RUNNING"
    witness.page.click("text=Stop")
    witness.wait_until_ready()
    model_endpoint.wait_for_open(0, SECONDS)
    chat.close()
    witness.close()
