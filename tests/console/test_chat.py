"""The chat at `/chat`: own conversations of a caller, with a stop, decisions and reloads."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Browser

from tests.console.deployed import READS, start, token, wait_for_status
from tests.console.test_widths import SMALL_TARGETS, check_layout
from tests.kit.browser import check_accessibility, check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

MARKUP = "<img src=x onerror=alert(1)>"

PHONE = 390

COMPLETED = ".turn[data-phase=completed]"


def open_chat(browser: Browser, server: ThreadedServer, key: str, place: str = "") -> Any:
    """Open the chat with a token."""
    return open_console(browser, server.url, place, token=key, name="chat")


def test_a_message_is_answered_and_only_own_chats_are_listed(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "chat-of-me", "A chat of me")
    # An administrator may read the sessions of everybody.
    with open_chat(browser, server, server.deployment.token("eve", ADMIN)) as shown:
        page = shown.page
        page.get_by_label("Who answers").select_option(label="Echo")
        page.fill("[data-message]", f"first **bold** {MARKUP}")
        page.keyboard.press("Enter")
        expect(page.locator(".turn strong")).to_have_text("bold")
        expect(page.locator(COMPLETED)).to_have_count(1)
        expect(page.locator(".threads [data-row]")).to_have_count(1)
        expect(page.locator(".threads a[aria-current]")).to_contain_text("first **bold**")
        expect(page.locator("[data-message]")).to_be_focused()
        page.keyboard.type("second")
        page.keyboard.press("Enter")
        expect(page.locator(COMPLETED)).to_have_count(2)
        assert shown.evaluate("document.querySelectorAll('#app img').length") == 0
        check_view(shown)
        page.click("text=New chat")
        expect(page.locator("h1")).to_have_text("New chat")
        # The page focuses the message after it is drawn: earlier keys would be typed there.
        expect(page.locator("[data-message]")).to_be_focused()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        expect(page.locator(".turn")).to_have_count(2)


def test_a_stream_goes_on_after_a_reload_until_the_stop(
    server: ThreadedServer, browser: Browser
) -> None:
    with open_chat(browser, server, token(server), "#/?with=agent:trickle") as shown:
        shown.page.fill("[data-message]", "count")
        shown.page.keyboard.press("Enter")
        text = shown.page.locator(".markdown")
        expect(text).to_contain_text("w5")
        shown.page.reload()
        expect(text).to_contain_text("w20")
        words = text.inner_text().split()
        assert words == [f"w{number}" for number in range(len(words))]

        shown.page.fill("[data-message]", "faster")
        shown.page.keyboard.press("Enter")
        expect(shown.page.locator(".sent [data-fate=waiting]")).to_have_count(1)
        shown.page.click(".compose .danger")
        expect(shown.page.locator(".sent [data-fate=refused]")).to_have_text(
            "faster ✗ was not read. The run was cancelled"
        )
        expect(shown.page.locator(".turn .status")).to_have_text("■ stopped")
        expect(shown.page.locator(".compose .danger")).to_have_count(0)
        run = shown.page.locator("[data-run]").get_attribute("data-run")
        session = shown.evaluate("location.hash").removeprefix("#/sessions/").partition("?")[0]
    record = server.client.get(
        f"/sessions/{session}/runs/{run}", headers=server.bearer("me", *READS)
    ).json()
    assert record["status"] == "CANCELLED"
    assert record["stopped_at"] is not None


def test_a_stop_says_that_a_tool_goes_on(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "chat-held", '{"name": "chat"}', background=True)
    with open_chat(browser, server, token(server), "#/sessions/chat-held") as shown:
        shown.see("Using hold")
        expect(shown.page.locator("[data-message]")).to_be_focused()
        shown.page.keyboard.press("Escape")
        shown.page.keyboard.press("x")
        shown.see("■ stopped", "! work goes on", "tool hold has not returned")
        (server.deployment.folder / "chat").touch()
        expect(shown.page.locator("[data-facts]")).to_contain_text("a late result was dropped")


def test_a_call_is_approved_in_place_on_a_phone(server: ThreadedServer, browser: Browser) -> None:
    for number in range(20):  # a list that is longer than the screen
        start(server, "agents/echo", f"chat-{number}", "What does tea cost?")
    run = start(server, "agents/refunds", "chat-refund", '{"order": "A", "amount": 3}').json()
    with open_chat(browser, server, token(server), "#/sessions/chat-refund") as shown:
        shown.page.set_viewport_size({"width": PHONE, "height": 844})
        form = shown.page.locator("[data-waits]")
        expect(form.locator(".question")).to_have_text("Refunds wants to refund order A, amount 3")
        form.locator("summary", has_text="Details").click()
        expect(form).to_contain_text("amount3")
        check_layout(shown)
        assert shown.evaluate(SMALL_TARGETS) == []
        check_accessibility(shown)
        form.locator("button[type=submit]").click()
        expect(shown.page.locator("[data-decided]")).to_contain_text("approved")
        expect(shown.page.locator(COMPLETED)).to_have_count(1)
        shown.page.click(".menu")
        expect(shown.page.locator(".threads")).to_be_visible()
        assert shown.evaluate(SMALL_TARGETS) == []
        check_layout(shown)
        shown.page.click("text=New chat")
        expect(shown.page.locator(".threads")).to_be_hidden()
        check_layout(shown)
    wait_for_status(server, f"/sessions/chat-refund/runs/{run['run_id']}", "COMPLETED")


def test_chat_of_another_database_is_opened_and_listed(
    server: ThreadedServer, browser: Browser
) -> None:
    with open_chat(browser, server, token(server)) as shown:
        page = shown.page
        threads = page.locator(".threads [data-row]")
        page.get_by_label("Who answers").select_option(label="Apart")
        page.fill("[data-message]", "A chat apart")
        page.keyboard.press("Enter")
        expect(page.locator(COMPLETED)).to_have_count(1)
        expect(threads).to_have_text([re.compile("A chat apart")])
        page.reload()
        expect(page.locator(".bubble")).to_have_text("A chat apart")
        page.click("text=New chat")
        threads.click()
        expect(page.locator(".bubble")).to_have_text("A chat apart")


def test_link_begins_a_chat_in_another_database(server: ThreadedServer, browser: Browser) -> None:
    key = server.deployment.token("me", "agents:apart:run", "sessions:read")
    with open_chat(browser, server, key, "#/?with=agent:apart&db=second") as shown:
        shown.page.fill("[data-message]", "A chat by a link")
        shown.page.keyboard.press("Enter")
        expect(shown.page.locator(".bubble")).to_have_text("A chat by a link")
        expect(shown.page.locator(".threads a[aria-current]")).to_contain_text("A chat by a link")
    with open_console(browser, server.url, "#/agents/agents/apart", token=token(server)) as shown:
        shown.page.fill("[data-message]", "A run apart")
        shown.page.click("button:text-is('Start')")
        expect(shown.page.locator(".bubble")).to_have_text("A run apart")
        expect(shown.page.locator(".turn .status")).to_have_text("✓ completed")


def test_a_caller_that_only_runs_is_refused_nothing(
    server: ThreadedServer, browser: Browser
) -> None:
    key = server.deployment.token("runner", "agents:echo:run")
    with open_chat(browser, server, key, "#/?with=agent:echo") as shown:
        for number in range(2):
            shown.page.fill("[data-message]", f"message *{number}*")
            shown.page.keyboard.press("Enter")
            expect(shown.page.locator(".turn em").nth(number)).to_have_text(str(number))
        expect(shown.page.locator(COMPLETED)).to_have_count(2)
        expect(shown.page.locator("button.attach")).to_have_count(0)
    query = "/audit?outcome=denied&principal=runner"
    denied = server.client.get(query, headers=server.bearer("boss", ADMIN)).json()["data"]
    assert [(each["operation"], each["status"]) for each in denied] == []


def test_chat_shows_neither_code_nor_json(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/tool-add", "chat-plain", '{"a": 1234, "b": 4321}')
    start(server, "agents/http-500", "chat-plain", "a failure")
    with open_chat(browser, server, token(server), "#/sessions/chat-plain") as shown:
        answers = shown.page.locator(".answer")
        expect(answers.last).to_contain_text("Something went wrong")
        call = answers.first.locator(".plain-call")
        expect(call.locator("summary")).to_have_text("Used add")
        call.locator("summary").click()
        expect(call.locator("dt")).to_have_text(["a", "b"])
        expect(call).to_contain_text("5555")
        failure = answers.last.locator(".bar")
        failure.locator("summary").click()
        expect(failure).to_contain_text("MODEL_UNAVAILABLE")
        text = shown.page.locator(".talk").inner_text()
        for sign in ("ƒ", "JSON", "sha256", "tokens", "add("):
            assert sign not in text, sign


def test_long_or_nested_arguments_are_listed_below_the_question(
    server: ThreadedServer, browser: Browser
) -> None:
    message = '{"order": "A order with \\u202e words ' + "that is long " * 8 + '", "amount": 3}'
    start(server, "agents/refunds", "chat-long", message)
    with open_chat(browser, server, token(server), "#/sessions/chat-long") as shown:
        form = shown.page.locator("[data-waits]")
        expect(form.locator(".question")).to_have_text("Refunds wants to refund")
        expect(form.locator(".asks > .facts dt")).to_have_text(["order", "amount"])
        expect(form.locator(".asks > .facts dd").first).to_contain_text(
            "\\u202e words that is long"
        )
        form.get_by_role("button", name="Change the values").click()
        form.locator("[name=answer-order]").fill("A-7")
        form.locator("[name=answer-amount]").fill("three")
        expect(form.locator("[role=alert]")).to_have_text("amount must be a number")
        expect(form.locator("button[type=submit]")).to_be_disabled()
        form.locator("[name=answer-amount]").fill("2")
        with shown.page.expect_request("**/continue") as sent:
            form.get_by_role("button", name="Approve with changes").click()
        (decision,) = sent.value.post_data_json["decisions"]
        assert decision["arguments"] == {"order": "A-7", "amount": 2}
        expect(shown.page.locator(COMPLETED)).to_have_count(1)
