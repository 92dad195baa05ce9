"""The page of a session: its runs as they work, what became of them, and a box for the next one."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser

from tests.cli.proxy import proxied
from tests.console.deployed import READS, start, token
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.conditions import wait_for
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

TALL: Any = {"width": 1280, "height": 1000}
"""A page that does not scroll with two short runs."""


def test_transcript_shows_tools_members_and_errors(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "told", "_a__" * 600)
    start(server, "agents/tool-add", "told", '{"a": 1, "b": 2}')
    start(server, "agents/http-500", "told", "a failure")
    start(server, "teams/choir", "told-team", "sing")
    with open_console(browser, server.url, "#/sessions/told-team", token=token(server)) as shown:
        shown.see("Choir", "Echo: sing", "Http-500: sing", "MODEL_UNAVAILABLE")
        shown.go("#/sessions/told")
        shown.see("add(a=1, b=2)", "✓ completed", "✗ failed", "MODEL_UNAVAILABLE")
        expect(shown.page.locator("pre.plain")).to_contain_text("_a___a__")
        expect(shown.page.locator("[data-counts]")).to_have_text("3 runs · 1 failed")
        shown.page.click("text=add(a=1, b=2)")
        shown.see("Arguments", '"a": 1')
        check_view(shown)
        shown.page.click("[aria-label='Tool call as JSON']")
        shown.see('"tool_name": "add"', '"tool_call_error": false')
        shown.page.click("dialog button:text-is('Close')")
        expect(shown.page.locator("dialog")).to_have_count(0)
        shown.page.click(".inside a:text-is('Timeline')")
        pane = shown.page.locator("[data-chosen=tool] pre")
        expect(pane).to_have_text(['{\n  "a": 1,\n  "b": 2\n}', "3"])


def test_message_starts_a_run_that_is_followed(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "chat", "first")
    with open_console(
        browser, server.url, "#/sessions/chat", token=token(server), viewport=TALL
    ) as shown:
        shown.see("first")
        shown.page.fill("[data-message]", "second, with **bold** words")
        shown.page.keyboard.press("Enter")
        expect(shown.page.locator(".turn")).to_have_count(2)
        expect(shown.page.locator(".turn strong")).to_have_text("bold")
        expect(shown.page.locator(".turn .status").last).to_contain_text("completed")
        expect(shown.page.locator("[data-counts]")).to_have_text("2 runs")
        record = server.client.get("/sessions/chat", headers=server.bearer("me", *READS)).json()
        tokens = shown.page.locator("[data-counts] + span")
        expect(tokens).to_have_text(f"{record['total_tokens']:,} tokens")

        follow = shown.page.locator("button[aria-pressed]")
        for expected in ("true", "false"):
            expect(follow).to_have_attribute("aria-pressed", expected)
            follow.click()
        expect(follow).to_have_attribute("aria-pressed", "true")
        shown.page.keyboard.press("f")
        expect(follow).to_have_attribute("aria-pressed", "false")


def test_cancel_of_a_thread_tool_shows_both_facts(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "held", '{"name": "go"}', background=True)
    with open_console(browser, server.url, "#/sessions/held", token=token(server)) as shown:
        shown.see('hold(name="go")')
        shown.page.click("[data-cancel]")
        shown.page.fill("dialog input", "wrong customer")
        shown.page.click("dialog .danger")
        facts = shown.page.locator("[data-facts]")
        expect(facts).to_contain_text("Cancel requested")
        expect(facts).to_contain_text("tool hold has not returned")
        shown.see("■ stopped", "! work goes on", "Reason: wrong customer")
        check_view(shown)
        (server.deployment.folder / "go").touch()
        expect(facts).to_contain_text("a late result was dropped")
        expect(shown.page.locator("article")).not_to_contain_text("work goes on")


def test_member_of_a_live_run_is_open_until_its_end(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "teams/jam", "live-team", "count", background=True)
    with open_console(browser, server.url, "#/sessions/live-team", token=token(server)) as shown:
        shown.see("Trickle", "Hang")
        expect(shown.page.locator("[data-member] .markdown")).to_contain_text("w5")
        shown.page.click("[data-cancel]")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("[data-member] .status")).to_have_text(["■ stopped"] * 2)
        expect(shown.page.locator("[data-member] .inside")).to_have_count(0)
        shown.page.click("text=Trickle: count")
        expect(shown.page.locator("[data-member] .markdown")).to_contain_text("w5")


def test_stream_that_breaks_is_resumed_without_a_gap(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/trickle", "cut", "count", background=True)
    with (
        # On a busy machine one event has several words, so no word can be named here.
        proxied(server.url, cut_behind=b"event: ItemsChanged", times=2) as between,
        open_console(browser, between.url, "#/sessions/cut", token=token(server)) as shown,
    ):
        wait_for(lambda: between.cut == 2)
        text = shown.page.locator(".markdown")
        expect(text).to_contain_text(f"w{len(text.inner_text().split()) + 20}")
        words = text.inner_text().split()
        assert words == [f"w{number}" for number in range(len(words))]
        shown.page.click("[data-cancel]")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("[data-facts]")).to_contain_text("stopped")
