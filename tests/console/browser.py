"""A browser with pages of the console, which must report nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.console.vendor import FOLDERS, read_vendored

__all__ = [
    "CHROMIUM",
    "SECONDS",
    "ConsolePage",
    "check_accessibility",
    "expect",
    "needs_browser",
    "open_browser",
    "open_console",
]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH"),
]
"""The marks of tests in a browser."""

AXE = FOLDERS[1] / "axe.min.js.xz"

SECONDS = 60.0
"""The time within which a condition is met, on a machine that is busy with other work."""

_NO_FAULTS = ("Failed to load resource", "was preloaded using link preload")
"""Messages of Chromium about failed requests, which tests cause, and about slow ones."""

_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
"""Without a sandbox, for root in a container, whose shared memory may be too small."""

_SMALL_SCREEN = (
    "button-name", "label", "link-name", "nested-interactive", "page-has-heading-one",
    "scrollable-region-focusable", "select-name", "summary-name",
)  # fmt: skip
"""The rules of axe whose result depends on what a small screen hides."""

_RECORD_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  violations.push(event.violatedDirective + " " + event.blockedURI));
"""


@dataclass
class ConsolePage:
    """A page in a separate browser context.

    Attributes:
        url: base URL of the server.
        reports: messages of the browser's console, without those of failed requests.
        requests: the URLs that the page has requested.
    """

    page: Page
    url: str
    reports: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def sign_in(self, token: str) -> None:
        """Paste a token and wait until the sign-in is gone."""
        self.page.fill("textarea[name=token]", token)
        self.page.click("form[aria-label='Sign in'] button[type=submit]")
        expect(self.page.locator("form[aria-label='Sign in']")).to_have_count(0)

    def go(self, place: str) -> None:
        """Open a place such as `#/runs`."""
        self.page.evaluate("place => { location.hash = place }", place)

    def see(self, *texts: str) -> None:
        """Wait until the texts are on the page."""
        for text in texts:
            expect(self.page.locator("#app")).to_contain_text(text)

    def evaluate(self, code: str, argument: Any = None) -> Any:
        """Return the value of JavaScript in the page."""
        return self.page.evaluate(code, argument)

    def check_reports(self) -> None:
        """Check that the page broke no rule and asked no other host."""
        assert self.reports == []
        assert self.page.evaluate("window.violations") == []
        hosts = {urlsplit(url).netloc for url in self.requests if not url.startswith("blob:")}
        assert hosts == {urlsplit(self.url).netloc}


def check_accessibility(shown: ConsolePage) -> None:
    """Check a page with axe-core in both color schemes and at 360 px."""
    page = shown.page
    size = page.viewport_size
    if not page.evaluate("'axe' in window"):
        page.evaluate(read_vendored(AXE).decode())
    contrast = "color-contrast"
    for scheme, width, choice in (
        ("light", 1280, {}),
        ("dark", 1280, {"runOnly": [contrast]}),
        ("light", 360, {"runOnly": list(_SMALL_SCREEN)}),
    ):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 720})
        options = {"resultTypes": ["violations"], **choice}
        found = page.evaluate("options => axe.run(document, options)", options)
        assert [
            (place["id"], node["html"], node["failureSummary"])
            for place in found["violations"]
            for node in place["nodes"]
        ] == [], f"{page.url}, {scheme}, {width} px"
    if size is not None:
        page.set_viewport_size(size)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium, without a display."""
    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=_ARGUMENTS, timeout=SECONDS * 1000
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def open_console(
    browser: Browser, url: str, place: str = "", *, token: str | None = None, **options: Any
) -> Iterator[ConsolePage]:
    """Open the console, and sign in if a token is given; check its reports at the end.

    Args:
        place: the hash.
        options: options of the browser context, such as `color_scheme`.
    """
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(SECONDS * 1000)
    try:
        shown = ConsolePage(context.new_page(), url)
        shown.page.add_init_script(_RECORD_VIOLATIONS)
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.on("pageerror", lambda error: shown.reports.append(str(error)))
        shown.page.on(
            "console",
            lambda message: (
                None
                if any(text in message.text for text in _NO_FAULTS)
                else shown.reports.append(f"{message.type}: {message.text}")
            ),
        )
        shown.page.goto(f"{url}/console{place}")
        if token is not None:
            shown.sign_in(token)
        yield shown
        shown.check_reports()
    finally:
        context.close()
