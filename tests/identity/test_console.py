"""A day in the console: sign-in at a certified identity provider, a run, an approval, sign-out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page

from tests.console.browser import ConsolePage, expect, needs_browser, open_console
from tests.deployment import create_deployment
from tests.endpoint import ModelEndpoint
from tests.identity.provider import AUDIENCE, list_clients, needs_provider, run_identity_provider
from tests.ports import find_free_port
from tests.process import start_server

pytestmark = [*needs_browser, needs_provider]

FORM = "form[aria-label='Sign in']"

USERS = {
    "ada": {"scopes": ["agents:read", "agents:payer:run", "sessions:read"]},
    "eve": {"scopes": ["agents:read"]},
}

EXTRA = """
[console]
oidc_issuer = "{issuer}"
oidc_client_id = "console"

[[models]]
id = "payer"
provider = "openai"
model = "tool:pay"
base_url = "{url}"

[[agents]]
id = "payer"
name = "Payer"
model = "payer"
tools = ["paying:pay"]
approve = {{ pay = "user" }}
"""

TRUST = """algorithm = "RS256"
issuer = "{issuer}"
oidc_discovery = true
verify_audience = true
audience = "{audience}"
require_exp = true
"""

PAY = '''
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"
'''


@dataclass
class Place:
    """A server that accepts the tokens of a provider."""

    url: str
    issuer: str


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("office")
    (folder / "paying.py").write_text(PAY)
    port = find_free_port()
    clients = list_clients(f"http://127.0.0.1:{port}/console")
    with run_identity_provider(clients, users=USERS) as issuer:
        url = model_endpoint.base_url
        deployment = create_deployment(folder, url, extra=EXTRA.format(issuer=issuer, url=url))
        trust = TRUST.format(issuer=issuer, audience=AUDIENCE)
        file = deployment.path
        own = 'verification_key_files = ["keys/signing.pub.pem"]\n'
        file.write_text(file.read_text().replace(own, trust))
        options = ("--config", str(file), "--port", str(port))
        with start_server(*options, log=folder / "server.log") as served:
            yield Place(served.url, issuer)


def log_in(page: Page, user: str) -> None:
    """Start at the sign-in of the console; send the forms of the provider."""
    page.click("button:has-text('Sign in with 127.0.0.1')")
    page.fill("input[name=login]", user)
    page.fill("input[name=password]", "any")
    page.click("button:has-text('Sign-in')")
    page.click("button:has-text('Continue')")
    expect(page.locator("header .name")).to_have_text(user)


def forget_provider(shown: ConsolePage, place: Place) -> None:
    """Leave the pages of the provider, which are navigations, out of the checks of the console."""
    shown.requests[:] = [url for url in shown.requests if not url.startswith(place.issuer)]
    shown.reports[:] = [text for text in shown.reports if "autocomplete" not in text]


def test_user_signs_in_starts_a_run_and_decides(place: Place, browser: Browser) -> None:
    with open_console(browser, place.url, "#/agents/agents/payer") as shown:
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
        forget_provider(shown, place)


def test_user_sees_what_the_token_allows(place: Place, browser: Browser) -> None:
    with open_console(browser, place.url, "#/agents/agents/payer") as shown:
        log_in(shown.page, "eve")
        shown.see("Starting needs agents:payer:run.")
        shown.go("#/sessions")
        shown.see("This needs sessions:read; your token has agents:read.")
        forget_provider(shown, place)
