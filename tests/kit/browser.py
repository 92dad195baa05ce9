"""A browser with pages of the console, which must report nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    BrowserType,
    ConsoleMessage,
    Error,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.kit.conditions import PATIENCE
from tests.kit.vendored import FOLDERS, read_vendored
from tests.notices import PAGE, tell

__all__ = [
    "CHROMIUM",
    "HOSTILE",
    "MARKUP",
    "PRESS",
    "SIGN_IN",
    "ConsolePage",
    "check_accessibility",
    "check_view",
    "expect",
    "needs_browser",
    "open_browser",
    "open_console",
    "open_context",
    "open_viewer",
]

_FULL_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

CHROMIUM = shutil.which("chromium-headless-shell") or _FULL_CHROMIUM
"""The headless shell, where it is installed: it takes 60% of the CPU time of Chromium."""

needs_browser = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")
]
"""The marks of tests in a browser."""

SIGN_IN = "form[aria-label='Sign in']"

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"

HOSTILE = f"{MARKUP}\u202e\u001b[31m"
"""A text that is dangerous as HTML, and at a terminal; it has to be shown as text."""

PRESS = """keys => {
    for (const key of keys) {
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    }
}"""
"""Press keys one after the other within the time that a sequence may take."""

AXE = FOLDERS[1] / "axe.min.js.xz"

_PATIENCE = PATIENCE * 1000
"""`PATIENCE` in milliseconds, as Playwright counts."""

_NO_FAULTS = ("Failed to load resource", "was preloaded using link preload")
"""Messages of Chromium about failed requests, which tests cause, and about slow ones."""

_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
"""Without a sandbox, for root in a container, whose shared memory may be too small."""

_VIEWPORT = ViewportSize(width=1280, height=720)

_SMALL_SCREEN = (
    "button-name", "label", "link-name", "nested-interactive", "page-has-heading-one",
    "scrollable-region-focusable", "select-name", "summary-name",
)  # fmt: skip
"""The rules of axe whose result depends on what a small screen hides."""

_FIND_VIOLATIONS = """async options => (await axe.run(document, options)).violations.flatMap(
    ({id, nodes}) => nodes.map(({html, failureSummary}) => [id, html, failureSummary]))"""
"""Return what axe-core finds. To send the rules that hold, too, would take 40% of its CPU time."""

_RECORD_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  violations.push(event.violatedDirective + " " + event.blockedURI));
"""


