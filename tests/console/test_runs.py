"""The page Runs: the live ones, and the cancel of marked ones."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.deployed import READS, start, token, wait_for_status
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser


def test_marked_runs_are_cancelled_and_ended_ones_are_not(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/hang", "hung", "wait", background=True)
    start(server, "agents/hold", "hung-2", '{"name": "go on"}', background=True)
    ends = start(server, "agents/hold", "hung-3", '{"name": "now"}', background=True).json()
    ended = f"/sessions/hung-3/runs/{ends['run_id']}"
    with open_console(browser, server.url, "#/runs?user=me", token=token(server)) as shown:
        rows = shown.page.locator("tbody tr", has_text="hung")
        expect(rows).to_have_count(3)
        for number in range(3):
            rows.nth(number).locator("input[type=checkbox]").check()
        check_view(shown)
        shown.page.click("text=Cancel 3 runs…")
        expect(shown.page.locator("dialog button:text-is('Keep running')")).to_be_focused()
        (server.deployment.folder / "now").touch()
        wait_for_status(server, ended, "COMPLETED")
        shown.page.click("dialog .danger")

        dialog = shown.page.locator("dialog")
        expect(dialog).to_contain_text("had already ended1")
        expect(dialog).to_contain_text("tool hold has not returned")
        facts = dialog.locator("dd")
        expect(facts.nth(0)).to_contain_text("2 of 3")
        expect(facts.nth(1)).to_contain_text("1 of 3 · waiting")
        (server.deployment.folder / "go on").touch()
        expect(facts.nth(1)).to_have_text("2 of 3")
        dialog.get_by_role("button", name="Close").click()
        shown.see("last action: 2 requested · 2 stopped")
        expect(rows).to_have_count(0)
    record = server.client.get(ended, headers=server.bearer("me", *READS)).json()
    assert record["cancel_requested_at"] is None
