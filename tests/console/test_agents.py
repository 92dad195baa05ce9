"""The pages of agents, teams and workflows: what they are, and how one starts a run of them."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.deployed import start, token
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser


def test_components_show_their_parts(server: ThreadedServer, browser: Browser) -> None:
    start(server, "teams/crew", "configured", "Look up the price")
    with open_console(browser, server.url, "#/agents", token=token(server)) as shown:
        shown.see("A leader and two members", "Workflows")
        check_view(shown)

        shown.go("#/agents/agents/refunds")
        expect(shown.page.locator("[data-instructions]")).to_have_text("Refund what is due.")
        facts = shown.page.locator("[data-configuration]")
        expect(facts).to_contain_text("approverefund user")
        expect(facts).to_contain_text("model tool:refund · provider openai")
        assert "http" not in facts.inner_text()

        shown.go("#/agents/teams/crew")
        shown.see("Members", "Hang", "team · model delegate · mode coordinate", "completed")
        shown.go("#/agents/workflows/broken")
        shown.see("Steps", "first")


def test_agent_is_started_in_the_background(server: ThreadedServer, browser: Browser) -> None:
    (server.deployment.folder / "x").touch()
    with open_console(browser, server.url, "#/agents", token=token(server)) as shown:
        shown.page.click("a.card:has-text('Hold')")
        shown.see("hold(name)")
        check_view(shown)
        shown.page.fill("[data-message]", '{"name": "x"}')
        shown.page.check("text=in the background")
        shown.page.click("button:text-is('Start')")
        started = shown.page.locator("p[role=status] a")
        expect(started).to_have_count(1)
        assert shown.evaluate("location.hash") == "#/agents/agents/hold"
        expect(shown.page.locator("tbody")).to_contain_text(started.inner_text())

        started.click()
        expect(shown.page.locator(".turn .status").last).to_contain_text("completed")
        shown.page.click("text=hold(name=")
        expect(shown.page.locator(".inside button:has-text('show all')")).to_have_count(1)
        shown.page.click("[aria-label='Tool call as JSON']")
        expect(shown.page.locator("dialog pre")).to_contain_text("." * 11_999)


def test_caller_that_may_only_run_starts_and_decides(
    server: ThreadedServer, browser: Browser
) -> None:
    only = token(server, "agents:run")
    with open_console(browser, server.url, "#/agents", token=only) as shown:
        shown.see("This needs agents:read; your token has agents:run.")
        shown.page.fill("input[name=id]", "echo")
        shown.page.click("text=Open")
        shown.see("Reading this needs agents:echo:read.")
        shown.page.fill("[data-message]", "said with *little* rights")
        shown.page.click("button:text-is('Start')")
        expect(shown.page.locator(".turn em")).to_have_text("little")

        shown.go("#/agents/agents/refunds")
        shown.page.fill("[data-message]", '{"order": "A-7", "amount": 10}')
        shown.page.click("button:text-is('Start')")
        shown.page.click("[data-waits] button")
        expect(shown.page.locator("dialog")).to_contain_text("amount10")
        shown.page.click("dialog button[type=submit]")
        shown.see("✓ completed")
