"""Sign-in at an OIDC provider in another process, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from playwright.sync_api import Browser, Page

from agentctl.config.settings import Console
from agentctl.server import create_app
from tests.console.provider import AUDIENCE, run_provider
from tests.kit.browser import ConsolePage, check_view, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.test_console import new_key

pytestmark = needs_browser

CLIENT = "agentctl-console"

FORM = "form[aria-label='Sign in']"


@dataclass
class SignedInServer:
    """A server that accepts the tokens of a provider.

    Attributes:
        url: base URL of the server.
        issuer: the provider.
        server: the server.
    """

    url: str
    issuer: str
    server: ThreadedServer


@pytest.fixture(scope="module")
def provided(server: ThreadedServer) -> Iterator[SignedInServer]:
    settings = server.deployment.settings
    with run_provider(CLIENT) as issuer:
        trusted = replace(
            settings.authorization,
            verification_key_files=(),
            issuer=issuer,
            oidc_discovery=True,
            verify_audience=True,
            audience=AUDIENCE,
        )
        console = Console(oidc_issuer=issuer, oidc_client_id=CLIENT, oidc_scopes=("profile",))
        app = create_app(replace(settings, authorization=trusted, console=console))
        with serve_in_thread(server.deployment, app) as host:
            page = {"redirect_uri": f"{host.url}/console"}
            assert host.client.post(f"{issuer}/register", data=page).status_code == 204
            yield SignedInServer(host.url, issuer, host)


def log_in(page: Page, user: str) -> None:
    """Start at the sign-in of the console and send the form of the provider."""
    page.click("button:has-text('Sign in with 127.0.0.1')")
    page.fill("input[name=user]", user)
    page.click("text=Log in")


def test_user_signs_in_at_the_provider(provided: SignedInServer, browser: Browser) -> None:
    with open_console(browser, provided.url, "#/access?method=GET") as shown:
        check_view(shown)
        log_in(shown.page, "alice")
        expect(shown.page.locator("header .name")).to_have_text("alice")
        shown.see("Identity", provided.issuer)
        assert shown.evaluate("location.href") == f"{provided.url}/console#/access?method=GET"
        shown.page.reload()
        expect(shown.page.locator("header .name")).to_have_text("alice")
        stored = shown.evaluate("JSON.stringify({...sessionStorage})")
        assert "verifier" not in stored
        assert "eyJ" not in stored
        _forget_provider(shown, provided)


def test_refusals_of_the_sign_in_are_shown(provided: SignedInServer, browser: Browser) -> None:
    texts = {
        "refused": "The provider refused the sign-in: access_denied",
        "stranger": "this server does not accept its token",
    }
    with open_console(browser, provided.url) as shown:
        for user, text in texts.items():
            log_in(shown.page, user)
            expect(shown.page.locator(FORM)).to_contain_text(text)
            expect(shown.page.locator("header .name")).to_have_count(0)
        _forget_provider(shown, provided)


def test_response_that_the_tab_did_not_ask_for_is_refused(
    provided: SignedInServer, browser: Browser
) -> None:
    with open_console(browser, provided.url, "?code=stolen&state=other") as shown:
        expect(shown.page.locator(FORM)).to_contain_text("This tab has not asked for the sign-in")
        assert shown.evaluate("location.search") == ""
        assert not any("finish" in url for url in shown.requests)


def test_code_is_bound_to_the_page_and_used_once(
    provided: SignedInServer, browser: Browser
) -> None:
    with open_console(browser, provided.url) as shown:
        with shown.page.expect_request("**/console/sign-in/finish") as request:
            log_in(shown.page, "alice")
        expect(shown.page.locator("header .name")).to_have_text("alice")
        body = request.value.post_data_json
        _forget_provider(shown, provided)
    client = provided.server.client
    key = {"Agentctl-Console-Key": new_key()}
    again = client.post("/console/sign-in/finish", json=body, headers=key)
    assert (again.status_code, again.json()["detail"]) == (
        400, "The provider refused the sign-in",
    )  # fmt: skip
    other = client.post(
        "/console/sign-in/finish", json={**body, "issuer": "https://other.example"}, headers=key
    )
    assert other.json()["detail"] == "The response is of another provider"
    elsewhere = client.post(
        "/console/sign-in/finish", json=body, headers={**key, "Sec-Fetch-Site": "cross-site"}
    )
    assert elsewhere.status_code == 400


def test_fields_of_the_sign_in_are_bounded(provided: SignedInServer) -> None:
    client = provided.server.client
    page = f"{provided.url}/console"
    for url in ("javascript:alert(1)", f"{page}?x=1", "http://" + "x" * 5_000):
        answer = client.post("/console/sign-in/start", json={"redirect_uri": url})
        assert answer.status_code == 422
    body = {"code": "c" * 5_000, "code_verifier": "v", "nonce": "n", "redirect_uri": page}
    key = {"Agentctl-Console-Key": new_key()}
    assert client.post("/console/sign-in/finish", json=body, headers=key).status_code == 422


def _forget_provider(shown: ConsolePage, provided: SignedInServer) -> None:
    """Leave the requests to the provider, which are navigations, out of the checks of the page."""
    shown.requests[:] = [url for url in shown.requests if not url.startswith(provided.issuer)]
