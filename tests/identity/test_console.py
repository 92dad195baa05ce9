"""Sign-in of the console at a certified identity provider."""

from __future__ import annotations

from playwright.sync_api import Browser, Page

from tests.identity.provider import Office, needs_provider
from tests.kit.browser import ConsolePage, expect, needs_browser, open_console

pytestmark = [*needs_browser, needs_provider]


def log_in(page: Page, user: str, provider: str = "127.0.0.1") -> None:
    """Start at the sign-in of the console; send the forms of the provider."""
    page.click(f"button:has-text('Sign in with {provider}')")
    page.fill("input[name=login]", user)
    page.fill("input[name=password]", "any")
    page.click("button:has-text('Sign-in')")
    page.click("button:has-text('Continue')")
    expect(page.locator("header .name")).to_have_text(user)


def forget_provider(shown: ConsolePage, office: Office) -> None:
    """Leave the pages of the provider, which are navigations, out of the checks of the console."""
    shown.requests[:] = [url for url in shown.requests if not url.startswith(office.issuer)]
    shown.reports[:] = [text for text in shown.reports if "autocomplete" not in text]


def test_user_sees_what_the_token_allows(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents/agents/echo") as shown:
        log_in(shown.page, "eve")
        shown.see("Starting needs agents:echo:run.")
        shown.go("#/sessions")
        shown.see("This needs sessions:read; your token has agents:read.")
        shown.sign_out()
        shown.page.reload()
        expect(shown.page.locator("form[aria-label='Sign in']")).to_have_count(1)
        expect(shown.page.locator("header .name")).to_have_count(0)
        forget_provider(shown, office)
