"""Parts of every page: keys, menus, ways between console and chat, texts that are not executed."""

from __future__ import annotations

from dataclasses import replace

from playwright.sync_api import Browser

from agentctl.config.settings import Console
from agentctl.server import create_app
from tests.auth.signed import signed
from tests.console.deployed import READS, RUNS, start, token
from tests.kit.browser import (
    HOSTILE,
    MARKUP,
    PRESS,
    check_view,
    expect,
    needs_browser,
    open_console,
)
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

LIST = ".menu-list:popover-open"


def test_keys_lead_through_the_pages(server: ThreadedServer, browser: Browser) -> None:
    for number in range(2):
        start(server, "agents/tool-add", "keys", f'{{"a": {number}, "b": 1}}')
    body = {"session_name": "By key"}
    headers = server.bearer("me", *READS, "sessions:write")
    assert server.client.post("/sessions/keys/rename", json=body, headers=headers).is_success
    place = "#/sessions?name=By%20key"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        press = shown.page.keyboard.press
        expect(shown.page.locator("tbody")).to_contain_text("By key")
        press("/")
        expect(shown.page.get_by_role("combobox", name="Filters")).to_be_focused()
        press("Escape")
        press("j")
        press(" ")
        expect(shown.page.locator("tbody input")).to_be_checked()
        press("Enter")
        expect(shown.page.locator("[data-message]")).to_be_enabled()
        press("n")
        expect(shown.page.locator("[data-message]")).to_be_focused()
        press("Escape")
        opened = shown.page.locator(".inside")
        for key, count in (("o", 1), ("[", 1), ("o", 2), ("o", 1), ("O", 2), ("O", 0)):
            press(key)
            expect(opened).to_have_count(count)
        press("t")
        shown.see("Tool:Add · timeline")
        press("?")
        shown.see("Single-letter keys")
        check_view(shown)
        press("Escape")
        expect(shown.page.locator("dialog")).to_have_count(0)
        shown.evaluate(PRESS, ["g", "a"])
        shown.see("Workflows")


def test_menu_is_used_with_keys_and_leads_to_the_chat_and_back(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "menus", "A session with a menu")
    with open_console(browser, server.url, "#/sessions/menus", token=token(server)) as shown:
        shown.see("A session with a menu")
        button = shown.page.get_by_role("button", name="More actions of the session")
        entries = shown.page.locator(f"{LIST} button")
        button.press("Enter")
        expect(entries.first).to_be_focused()
        shown.page.keyboard.press("ArrowUp")
        expect(entries.last).to_be_focused()
        shown.page.keyboard.press("ArrowDown")
        expect(entries.first).to_be_focused()
        shown.page.keyboard.press("Escape")
        expect(shown.page.locator(LIST)).to_have_count(0)
        expect(button).to_be_focused()
        assert shown.evaluate("location.hash") == "#/sessions/menus"

        shown.choose("Open in the chat")
        chats = shown.page.locator(".threads a[aria-current]")
        expect(chats).to_contain_text("A session with a menu")
        shown.choose("Open the console", menu="Account")
        expect(shown.page.locator(".rail")).to_contain_text("Sessions")


def test_hostile_texts_are_shown_as_text(server: ThreadedServer, browser: Browser) -> None:
    headers = server.bearer(MARKUP, *READS, *RUNS, "sessions:write", "audit:read")
    message = f"{HOSTILE} [x](javascript:alert(3)) ![y](https://other.invalid/y.png)"
    body = {"message": message, "session_id": "hostile", "stream": False}
    body |= {"metadata": {MARKUP: MARKUP}}
    answer = server.client.post("/agents/hostile/runs", json=body, headers=headers)
    run = answer.json()["run_id"]
    renamed = {"session_name": HOSTILE}
    server.client.post("/sessions/hostile/rename", json=renamed, headers=headers)
    place = {"session_state": {MARKUP: MARKUP}, "metadata": {MARKUP: MARKUP}}
    server.client.patch("/sessions/hostile", json=place, headers=headers)
    places = (
        *("#/sessions", "#/runs?all=1", f"#/runs/{run}/timeline", "#/agents"),
        *("#/agents/agents/hostile", "#/audit", "#/access", "#/sessions/hostile"),
    )
    secret = headers["Authorization"].partition(" ")[2]
    with open_console(browser, server.url, places[0], token=secret) as shown:
        for place in places:
            shown.go(place)
            shown.see("<img src=x onerror=alert(1)>")
            assert shown.evaluate("document.querySelectorAll('#app img, #app script').length") == 0
            assert "\u202e" not in shown.page.locator("#app").inner_text()

        answered = shown.page.locator(".markdown")
        expect(answered).to_contain_text("x (javascript:alert(3))")
        expect(answered).to_contain_text("\\u202e")
        link = answered.locator("a")
        expect(link).to_have_attribute("rel", "noreferrer noopener nofollow")
        shown.choose("Show as JSON")
        shown.see(f'"{MARKUP}": "{MARKUP}"')


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


def test_token_without_scopes_opens_no_page(server: ThreadedServer, browser: Browser) -> None:
    empty = signed(server.deployment, "me", scopes=None, scope="agents:read")
    with open_console(browser, server.url, "#/access", token=empty) as shown:
        shown.see("none: this token grants nothing")
        for place in ("#/sessions", "#/sessions/told", "#/runs", "#/agents", "#/audit"):
            shown.go(place)
            expect(shown.page.locator("h2:text-is('Not allowed')")).to_have_count(1)
            shown.see("your token has no scopes")
            shown.see("the server does not read these claims: scope")
