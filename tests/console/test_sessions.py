"""The sessions of the console: search in their texts, and holds."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.browser import expect, needs_browser, open_console
from tests.console.deployed import READS, start, token
from tests.deployment import ADMIN
from tests.server.threaded_server import ThreadedServer

pytestmark = needs_browser


def test_typed_words_find_own_sessions_only(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "found", "The quokka arrived; <b>say nothing</b>")
    start(server, "agents/echo", "not-found", "The wombat arrived")
    body = {"message": "My platypus met a quokka", "session_id": "found-by-others", "stream": False}
    other = server.bearer("other", "agents:run")
    assert server.client.post("/agents/echo/runs", json=body, headers=other).is_success
    with open_console(browser, server.url, "#/sessions", token=token(server)) as shown:
        rows = shown.page.locator("tbody tr")
        expect(rows.filter(has_text="The wombat arrived")).to_have_count(1)
        shown.filter("ARRIVED quok*")
        expect(rows).to_have_count(1)
        expect(rows.locator("mark")).to_have_text(["quok", "arrived"] * 2)
        expect(rows.locator(".found")).to_contain_text("<b>say nothing</b>")
        assert "search=ARRIVED" in shown.evaluate("location.hash")
        shown.filter("platypus")
        shown.see("No sessions match.", "are found after agentctl db index")
        shown.page.click("text=Clear filters")
        expect(rows.filter(has_text="The wombat arrived")).to_have_count(1)


def test_administrator_holds_and_releases_a_session(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "evidence", "Keep this session")
    admin = server.deployment.token("boss", ADMIN)
    deleter = token(server, *READS, "sessions:delete", "sessions:write")
    refused = (
        "Session evidence is held and is not deleted. An administrator can release it on its page."
    )
    with open_console(browser, server.url, "#/sessions/evidence", token=admin) as shown:
        click = shown.page.click
        dialog = shown.page.locator("dialog")
        shown.choose("Hold…")
        shown.page.fill("dialog input", "claim \u202e17")
        click("dialog button:text-is('Hold')")
        held = shown.page.locator("[data-hold]")
        expect(held).to_contain_text("by boss: claim \\u202e17")
        shown.go("#/sessions?id=evidence")
        row = shown.page.locator("tbody tr")
        expect(row.locator(".chip")).to_have_text("held")
        row.locator("input").check()
        click("text=Delete 1 session…")
        click("dialog .danger")
        expect(dialog.locator("[role=alert]")).to_have_text(refused)
        click("dialog button:text-is('Keep')")
        with open_console(browser, server.url, "#/sessions?id=evidence", token=deleter) as owned:
            row = owned.page.locator("tbody tr")
            row.locator("input").check()
            expect(row.locator(".chip")).to_have_count(0)
            owned.page.click("text=Delete 1 session…")
            owned.page.click("dialog .danger")
            expect(owned.page.locator("dialog [role=alert]")).to_have_text(refused)
            owned.page.click("dialog button:text-is('Keep')")
            owned.page.click("tbody [data-row]")
            owned.page.click("[aria-label='More actions of the session']")
            expect(owned.page.locator("button:text-is('Rename…')")).to_have_count(1)
            for name in ("Hold…", "Release…"):
                expect(owned.page.locator(f"button:text-is('{name}')")).to_have_count(0)
        shown.page.click("tbody [data-row]")
        shown.choose("Release…")
        click("dialog button:text-is('Release')")
        expect(held).to_have_count(0)
        shown.page.click("[aria-label='More actions of the session']")
        expect(shown.page.locator("button:text-is('Hold…')")).to_have_count(1)
