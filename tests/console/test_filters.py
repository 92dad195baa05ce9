"""The field with the filters of a list: words, completions, chips, saved views."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import start, token
from tests.console.test_widths import SMALL_TARGETS, check_layout
from tests.kit.browser import check_accessibility, check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser


def test_filters_are_completed_by_keyboard(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/runs", token=token(server)) as shown:
        page = shown.page
        field = page.get_by_role("combobox", name="Filters")
        expect(field).to_be_visible()
        page.keyboard.press("/")
        expect(field).to_be_focused()
        options = page.locator("#completions [role=option]")
        expect(options.first).to_contain_text("status: the state or the outcome")
        page.keyboard.type("comp")
        expect(options).to_have_count(1)
        page.keyboard.press("ArrowDown")
        expect(field).to_have_attribute("aria-activedescendant", "completion-0")
        page.keyboard.press("Enter")
        expect(field).to_have_value("component:")

        page.keyboard.type("ech")
        # The names of components are read from the server first.
        expect(options.first).to_contain_text("echo")
        page.keyboard.press("ArrowDown")
        expect(field).to_have_attribute("aria-activedescendant", "completion-0")
        page.keyboard.press("Tab")
        expect(page.locator("[data-given]")).to_have_text("component:echo ✕")
        assert shown.evaluate("location.hash") == "#/runs?component=echo"


def test_wrong_filters_are_named(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/runs?component=echo", token=token(server)) as shown:
        page = shown.page
        field = page.get_by_role("combobox", name="Filters")
        options = page.locator("#completions [role=option]")
        shown.filter("status:completed")
        expect(page.locator("button:text-is('All')")).to_have_attribute("aria-pressed", "true")
        page.keyboard.type("st")
        expect(options.first).to_be_visible()
        page.keyboard.press("Escape")
        expect(options).to_have_count(0)
        expect(field).to_be_focused()

        shown.filter("stauts:failed")
        message = page.get_by_role("alert")
        expect(message).to_contain_text("Unknown filter stauts. This list has: status, component")
        expect(field).to_have_value("stauts:failed")
        check_view(shown)


def test_words_find_runs(server: ThreadedServer, browser: Browser) -> None:
    for agent in ("echo", "http-500"):
        start(server, f"agents/{agent}", "filtered-3", "A marble cake " + "and more " * 40)
    with open_console(browser, server.url, "#/runs", token=token(server)) as shown:
        rows = shown.page.locator("tbody tr")
        shown.filter('status:failed "MARBLE cake"')
        expect(rows).to_have_count(1)
        expect(rows.locator("mark").first).to_have_text("marble")
        place = "#/runs?all=1&status=ERROR&search=MARBLE+cake"
        assert shown.evaluate("location.hash") == place
        for width in (390, 1280):
            shown.page.set_viewport_size({"width": width, "height": 800})
            expect(rows.locator("mark:visible").first).to_have_text("marble")
            check_layout(shown)
        check_accessibility(shown)
        shown.page.click("[aria-label='Remove the filter status:failed']")
        expect(rows).to_have_count(2)
        shown.filter('"no such words"')
        expect(shown.page.locator(".empty")).to_contain_text("agentctl db index")


def test_views_are_saved_in_the_browser(server: ThreadedServer, browser: Browser) -> None:
    place = "#/runs?all=1&status=ERROR"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        page = shown.page
        page.click("summary:has-text('Saved views')")
        check_view(shown)
        page.fill("[aria-label='Name of the view']", "Failed")
        page.click(".views button:text-is('Save')")
        stored = shown.evaluate("JSON.stringify(localStorage)")
        views = json.loads(json.loads(stored)["console.views"])
        assert views == [{"name": "Failed", "place": place}]
        shown.go("#/runs")
        page.click("summary:has-text('Saved views (1)')")
        page.click(".views a:text-is('Failed')")
        expect(page.locator("[data-given]")).to_have_text("status:failed ✕")
        page.click("summary:has-text('Saved views (1)')")
        page.click("[aria-label='Delete the view Failed']")
        assert shown.evaluate("localStorage['console.views']") == "[]"
        bad = [{"name": "bad", "place": "javascript:alert(1)"}, {"name": 1}, None]
        shown.evaluate("each => { localStorage['console.views'] = each }", json.dumps(bad))
        shown.go("#/sessions")
        expect(page.locator("summary:text-is('Saved views')")).to_have_count(1)


@pytest.mark.parametrize("width", [360, 390])
def test_filters_of_a_phone_are_behind_a_button(
    server: ThreadedServer, browser: Browser, width: int
) -> None:
    size = {"width": width, "height": 800}
    key = server.deployment.token("boss", ADMIN)
    with open_console(
        browser,
        server.url,
        "#/sessions?user=me",
        token=key,
        viewport=size,  # type: ignore[arg-type]
    ) as shown:
        for page in ("sessions", "runs", "approvals", "audit", "webhooks", "overview"):
            shown.go(f"#/{page}")
            field = shown.page.get_by_role("combobox", name="Filters")
            button = shown.page.locator(".filters .narrow")
            expect(field).to_be_hidden()
            button.click()
            expect(field).to_be_visible()
            check_layout(shown)
            assert shown.evaluate(SMALL_TARGETS) == [], page
            button.click()
        shown.go("#/sessions?user=me&status=ERROR")
        expect(button).to_have_text("Filters (2)")
