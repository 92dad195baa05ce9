"""Retry and fork in the console: buttons of a run, and their dialogs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.model import ModelEndpoint
from tests.server.repeating import PLAN, SCOPES, Place, call, open_place, say

pytestmark = needs_browser


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("repeated"), model_endpoint) as opened:
        yield opened


def test_a_run_is_retried_after_its_calls_were_shown(place: Place, browser: Browser) -> None:
    run = place.interrupt("agents/planner", PLAN, "two")
    key = place.server.deployment.token("ann", *SCOPES)
    with open_console(
        browser, place.server.url, f"#/sessions/{run['session_id']}", token=key
    ) as shown:
        shown.choose("Retry…", menu="More actions of run")
        dialog = shown.page.locator("dialog")
        dialog.get_by_role("button", name="Retry", exact=True).click()
        expect(dialog.locator("[data-plan]")).to_contain_text("Starts after message 4")
        expect(dialog.locator("[data-plan] li")).to_contain_text(
            'hold {"entry":"two"} outcome not known'
        )
        assert place.ledger() == ["one", "two"]
        check_view(shown)
        dialog.get_by_role("button", name="Retry and repeat these calls").click()
        expect(dialog).to_have_count(0)
        retried = shown.page.locator("article.turn").nth(1)
        expect(retried).to_contain_text("finished")
        expect(retried.locator("[data-origin]")).to_contain_text("after its message 4")
        assert place.ledger() == ["one", "two", "two", "three"]
        shown.check_reports()


def test_a_run_is_forked_from_a_message_to_another_agent(place: Place, browser: Browser) -> None:
    run = place.start("agents/planner", [call("record", "c1", entry="four"), say("finished")])
    key = place.server.deployment.token("ann", *SCOPES)
    with open_console(
        browser, place.server.url, f"#/sessions/{run['session_id']}", token=key
    ) as shown:
        shown.choose("Fork…", menu="More actions of run")
        dialog = shown.page.locator("dialog")
        messages = dialog.get_by_label("Keep messages up to")
        expect(messages).to_have_value("5")
        expect(messages.locator("option").nth(3)).to_contain_text("3 assistant next c1 ƒ record")
        dialog.get_by_label("New message").fill("what was said?")
        dialog.get_by_label("Continue with").select_option(label="History")
        check_view(shown)
        dialog.get_by_role("button", name="Fork", exact=True).click()
        expect(dialog).to_have_count(0)
        forked = shown.page.locator("article.turn")
        expect(forked).to_have_count(1)
        expect(forked.locator("[data-origin]")).to_contain_text("fork of")
        shown.see("recorded four", "what was said?")
        assert run["session_id"] not in shown.page.url
        shown.check_reports()