@dataclass
class ConsolePage:
    """A page whose browser context has nothing of earlier tests.

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
        self.page.click(f"{SIGN_IN} button[type=submit]")
        expect(self.page.locator(SIGN_IN)).to_have_count(0)

    def choose(self, action: str, *, menu: str = "More actions of the session") -> None:
        """Open a menu by its label, or by the beginning of it, and choose an action."""
        self.page.locator(f"[data-menu^='{menu}']").first.click()
        self.page.locator(".menu-list:popover-open").get_by_text(action, exact=True).click()

    def sign_out(self) -> None:
        """Sign out in the menu of the account."""
        self.choose("Sign out", menu="Account")

    def go(self, place: str) -> None:
        """Open a place such as `#/runs`."""
        self.page.evaluate("place => { location.hash = place }", place)

    def filter(self, words: str) -> None:
        """Type filters such as `status:failed` and apply them."""
        field = self.page.get_by_role("combobox", name="Filters")
        field.fill(words)
        field.press("Enter")

    def see(self, *texts: str) -> None:
        """Wait until the texts are on the page."""
        for text in texts:
            expect(self.page.locator("#app")).to_contain_text(text)

    def evaluate(self, code: str, argument: Any = None) -> Any:
        """Return the value of JavaScript in the page."""
        return self.page.evaluate(code, argument)

    def check_reports(self) -> None:
        """Check that the page broke no rule and asked no other host."""
        assert not self.reports, self.reports
        assert self.page.evaluate("window.violations") == []
        # Others are blobs, and parts of the browser's own viewer of PDF.
        hosts = {urlsplit(url).netloc for url in self.requests if url.startswith("http")}
        assert hosts == {urlsplit(self.url).netloc}


def check_accessibility(shown: ConsolePage) -> None:
    """Check a page with axe-core in both color schemes and at 360 px, as tests in `long` do."""
    size = shown.page.viewport_size
    for scheme, width, choice in (
        ("light", 1280, {}),
        ("dark", 1280, {"runOnly": ["color-contrast"]}),
        ("light", 360, {"runOnly": list(_SMALL_SCREEN)}),
    ):
        check_view(shown, scheme, width, **choice)
    if size is not None:
        shown.page.set_viewport_size(size)


def check_view(shown: ConsolePage, scheme: str = "light", width: int = 1280, **choice: Any) -> None:
    """Check a page with axe-core in one color scheme and width.

    Args:
        choice: options of axe; by default all its rules.
    """
    page = shown.page
    if not page.evaluate("'axe' in window"):
        page.evaluate(read_vendored(AXE).decode())
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 720})
    options = {"resultTypes": ["violations"], **choice}

    def find_violations() -> list[list[str]]:
        found: list[list[str]] = page.evaluate(_FIND_VIOLATIONS, options)
        return found

    # A change of colors or of the list may still be under way.
    deadline = time.monotonic() + PATIENCE
    while (violations := find_violations()) and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    assert violations == [], f"{page.url}, {scheme}, {width} px: {violations}"


@contextlib.contextmanager
def open_browser(program: str | Path | None = CHROMIUM, *arguments: str) -> Iterator[Browser]:
    """Start Chromium, without a display."""
    expect.set_options(timeout=_PATIENCE)
    with (
        sync_playwright() as playwright,
        _launch(playwright.chromium, program, *arguments) as started,
    ):
        yield started


@contextlib.contextmanager
def open_viewer(browser: Browser) -> Iterator[Browser]:
    """Start another Chromium, which shows PDF: the headless shell has no viewer."""
    if _FULL_CHROMIUM is None:
        pytest.skip("needs chromium: apt install chromium")
    with _launch(browser.browser_type, _FULL_CHROMIUM) as viewer:
        yield viewer


@contextlib.contextmanager
def _launch(
    chromium: BrowserType, program: str | Path | None, *arguments: str
) -> Iterator[Browser]:
    browser = chromium.launch(
        executable_path=program, args=[*_ARGUMENTS, *arguments], timeout=_PATIENCE
    )
    try:
        yield browser
    finally:
        _used_pages.pop(browser, None)
        browser.close()


@contextlib.contextmanager
def open_console(
    browser: Browser,
    url: str,
    place: str = "",
    *,
    token: str | None = None,
    viewport: ViewportSize = _VIEWPORT,
    fresh: bool = False,
    name: str = "console",
) -> Iterator[ConsolePage]:
    """Open the console, and check its reports at the end.

    Args:
        place: the hash.
        token: of a caller who has signed in before, see `_keep_token`.
        fresh: True if the page of an earlier test must not be used, nor this one later: the cache
            matters, or the test leaves more than `_clean_page` removes.
        name: the page: `console` or `chat`.
    """
    tell(PAGE, url)
    used = _used_pages.setdefault(browser, [])
    page = _open_page(browser) if fresh or not used else used.pop()
    is_clean = False
    try:
        shown = ConsolePage(page, url)
        page.set_viewport_size(viewport)
        if token is not None:
            _keep_token(page, url, token)
        with _reports_to(shown):
            page.goto(f"{url}/{name}{place}")
            if token is not None:
                expect(page.locator("header .name")).to_be_attached()
            yield shown
            shown.check_reports()
        is_clean = not fresh and _clean_page(page, url)
    finally:
        if is_clean:
            used.append(page)
        else:
            page.context.close()


_used_pages: dict[Browser, list[Page]] = {}
"""Pages for the next test: a new page takes three times as much CPU time until it is signed in."""


def open_context(browser: Browser, **options: Any) -> BrowserContext:
    """Open a context, whose pages wait for everything for `PATIENCE`."""
    context = browser.new_context(**options)
    context.set_default_timeout(_PATIENCE)
    return context


def _open_page(browser: Browser) -> Page:
    page = open_context(browser, reduced_motion="reduce").new_page()
    page.add_init_script(_RECORD_VIOLATIONS)
    return page


def _keep_token(page: Page, url: str, token: str) -> None:
    """Keep a token for a page as a sign-in does, so that it is signed in as after a reload.

    That takes a fifth of the CPU time from opening a page. `test_sign_in.py` has the form.
    """
    key = base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
    headers = {"Authorization": f"Bearer {token}", "Agentctl-Console-Key": key}
    kept = page.context.request.post(f"{url}/console/sign-in/token", headers=headers)
    assert kept.status == 204, kept.text()

    # The storage of a tab is that of an origin, which the page has to be at.
    if not page.url.startswith(f"{url}/"):
        page.goto(f"{url}/health")
    page.evaluate("tab => sessionStorage.setItem('console', tab)", json.dumps({"key": key}))


def _clean_page(page: Page, url: str) -> bool:
    """Leave the console and remove what a page has stored; return False if that is not possible."""
    context = page.context
    for other in context.pages:
        if other is not page:
            other.close()
    page.unroute_all()
    page.emulate_media(color_scheme="light")
    page.mouse.move(0, 0)
    try:
        page.goto(f"{url}/health")
    except Error:
        return False  # The server has ended.
    page.evaluate("localStorage.clear(); sessionStorage.clear()")
    context.clear_cookies()
    context.clear_permissions()
    return True


@contextlib.contextmanager
def _reports_to(shown: ConsolePage) -> Iterator[None]:
    def add_message(message: ConsoleMessage) -> None:
        if not any(text in message.text for text in _NO_FAULTS):
            shown.reports.append(f"{message.type}: {message.text}")

    listeners: dict[Any, Callable[[Any], None]] = {
        "request": lambda request: shown.requests.append(request.url),
        "pageerror": lambda error: shown.reports.append(str(error)),
        "console": add_message,
    }
    for event, listener in listeners.items():
        shown.page.on(event, listener)
    try:
        yield
    finally:
        for event, listener in listeners.items():
            shown.page.remove_listener(event, listener)
