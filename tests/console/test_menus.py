"""The menus of the console, and the ways between console and chat."""

from __future__ import annotations

from dataclasses import replace

from playwright.sync_api import Browser

from agentctl.config.settings import Console
from agentctl.server import create_app
from tests.console.browser import expect, needs_browser, open_console
from tests.console.deployed import start, token
from tests.server.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

LIST = ".menu-list:popover-open"


def test_menu_is_used_with_keys_and_closed_by_escape(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "menus", "A session with a menu")
    with open_console(browser, server.url, "#/sessions/menus", token=token(server)) as shown:
        shown.see("A session with a menu")
        page = shown.page
        button = page.get_by_role("button", name="More actions of the session")
        button.press("Enter")
        expect(page.locator(f"{LIST} button").first).to_be_focused()
        page.keyboard.press("ArrowUp")
        expect(page.locator(f"{LIST} button").last).to_be_focused()
        page.keyboard.press("ArrowDown")
        expect(page.locator(f"{LIST} button").first).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator(LIST)).to_have_count(0)
        expect(button).to_be_focused()
        assert shown.evaluate("location.hash") == "#/sessions/menus"


def test_session_is_opened_in_the_chat_without_another_sign_in(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "to-chat", "From the console to the chat")
    with open_console(browser, server.url, "#/sessions/to-chat", token=token(server)) as shown:
        shown.see("From the console to the chat")
        shown.choose("Open in the chat")
        expect(shown.page.locator(".threads a[aria-current]")).to_contain_text("From the console")
        shown.choose("Open the console", menu="Account")
        expect(shown.page.locator(".rail")).to_contain_text("Sessions")


def test_console_has_no_way_to_a_chat_that_is_switched_off(
    server: ThreadedServer, browser: Browser
) -> None:
    settings = replace(server.deployment.settings, console=Console(chat=False))
    with (
        serve_in_thread(server.deployment, create_app(settings)) as host,
        open_console(browser, host.url, "#/sessions", token=token(server)) as shown,
    ):
        shown.see("Sessions")
        shown.page.click("[data-menu^='Account']")
        expect(shown.page.locator(LIST)).to_contain_text("Sign out")
        expect(shown.page.locator("a[href='chat']")).to_have_count(0)
