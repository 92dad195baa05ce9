"""The pages of docs/ai-sdk.md and of assistant-ui in a browser, with the packages of npm."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.agui.pages import SCOPES, plan, serve_agents
from tests.ai_sdk.chats import CONFIG
from tests.ai_sdk.client import PACKAGES, needs_client
from tests.kit.browser import needs_browser, open_browser, open_context
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.documents import page
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment
from tests.kit.threaded_server import ThreadedServer
from tests.kit.world_agents import ADD

pytestmark = [*needs_browser, needs_client]

API = '"http://127.0.0.1:7777/ai/agents/clerk"'


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def read_guide() -> tuple[str, str]:
    """Return the page and the script of the guide."""
    guide = page("docs/ai-sdk.md")
    (html,) = (block.text for block in guide.blocks("html"))
    (script,) = (block.text for block in guide.blocks("jsx"))
    return html, script


@dataclass
class Site:
    """A folder with pages at a separate origin."""

    folder: Path
    url: str

    def bundle(self, html: str, script: str) -> str:
        """Write a page, unless it exists, and return its URL."""
        name = hashlib.sha256(script.encode()).hexdigest()[:8]
        url = f"{self.url}/{name}.html"
        if (self.folder / f"{name}.html").exists():
            return url
        source = PACKAGES / f"{name}.jsx"
        source.write_text(script)
        command = [
            str(PACKAGES / "node_modules" / ".bin" / "esbuild"),
            str(source),
            "--bundle",
            "--jsx=automatic",
            "--log-level=error",
            f"--outfile={self.folder / name}.js",
            '--define:process.env.NODE_ENV="production"',
        ]
        subprocess.run(command, check=True, env=base_environment(), timeout=PATIENCE)
        (self.folder / f"{name}.html").write_text(html.replace("bundle.js", f"{name}.js"))
        return url


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.fixture(scope="module")
def served(deploy: Deploy, site: Site) -> Iterator[ThreadedServer]:
    with serve_agents(deploy, CONFIG, site.url) as host:
        yield host


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


class ChatPage:
    """A chat with one component: the page of the guide by default.

    Args:
        script: another script, which has `API` in it.
        server: the URL of the server, or of a proxy before it.
    """

    def __init__(
        self,
        browser: Browser,
        served: ThreadedServer,
        site: Site,
        component: str,
        *,
        user: str = "ada",
        script: str | None = None,
        server: str | None = None,
    ) -> None:
        html, guide = read_guide()
        script = script or guide
        assert API in script
        self.served = served
        self.url = site.bundle(html, script.replace(API, "sessionStorage.api"))
        self.context = open_context(browser)
        stored = {
            "token": served.deployment.token(user, *SCOPES),
            "api": f"{server or served.url}/ai/{component}",
        }
        self.context.add_init_script(f"Object.assign(sessionStorage, {json.dumps(stored)})")
        self.page: Page = self.context.new_page()
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


def test_page_shows_text_and_thinking(browser: Browser, served: ThreadedServer, site: Site) -> None:
    chat = ChatPage(browser, served, site, "agents/teller")
    chat.say("ada")
    chat.see("text", "Hello ada {}")
    chat.see("reasoning", "I look it up.")
    chat.wait_until_ready()  # A message before is ignored.
    chat.say("ben")
    chat.see("text", "Hello ada {}", "Hello ben {}")
    chat.wait_until_ready()
    chat.close()


def test_page_answers_approvals_and_questions(
    browser: Browser, served: ThreadedServer, site: Site
) -> None:
    chat = ChatPage(browser, served, site, "agents/payer")
    chat.say(plan(ADD, ADD | {"arguments": {"a": 5, "b": 5}}))
    # The response to the message must not be taken for the one to the decision.
    chat.page.wait_for_selector("text=Approve")
    with chat.page.expect_response(lambda response: response.request.method == "POST"):
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
    body = {"message": "hello", "session_id": "witness", "background": True, "stream": False}
    ben = served.bearer("ben", *SCOPES)
    witness = served.client.post("/agents/hang/runs", json=body, headers=ben).json()
    chat = ChatPage(browser, served, site, "agents/hang")
    chat.say("hello")
    model_endpoint.wait_for_open(2)
    # A reload is no stop: the page goes on with the answer, which has no text yet.
    chat.page.reload()
    expect(chat.page.locator("#status")).to_have_text("submitted")
    model_endpoint.wait_for_open(2)
    chat.page.click("text=Stop")
    chat.wait_until_ready()
    assert chat.run()["status"] == "CANCELLED"
    model_endpoint.wait_for_open(1)
    path = f"/runs/{witness['run_id']}"
    assert served.client.get(path, headers=ben).json()["status"] == "RUNNING"
    served.client.post(f"/agents/hang{path}/cancel?session_id=witness", headers=ben)
    model_endpoint.wait_for_open(0)
    chat.close()


def test_stop_of_the_client_ends_a_run_without_a_key(
    browser: Browser, served: ThreadedServer, site: Site, model_endpoint: ModelEndpoint
) -> None:
    _, script = read_guide()
    key = '  "Idempotency-Key": crypto.randomUUID(), // the run goes on when the page is reloaded\n'
    assert key in script
    script = script.replace(key, "").replace("onClick={stop}", "onClick={chat.stop}")
    witness = ChatPage(browser, served, site, "agents/hang", user="ben")
    chat = ChatPage(browser, served, site, "agents/hang", script=script)
    for each in (witness, chat):
        each.say("hello")
    model_endpoint.wait_for_open(2)
    chat.page.click("text=Stop")
    chat.wait_until_ready()
    model_endpoint.wait_for_open(1)
    wait_for(lambda: chat.run()["status"] == "CANCELLED")
    assert witness.run()["status"] == "RUNNING"
    witness.page.click("text=Stop")
    witness.wait_until_ready()
    chat.close()
    witness.close()


def test_cut_answer_is_whole_after_a_reload(
    browser: Browser, served: ThreadedServer, site: Site, model_endpoint: ModelEndpoint
) -> None:
    with CutProxy(served.url) as proxy:
        chat = ChatPage(browser, served, site, "agents/trickle", server=proxy.url)
        chat.say("hello")
        text = chat.page.locator(".assistant .text")
        expect(text).not_to_be_empty()
        proxy.cut()
        expect(chat.page.locator(".error")).to_be_visible()
        assert chat.run()["status"] == "RUNNING"
        before = text.inner_text()
        chat.page.reload()
        expect(text).to_contain_text(before)
        chat.page.click("text=Stop")
        chat.wait_until_ready()
        run = chat.run()
        assert (run["status"], run["content"].strip()) == ("CANCELLED", text.inner_text().strip())
        chat.close()
    model_endpoint.wait_for_open(0)


def test_assistant_ui_shows_a_run_and_asks(
    browser: Browser, served: ThreadedServer, site: Site
) -> None:
    chat = AssistantPage(browser, served, site, "agents/teller")
    chat.say("ada")
    chat.see("text", "Hello ada {}")
    chat.see("reasoning", "I look it up.")
    chat.say("ben")
    chat.see("text", "Hello ada {}", "Hello ben {}")
    chat.close()
    chat = AssistantPage(browser, served, site, "agents/payer")
    chat.say(plan(ADD, ADD | {"arguments": {"a": 5, "b": 5}}))
    for results in (['add: "3"'], ['add: "3"', 'add: "10"']):
        chat.page.click("text=Approve add")
        chat.see("call", *results)
    chat.close()


def test_assistant_ui_stops_and_shows_refusals(
    browser: Browser, served: ThreadedServer, site: Site, model_endpoint: ModelEndpoint
) -> None:
    chat = AssistantPage(browser, served, site, "agents/hang")
    chat.say("hello")
    model_endpoint.wait_for_open(1)
    chat.page.click("text=Stop")
    model_endpoint.wait_for_open(0)
    chat.close()
    chat = AssistantPage(browser, served, site, "agents/echo")
    with chat.page.expect_file_chooser() as chosen:
        chat.page.click("text=Attach")
    picture = {"name": "a.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n"}
    chosen.value.set_files([picture])  # type: ignore[list-item]
    chat.say("What is it?")
    expect(chat.page.locator(".error")).to_contain_text("sessions:write")
    chat.close()


class AssistantPage(ChatPage):
    """A chat of assistant-ui."""

    def __init__(
        self, browser: Browser, served: ThreadedServer, site: Site, component: str
    ) -> None:
        script = Path(__file__).with_name("assistant_ui.jsx").read_text()
        super().__init__(browser, served, site, component, script=script)

    def say(self, text: str) -> None:
        self.page.fill("textarea", text)
        self.page.click("text=Send")


class CutProxy:
    """A proxy whose open connections can be cut."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> CutProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((self._target.hostname, self._target.port))
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError), source, sink:
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
