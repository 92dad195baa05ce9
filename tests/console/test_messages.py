"""Messages from the box of a conversation to a run that works, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import start, token
from tests.console.test_widths import SMALL_TARGETS, check_layout
from tests.kit.browser import check_accessibility, check_view, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser


def send(page: Any, text: str) -> None:
    page.fill("[data-message]", text)
    page.keyboard.press("Enter")


def test_message_is_read_before_the_next_step(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "message-step", '{"name": "step"}', background=True)
    place = "#/sessions/message-step"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        page = shown.page
        expect(page.locator(".answer .fold")).to_have_count(1)
        send(page, "only primes")
        line = page.locator(".sent [data-fate=waiting]")
        expect(line).to_have_text("only primes → will be read before the next step")
        expect(page.locator("[data-message]")).to_have_value("")
        check_view(shown)

        (server.deployment.folder / "step").touch()
        expect(page.locator(".answer [data-sent] .bubble")).to_have_text("only primes")
        expect(page.locator(".sent")).to_have_count(0)
        expect(page.locator(".turn[data-phase=completed]")).to_have_count(1)
        expect(page.locator(".turn")).to_have_count(1)


@pytest.mark.parametrize("name", ["chat", "console"])
def test_waiting_message_holds_at_any_width(
    server: ThreadedServer, browser: Browser, name: str
) -> None:
    session = f"message-{name}"
    start(server, "agents/hold", session, f'{{"name": "{session}"}}', background=True)
    place = f"#/sessions/{session}"
    with open_console(browser, server.url, place, token=token(server), name=name) as shown:
        page = shown.page
        expect(page.locator(".answer .fold")).to_have_count(1)
        send(page, "only primes")
        expect(page.locator(".sent [data-fate=waiting]")).to_have_count(1)
        check_accessibility(shown)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            check_layout(shown)
        page.set_viewport_size({"width": 390, "height": 800})
        assert shown.evaluate(SMALL_TARGETS) == []
        (server.deployment.folder / session).touch()
        expect(page.locator(".answer [data-sent] .bubble")).to_have_text("only primes")


def test_message_that_no_step_reads_is_answered_next(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "workflows/stuck", "message-next", "wait", background=True)
    with open_console(
        browser, server.url, "#/sessions/message-next", token=token(server), name="chat"
    ) as shown:
        page = shown.page
        expect(page.locator(".turn[data-phase=running]")).to_have_count(1)
        send(page, "and then?")
        expect(page.locator(".turn[data-phase=queued]")).to_have_count(1)
        expect(page.locator(".turn .asked .bubble").nth(1)).to_have_text("and then?")
        expect(page.locator(".sent")).to_have_count(0)


def test_box_beside_a_decision_says_what_becomes_of_a_message(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/refunds", "beside", '{"order": "17", "amount": 20}')
    start(server, "agents/steered-refunds", "beside-2", '{"order": "17", "amount": 20}')
    key = token(server)
    with open_console(browser, server.url, "#/sessions/beside", token=key, name="chat") as shown:
        page = shown.page
        becomes = page.locator("[data-open]")
        turns = page.locator(".turn")
        expect(page.locator(".turn[data-phase=paused]")).to_have_count(1)
        send(page, "not more than 5")
        expect(becomes).to_contain_text("starts another run, and the decision stays open")
        check_view(shown)
        page.click("[data-open] >> text=Send anyway")
        expect(turns).to_have_count(2)

        shown.go("#/sessions/beside-2")
        expect(turns).to_have_count(1)
        send(page, "not more than 5")
        expect(becomes).to_contain_text(
            "The run reads this message when it continues after the decision, or it is answered"
        )
        page.click("[data-open] >> text=Send anyway")
        expect(page.locator(".sent [data-fate=waiting]")).to_have_text(
            "not more than 5 → will be read after the decision"
        )
        expect(becomes).to_have_count(0)
        expect(turns).to_have_count(1)


def test_run_page_sends_a_message(server: ThreadedServer, browser: Browser) -> None:
    run = start(
        server, "agents/hold", "message-run", '{"name": "message-run"}', background=True
    ).json()["run_id"]
    with open_console(browser, server.url, f"#/runs/{run}/timeline", token=token(server)) as shown:
        page = shown.page
        expect(page.locator("[data-span=tool]")).to_have_count(1)
        send(page, "only primes")
        expect(page.locator(".sent [data-fate=waiting]")).to_contain_text("only primes")
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            check_layout(shown)
        (server.deployment.folder / "message-run").touch()
        expect(page.locator("[data-chosen] [data-sent] .bubble")).to_have_text("only primes")
        expect(page.locator("[data-message]")).to_have_count(0)
