"""The page Sessions: what one looks for is found, and an administrator holds a session."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import READS, hold, start, token
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

REFUSED = (
    "Session evidence is held and is not deleted. An administrator can release it on its page."
)


@pytest.fixture(scope="module")
def animals(server: ThreadedServer) -> None:
    """Create sessions about a quokka and about a wombat, and one of another user about both."""
    start(server, "agents/echo", "found", "The quokka arrived; <b>say nothing</b>")
    start(server, "agents/http-500", "failed-one", "The quokka fails")
    start(server, "agents/echo", "not-found", "The wombat arrived")
    tags = {"metadata": {"tags": ["vip"]}}
    headers = server.bearer("me", "sessions:write")
    assert server.client.patch("/sessions/not-found", json=tags, headers=headers).is_success
    body = {"message": "My platypus met a quokka", "session_id": "found-by-others", "stream": False}
    other = server.bearer("other", "agents:run")
    assert server.client.post("/agents/echo/runs", json=body, headers=other).is_success


@pytest.mark.usefixtures("animals")
def test_typed_words_find_own_sessions(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/sessions", token=token(server)) as shown:
        rows = shown.page.locator("tbody tr")
        expect(rows.filter(has_text="The wombat arrived")).to_have_count(1)
        shown.filter("ARRIVED quok*")
        expect(rows).to_have_count(1)
        expect(rows.locator("mark")).to_have_text(["quok", "arrived"] * 2)
        expect(rows.locator(".found")).to_contain_text("<b>say nothing</b>")

        shown.filter("platypus")
        shown.see("No sessions match.", "are found after agentctl db index")
        shown.page.click("text=Clear filters")
        expect(rows.filter(has_text="The wombat arrived")).to_have_count(1)


@pytest.mark.usefixtures("animals")
def test_filters_find_sessions_and_are_removed_one_by_one(
    server: ThreadedServer, browser: Browser
) -> None:
    with open_console(browser, server.url, "#/sessions", token=token(server)) as shown:
        rows = shown.page.locator("tbody tr")
        shown.filter('status:failed user:me "quokka"')
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("The quokka fails")
        assert shown.evaluate("location.hash") == "#/sessions?status=ERROR&user=me&search=quokka"
        chips = shown.page.locator("[data-given] .chip")
        expect(chips).to_have_text(["status:failed ✕", "user:me ✕", '"quokka" ✕'])
        check_view(shown)

        chips.first.click()
        expect(rows).to_have_count(2)
        field = shown.page.get_by_role("combobox", name="Filters")
        expect(field).to_be_focused()
        field.press("Backspace")
        expect(field).to_have_value('"quokka"')
        shown.page.click("[data-given] button")
        shown.filter("tag:vip")
        expect(rows).to_contain_text(["The wombat arrived"])


def test_administrator_holds_and_releases_a_session(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "evidence", "Keep this session")
    admin = server.deployment.token("boss", ADMIN)
    with open_console(browser, server.url, "#/sessions/evidence", token=admin) as shown:
        click = shown.page.click
        shown.choose("Hold…")
        shown.page.fill("dialog input", "claim \u202e17")
        click("dialog button:text-is('Hold')")
        held = shown.page.locator("[data-hold]")
        expect(held).to_contain_text("by boss: claim \\u202e17")
        check_view(shown)
        shown.go("#/sessions?id=evidence")
        row = shown.page.locator("tbody tr")
        expect(row.locator(".chip")).to_have_text("held")
        row.locator("input").check()
        click("text=Delete 1 session…")
        click("dialog .danger")
        expect(shown.page.locator("dialog [role=alert]")).to_have_text(REFUSED)
        click("dialog button:text-is('Keep')")
        click("tbody [data-row]")
        shown.choose("Release…")
        click("dialog button:text-is('Release')")
        expect(held).to_have_count(0)
        click("[aria-label='More actions of the session']")
        expect(shown.page.locator("button:text-is('Hold…')")).to_have_count(1)


def test_owner_of_a_held_session_cannot_release_it(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "evidence", "Keep this session")
    hold(server, "evidence")
    owner = token(server, *READS, "sessions:delete", "sessions:write")
    with open_console(browser, server.url, "#/sessions?id=evidence", token=owner) as shown:
        row = shown.page.locator("tbody tr")
        row.locator("input").check()
        expect(row.locator(".chip")).to_have_count(0)
        shown.page.click("text=Delete 1 session…")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("dialog [role=alert]")).to_have_text(REFUSED)
        shown.page.click("dialog button:text-is('Keep')")
        shown.page.click("tbody [data-row]")
        shown.page.click("[aria-label='More actions of the session']")
        expect(shown.page.locator("button:text-is('Rename…')")).to_have_count(1)
        for name in ("Hold…", "Release…"):
            expect(shown.page.locator(f"button:text-is('{name}')")).to_have_count(0)
