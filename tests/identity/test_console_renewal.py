"""The console renews its token at a certified identity provider, in one tab and in two."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import parse_qs

import httpx2
import pytest
from playwright.sync_api import Browser, Page, Response, Route

from tests.identity import person
from tests.identity.provider import Office, needs_provider
from tests.identity.short_tokens import SECONDS, serve_short_tokens
from tests.identity.test_console import forget_provider, log_in
from tests.kit.browser import ConsolePage, expect, needs_browser, open_console
from tests.kit.conditions import wait_for
from tests.kit.model import ModelEndpoint
from tests.server.test_console import new_key

pytestmark = [*needs_browser, needs_provider]

FORM = "form[aria-label='Sign in']"

TOKEN = "**/console/sign-in/token"

RENEWED = 0.75 * SECONDS + 1
"""Seconds after which the server renews a token on request, with one for rounding."""


@pytest.fixture(scope="module")
def office(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Office]:
    with serve_short_tokens(tmp_path_factory.mktemp("office"), model_endpoint.base_url) as office:
        yield office


def is_renewal(answer: Response) -> bool:
    return answer.url.endswith("/console/sign-in/token") and answer.request.method == "GET"


def open_same_tab(shown: ConsolePage) -> Page:
    """Duplicate the tab: the new one has a copy of its storage."""
    with shown.page.context.expect_page() as opened:
        shown.evaluate("() => void window.open(location.href)")
    expect(opened.value.locator("header .name")).to_have_text("ada")
    return opened.value


def test_token_is_renewed_before_its_end_and_over_reloads(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents", fresh=True) as shown:
        log_in(shown.page, "ada")
        with shown.page.expect_response(is_renewal) as answer:
            pass
        assert answer.value.status == 200
        assert answer.value.json().keys() == {"token", "renew_in"}
        shown.page.reload()
        expect(shown.page.locator("header .name")).to_have_text("ada")
        stored = shown.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert "eyJ" not in stored
        assert shown.evaluate("document.cookie") == ""
        forget_provider(shown, office)


def test_two_tabs_take_turns_after_a_reload(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents", fresh=True) as shown:
        log_in(shown.page, "ada")
        due = time.time() + RENEWED
        other = open_same_tab(shown)
        reloaded: set[Page] = set()
        under_way: list[Route] = []
        most = 0

        def hold(route: Route) -> None:
            nonlocal most
            # A reload cancels requests of the old document, and their routes do not notice it.
            if route.request.frame.page not in reloaded:
                return route.abort()
            under_way.append(route)
            most = max(most, len(under_way))
            shown.page.wait_for_timeout(1_200)
            under_way.remove(route)
            return route.continue_()

        shown.page.context.route(TOKEN, hold)
        # The routes are only called while the page waits.
        while time.time() < due:
            shown.page.wait_for_timeout(100)
        for page in (shown.page, other):
            page.on("framenavigated", lambda frame: reloaded.add(frame.page))
        with (
            shown.page.expect_response(is_renewal) as one,
            other.expect_response(is_renewal) as two,
        ):
            for page in (shown.page, other):
                page.evaluate("() => void setTimeout(() => location.reload())")
        assert (one.value.status, two.value.status) == (200, 200)
        assert most == 1
        shown.page.context.unroute_all(behavior="wait")
        forget_provider(shown, office)


def test_two_tabs_use_each_refresh_token_once(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents", fresh=True) as shown:
        log_in(shown.page, "ada")
        other = open_same_tab(shown)
        under_way: list[Route] = []
        most = 0

        def hold(route: Route) -> None:
            # Longer than the tabs need to notice that the token is about to expire.
            nonlocal most
            under_way.append(route)
            most = max(most, len(under_way))
            shown.page.wait_for_timeout(1_200)
            under_way.remove(route)
            route.continue_()

        shown.page.context.route(TOKEN, hold)
        # A second use of a refresh token would end the sign-in in both tabs.
        for _ in range(2):
            with (
                shown.page.expect_response(is_renewal) as one,
                other.expect_response(is_renewal) as two,
            ):
                pass
            assert (one.value.status, two.value.status) == (200, 200)
        assert most == 1
        shown.page.context.unroute_all(behavior="wait")
        for page in (shown.page, other):
            page.evaluate("location.hash = '#/access?method=GET'")
            expect(page.locator("#app")).to_contain_text("Identity")
        forget_provider(shown, office)


def test_refused_request_is_sent_again_with_a_new_token(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents", fresh=True) as shown:
        log_in(shown.page, "ada")
        # The clock of the page is slow, so it renews nothing early.
        shown.page.clock.set_fixed_time(time.time() - 600)
        end = time.time() + SECONDS
        wait_for(lambda: time.time() > end)
        with shown.page.expect_response(is_renewal) as answer:
            shown.go("#/sessions")
        assert answer.value.status == 200
        expect(shown.page.locator("#app")).to_contain_text("No sessions")
        expect(shown.page.locator(FORM)).to_have_count(0)
        shown.page.context.clear_cookies()
        expect(shown.page.locator(FORM)).to_contain_text("it has expired or was revoked")
        forget_provider(shown, office)


def test_sign_out_of_one_tab_ends_the_other(office: Office, browser: Browser) -> None:
    with open_console(browser, office.url, "#/agents", fresh=True) as shown:
        log_in(shown.page, "ada")
        other = open_same_tab(shown)
        with shown.page.expect_response(lambda answer: answer.request.method == "DELETE"):
            shown.sign_out()
        # By this clock the token of the other tab is due, so the tab requests another one.
        other.clock.set_fixed_time(time.time() + SECONDS)
        other.bring_to_front()
        expect(other.locator(FORM)).to_have_count(1)
        forget_provider(shown, office)


def read_kept(client: httpx2.Client, headers: dict[str, str]) -> httpx2.Response:
    client.cookies.clear()
    return client.get("/console/sign-in/token", headers=headers)


def test_refused_renewal_ends_the_sign_in(office: Office) -> None:
    page = {"redirect_uri": f"{office.url}/console"}
    with httpx2.Client(base_url=office.url) as client:
        started = client.post("/console/sign-in/start", json=page).json()
        returned = parse_qs(person.sign_in("ada", started["url"]).url.query.decode())
        body = {**page, "code": returned["code"][0], "issuer": returned["iss"][0]}
        body |= {name: started[name] for name in ("code_verifier", "nonce")}
        headers = {"Agentctl-Console-Key": new_key()}
        finished = client.post("/console/sign-in/finish", json=body, headers=headers)
        assert finished.status_code == 200, finished.text
        assert 0 < finished.json()["renew_in"] < SECONDS
        headers["Cookie"] = finished.headers["set-cookie"].partition(";")[0]
        assert read_kept(client, headers).json()["token"] == finished.json()["token"]

        end = time.time() + finished.json()["renew_in"]
        wait_for(lambda: time.time() > end)
        renewed = read_kept(client, headers)
        assert renewed.json()["token"] != finished.json()["token"]
        again = read_kept(client, headers)
        assert again.status_code == 401
        assert again.json()["detail"].startswith("Your sign-in has ended")
        other = {**headers, "Agentctl-Console-Key": new_key()}
        assert read_kept(client, other).status_code == 404
        elsewhere = {**headers, "Sec-Fetch-Site": "cross-site"}
        assert read_kept(client, elsewhere).status_code == 400
