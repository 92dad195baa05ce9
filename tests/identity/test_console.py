"""A day in the console: sign-in at a certified identity provider, a run, an approval, sign-out."""

from __future__ import annotations

from playwright.sync_api import Browser, Page

from tests.console.browser import ConsolePage, expect, needs_browser, open_console
from tests.identity.provider import Office, needs_provider

pytestmark = [*needs_browser, needs_provider]

FORM = "form[aria-label='Sign in']"


def log_in(page: Page, user: str) -> None:
    """Start at the sign-in of the console; send the forms of the provider."""
    page.click("button:has-text('Sign in with 127.0.0.1')")
    page.fill("input[name=login]", user)
    page.fill("input[name=password]", "any")
    page.click("button:has-text('Sign-in')")
    page.click("button:has-text('Continue')")
    expect(page.locator("header .name")).to_have_text(user)


def forget_provider(shown: ConsolePage, office: Office) -> None:
    """Leave the pages of the provider, which are navigations, out of the checks of the console."""
    shown.requests[:] = [url for url in shown.requests if not url.startswith(office.issuer)]
    shown.reports[:] = [text for text in shown.reports if "autocomplete" not in text]


def test_user_signs_in_starts_a_run_and_decides(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents/agents/payer") as shown:
        page = shown.page
        log_in(page, "ada")
        page.fill("[data-message]", '{"amount": 7}')
        page.click("button:text-is('Start')")
        page.click("button:has-text('Decide')")
        page.click("dialog button[type=submit]")
        expect(page.locator("[data-decided]")).to_contain_text("approved")
        shown.see("paid 7")
        page.click("button:has-text('Sign out')")
        expect(page.locator(FORM)).to_have_count(1)
        page.reload()
        expect(page.locator(FORM)).to_have_count(1)
        assert "paid 7" not in page.inner_text("#app")
        forget_provider(shown, office)


def test_user_sees_what_the_token_allows(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents/agents/payer") as shown:
        log_in(shown.page, "eve")
        shown.see("Starting needs agents:payer:run.")
        shown.go("#/sessions")
        shown.see("This needs sessions:read; your token has agents:read.")
        forget_provider(shown, office)
