"""The page of a run in two panes: its calls with their times, and the chosen one."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.deployed import start, token
from tests.console.test_widths import SMALL_TARGETS, WIDTHS, check_layout
from tests.kit.browser import check_accessibility, check_view, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

TWO_PANES = 1024
"""Width of a window from which the chosen call is at the right of the calls."""

SIDES = """() => [...document.querySelectorAll(".panes > *")].map(each => {
    const box = each.getBoundingClientRect();
    return [box.left, box.top];
})"""


def test_calls_and_the_chosen_one_are_one_page(server: ThreadedServer, browser: Browser) -> None:
    run = start(server, "teams/crew", "panes", "Look up the price").json()["run_id"]
    place = f"#/runs/{run}/timeline"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        shown.see("Crew · timeline", "member Echo", "model delegate")
        chosen = shown.page.locator("[data-chosen]")
        expect(chosen.locator(".turn .bubble")).to_have_text("Look up the price")
        expect(shown.page.locator("[data-span=run]")).to_have_attribute("aria-current", "true")
        shown.page.click("[data-span=model] >> nth=0")
        expect(chosen).to_contain_text("answered by")
        expect(chosen.locator("dt:text-is('cost') + dd")).to_have_text("not known")
        expect(chosen).to_contain_text("Delegate.")
        assert "call=" in shown.evaluate("location.hash")
        check_view(shown)

        shown.page.reload()
        expect(chosen).to_contain_text("Delegate.")
        for key, kind in (("[", "run"), ("[", "run"), ("]", "model")):
            shown.page.keyboard.press(key)
            expect(chosen).to_have_attribute("data-chosen", kind)
        shown.page.click("[data-span=member] >> nth=0")
        expect(chosen.locator(".turn .status").first).to_have_text("✓ completed")


def test_panes_are_beside_or_below_each_other(server: ThreadedServer, browser: Browser) -> None:
    run = start(server, "teams/crew", "panes-wide", "Look up the price").json()["run_id"]
    place = f"#/runs/{run}/timeline"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        shown.page.click("[data-span=model] >> nth=0")
        chosen = shown.page.locator("[data-chosen]")
        expect(chosen).to_contain_text("Delegate.")
        check_accessibility(shown)
        for width in (*WIDTHS, 1920):
            shown.page.set_viewport_size({"width": width, "height": 800})
            check_layout(shown)
            (tree_left, tree_top), (left, top) = shown.evaluate(SIDES)
            beside = left > tree_left and top == tree_top
            assert beside == (width >= TWO_PANES), width
        shown.page.set_viewport_size({"width": 390, "height": 800})
        assert shown.evaluate(SMALL_TARGETS) == []
        shown.page.reload()
        expect(chosen).to_be_in_viewport()
        shown.page.set_viewport_size({"width": 1280, "height": 800})
        shown.page.click("[data-span=member] >> nth=0")
        expect(chosen.locator(".turn .status").first).to_have_text("✓ completed")
        check_accessibility(shown)
