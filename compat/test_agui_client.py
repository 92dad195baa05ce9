"""The page of docs/agui.md in a browser, with the real client of AG-UI."""

from __future__ import annotations

import functools
import http.server
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from compat.servers import PEERS, ROOT
from tests.agui.pages import SCOPES, plan, serve_agents
from tests.kit.browser import CHROMIUM, open_browser
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deploy
from tests.kit.documents import page
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment
from tests.kit.threaded_server import ThreadedServer

PACKAGES = ROOT / ".peers" / "agui"

pytestmark = [
    pytest.mark.skipif(
        not PEERS or CHROMIUM is None or not (PACKAGES / "node_modules").exists(),
        reason="needs chromium and @ag-ui/client: make compat",
    )
]

WITHOUT_TOOLS = ("agents/teller", "workflows/line")
"""Components that take no tools of a page."""

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder that is served at a separate origin."""
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, site: tuple[Path, str]
) -> Iterator[ThreadedServer]:
    with serve_agents(Deploy(tmp_path_factory, model_endpoint), origin=site[1]) as host:
        yield host


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


class Chat:
    """The page of the guide, which talks to one component."""

    def __init__(
        self, browser: Browser, served: ThreadedServer, site: tuple[Path, str], component: str
    ) -> None:
        folder, url = site
        guide = page("docs/agui.md")
        (html,) = (block.text for block in guide.blocks("html"))
        (script,) = (block.text for block in guide.blocks("javascript"))
        lines = [line for line in [*html.splitlines(), *script.splitlines()] if line.strip()]
        assert len(lines) <= 60
        place = "http://127.0.0.1:7777/agui/agents/clerk"
        assert place in script
        if component in WITHOUT_TOOLS:
            script = script.replace("tools: [paint]", "tools: []")
        name = component.replace("/", "-")
        source = PACKAGES / f"{name}.js"
        source.write_text(script.replace(place, f"{served.url}/agui/{component}"))
        bundle = folder / f"{name}.js"
        tool = PACKAGES / "node_modules" / ".bin" / "esbuild"
        subprocess.run(
            [str(tool), str(source), "--bundle", "--log-level=error", f"--outfile={bundle}"],
            check=True,
            env=base_environment(),
            timeout=PATIENCE,
        )
        (folder / f"{name}.html").write_text(html.replace("bundle.js", f"{name}.js"))
        self.faults: list[str] = []
        self.page: Page = browser.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on(
            "console",
            lambda said: (
                self.faults.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        self.page.goto(f"{url}/{name}.html")
        self.page.fill("#token", served.deployment.token("ada", *SCOPES))

    def say(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#form button")

    def see(self, kind: str, *texts: str) -> None:
        expect(self.page.locator(f"#log .{kind}")).to_have_text(list(texts))

    def check(self) -> None:
        """Check that the client had nothing to say about the streams."""
        shown = [fault for fault in self.faults if "favicon" not in fault and "404" not in fault]
        assert shown == []
        self.page.close()


def test_text_thinking_and_state(
    browser: Browser, served: ThreadedServer, site: tuple[Path, str]
) -> None:
    chat = Chat(browser, served, site, "agents/teller")
    chat.say("ada")
    chat.see("agent", "Hello ada {}")
    chat.see("thinking", "I look it up.")
    expect(chat.page.locator("#state")).to_have_text('{"seen":["ada"]}')
    chat.say("ben")
    chat.see("agent", "Hello ada {}", "Hello ben {}")
    expect(chat.page.locator("#state")).to_have_text('{"seen":["ada","ben"]}')
    chat.check()


def test_tool_calls_and_members(
    browser: Browser, served: ThreadedServer, site: tuple[Path, str]
) -> None:
    chat = Chat(browser, served, site, "agents/tool-add")
    chat.say('{"a": 1, "b": 2}')
    chat.see("call", 'add {"a":1,"b":2}')
    chat.see("result", "3")
    chat.see("agent", "3")
    chat.check()
    for component in ("teams/crew", "workflows/line"):
        chat = Chat(browser, served, site, component)
        chat.say("ask echo")
        expect(chat.page.locator("#log .agent").last).not_to_be_empty()
        expect(chat.page.locator("#log .error")).to_have_count(0)
        chat.check()


def test_interrupts_and_their_answers(
    browser: Browser, served: ThreadedServer, site: tuple[Path, str]
) -> None:
    chat = Chat(browser, served, site, "agents/payer")
    chat.say(plan(ADD, ADD | {"arguments": {"a": 5, "b": 5}}))
    chat.page.click("text=Approve")
    chat.see("result", "3")
    chat.page.locator("text=Reject").last.click()
    expect(chat.page.locator("#log .result")).to_have_count(2)
    expect(chat.page.locator("#log .call")).to_have_count(2)
    expect(chat.page.locator("#log .agent")).to_have_count(1)
    chat.check()


def test_tool_of_the_browser(
    browser: Browser, served: ThreadedServer, site: tuple[Path, str]
) -> None:
    chat = Chat(browser, served, site, "agents/payer")
    chat.say(plan({"name": "paint", "arguments": {"color": "rgb(1, 2, 3)"}}, ADD))
    expect(chat.page.locator("body")).to_have_css("background-color", "rgb(1, 2, 3)")
    chat.page.click("text=Approve")
    chat.see("agent", "3")
    chat.see("call", 'paint {"color":"rgb(1, 2, 3)"}', 'add {"a":1,"b":2}')
    chat.see("result", "3")
    chat.say(plan("well"))
    chat.see("agent", "3", "well")
    chat.check()


def test_refusals_reach_the_page(
    browser: Browser, served: ThreadedServer, site: tuple[Path, str]
) -> None:
    chat = Chat(browser, served, site, "agents/careful")
    chat.say(plan(ADD))
    chat.page.click("text=Approve")
    expect(chat.page.locator("#log .error")).to_contain_text("cannot be answered here")
    failing = Chat(browser, served, site, "agents/http-500")
    failing.say("hello")
    expect(failing.page.locator("#log .error")).to_have_count(1)
