"""The token over a reload of the console, and what the cookie of the server is worth without it."""

from __future__ import annotations

import base64
import os
import time
from dataclasses import replace

import httpx2
import pytest
from playwright.sync_api import Browser

from agentctl.server import create_app, sign_in_links
from agentctl.server.routes import console
from tests.commands import shift_clock
from tests.console.browser import expect, needs_browser, open_console
from tests.console.deployed import READS, start, token
from tests.server.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

PLACE = "/console/sign-in/token"
LINKS = "/console/sign-in/links"
LINK = "/console/sign-in/link"

FORM = "form[aria-label='Sign in']"


def new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def test_reload_keeps_the_session(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "reloaded", "Still here after the reload")
    key = token(server)
    with open_console(browser, server.url, "#/sessions/reloaded", token=key) as shown:
        shown.see("Still here")
        shown.page.reload()
        shown.see("Still here")
        expect(shown.page.locator(FORM)).to_have_count(0)
        stored = shown.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert not any(part in stored for part in key.split("."))
        assert shown.evaluate("document.cookie") == ""
        (cookie,) = shown.page.context.cookies(f"{server.url}{PLACE}")
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert cookie["path"] == "/console/sign-in"
        assert not any(part in cookie["value"] for part in key.split("."))
        assert shown.page.context.cookies(f"{server.url}/sessions") == []


def test_sign_out_forgets_the_kept_token(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/access", token=token(server)) as shown:
        shown.see("Identity")
        with shown.page.expect_response(lambda answer: answer.request.method == "DELETE"):
            shown.sign_out()
        shown.page.reload()
        expect(shown.page.locator(FORM)).to_have_count(1)
        assert shown.evaluate("sessionStorage.length") == 0
        assert shown.page.context.cookies(f"{server.url}{PLACE}") == []


def test_sign_out_removes_the_page(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "left", "A text of this user")
    with open_console(browser, server.url, "#/sessions/left", token=token(server)) as shown:
        shown.see("A text of this user")
        expect(shown.page).to_have_title("A text of this user · World")
        shown.sign_out()
        expect(shown.page.locator(FORM)).to_have_count(1)
        expect(shown.page.locator("#app")).not_to_contain_text("A text of this user")
        assert shown.page.locator("main").inner_html() == ""
        expect(shown.page).to_have_title("World")
        shown.sign_in(token(server))
        shown.see("A text of this user")


def test_reload_does_not_outlive_the_token(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/access", fresh=True) as shown:
        shown.sign_in(server.deployment.token("me", *READS, seconds=600))
        with shift_clock(601):
            shown.page.clock.set_fixed_time(time.time())
            expect(shown.page.locator(FORM)).to_contain_text("The token has expired")
            shown.page.reload()
            expect(shown.page.locator(FORM)).to_have_count(1)


def test_other_tab_has_to_sign_in(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/access", token=token(server)) as shown:
        other = shown.page.context.new_page()
        other.goto(f"{server.url}/console")
        expect(other.locator(FORM)).to_have_count(1)
        other.fill("textarea[name=token]", server.deployment.token("you", *READS))
        other.click(f"{FORM} button[type=submit]")
        expect(other.locator("header .name")).to_have_text("you")
        shown.page.reload()
        expect(shown.page.locator("header .name")).to_have_text("me")
        other.reload()
        expect(other.locator("header .name")).to_have_text("you")


def test_page_that_was_hidden_for_long_asks_again(server: ThreadedServer, browser: Browser) -> None:
    key = server.deployment.token("me", *READS, seconds=7_200)
    with open_console(browser, server.url, "#/access", token=key, fresh=True) as shown:
        for minutes, forms in ((20, 0), (31, 1)):
            shown.see("Identity")
            shown.page.goto(f"{server.url}/health")
            shown.page.clock.set_fixed_time(time.time() + minutes * 60)
            shown.page.goto(f"{server.url}/console")
            shown.page.wait_for_selector("header .name, form[aria-label='Sign in']")
            expect(shown.page.locator(FORM)).to_have_count(forms)
            shown.page.clock.set_fixed_time(time.time())
            shown.go("#/access")


def test_cookie_authorizes_no_request(server: ThreadedServer) -> None:
    key = new_key()
    kept = server.client.post(
        PLACE, headers={**server.bearer("me", *READS), "Agentctl-Console-Key": key}
    )
    assert kept.status_code == 204
    field = kept.headers["set-cookie"]
    assert field.endswith("; HttpOnly; SameSite=Strict")
    cookie = {"Cookie": field.partition(";")[0]}
    for headers in (cookie, {**cookie, "Agentctl-Console-Key": key}):
        assert server.client.get("/sessions", headers=headers).status_code == 401
        assert server.client.post("/agents/echo/runs", headers=headers).status_code == 401
    restored = server.client.get(PLACE, headers={**cookie, "Agentctl-Console-Key": key})
    assert restored.json()["token"].count(".") == 2
    assert restored.headers["cache-control"] == "no-store"


def test_secure_cookie_behind_https(server: ThreadedServer) -> None:
    headers = {**server.bearer("me"), "Agentctl-Console-Key": new_key()}
    headers["Origin"] = "https://agents.example"
    kept = server.client.post(PLACE, headers=headers)
    assert kept.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 400),
        ({"Agentctl-Console-Key": "short"}, 400),
        ({"Agentctl-Console-Key": "ü" * 43}, 400),
        ({"Agentctl-Console-Key": new_key()}, 404),
        ({"Agentctl-Console-Key": "KEY", "Sec-Fetch-Site": "cross-site"}, 400),
        ({"Agentctl-Console-Key": "KEY", "Sec-Fetch-Site": "same-site"}, 400),
    ],
    ids=["no key", "short key", "no ASCII", "other key", "other site", "other port"],
)
def test_kept_token_needs_the_key_and_the_page(
    server: ThreadedServer, fields: dict[str, str], status: int
) -> None:
    key = new_key()
    headers = {**server.bearer("me", *READS), "Agentctl-Console-Key": key}
    cookie = server.client.post(PLACE, headers=headers).headers["set-cookie"].partition(";")[0]
    sent = {name: value.replace("KEY", key).encode() for name, value in fields.items()}
    answer = server.client.get(PLACE, headers={**sent, "Cookie": cookie.encode()})
    assert answer.status_code == status
    assert "token" not in answer.json()


def test_kept_time_is_bounded(server: ThreadedServer) -> None:
    key = os.urandom(32)
    named = {"Agentctl-Console-Key": base64.urlsafe_b64encode(key).decode().rstrip("=")}
    for digits, status in ((10, 200), (400, 404), (5_000, 404)):
        # A caller can encrypt anything with its own key.
        value = console._encrypt(console._compress(console._KeptTokens("t", "", "9" * digits)), key)
        cookie = {"Cookie": f"{console._cookie_name(key)}={value}"}
        assert server.client.get(PLACE, headers={**named, **cookie}).status_code == status, digits


def test_tokens_of_other_tabs_are_bounded(server: ThreadedServer) -> None:
    cookies = dict[str, str]()
    for _ in range(6):
        headers = {**server.bearer("me", *READS), "Agentctl-Console-Key": new_key()}
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        for field in server.client.post(PLACE, headers=headers).headers.get_list("set-cookie"):
            name, _, rest = field.partition("=")
            cookies.pop(name, None)
            if "Max-Age=0" not in rest:
                cookies[name] = rest.partition(";")[0]
    assert len(cookies) == 4


def test_token_of_nobody_is_not_kept(server: ThreadedServer) -> None:
    for headers in ({}, {"Authorization": "Bearer not.a.token"}):
        fields = {**headers, "Agentctl-Console-Key": new_key()}
        answer = server.client.post(PLACE, headers=fields)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def create_link(server: ThreadedServer, subject: str = "me") -> str:
    """Create a link that signs in as a user; return its code."""
    answer = server.client.post(LINKS, headers=server.bearer(subject, *READS))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


def use_link(server: ThreadedServer, code: str, **fields: str) -> httpx2.Response:
    """Send a code as a page does; `fields` are more header fields."""
    headers = {"Agentctl-Console-Key": new_key()} | fields
    return server.client.post(LINK, json={"code": code}, headers=headers)


@pytest.mark.parametrize("page", ["console", "chat"])
def test_link_signs_in_once(server: ThreadedServer, browser: Browser, page: str) -> None:
    code = create_link(server)
    with open_console(browser, server.url, f"#link={code}", name=page, fresh=True) as shown:
        expect(shown.page.locator("header .name")).to_have_text("me")
        assert code not in shown.page.url
        assert not any(code in url.partition("#")[0] for url in shown.requests)
        shown.page.reload()
        expect(shown.page.locator("header .name")).to_have_text("me")
        other = shown.page.context.new_page()
        other.goto(f"{server.url}/{page}#link={code}")
        expect(other.locator(FORM)).to_contain_text("has expired or was used before")
        assert code not in other.url


def test_code_of_a_link_is_worth_nothing_after_its_use(server: ThreadedServer) -> None:
    code = create_link(server)
    used = use_link(server, code)
    assert used.status_code == 200
    assert used.json()["token"].count(".") == 2
    assert "HttpOnly; SameSite=Strict" in used.headers["set-cookie"]
    assert used.headers["cache-control"] == "no-store"
    again = use_link(server, code)
    assert again.status_code == 400
    assert "token" not in again.json()
    headers = {"Authorization": f"Bearer {code}"}
    assert server.client.get("/sessions", headers=headers).status_code == 401


def test_code_of_a_link_expires(server: ThreadedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in_links, "LIFETIME_SECONDS", 0)
    assert use_link(server, create_link(server)).status_code == 400


def test_newer_link_of_a_token_ends_the_earlier_one(server: ThreadedServer) -> None:
    headers = server.bearer("linked-twice")
    codes = [server.client.post(LINKS, headers=headers).json()["code"] for _ in range(2)]
    assert [use_link(server, code).status_code for code in codes] == [400, 200]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_page_of_another_origin_cannot_use_a_link(server: ThreadedServer, site: str) -> None:
    code = create_link(server)
    refused = use_link(server, code, **{"Sec-Fetch-Site": site})
    assert refused.status_code == 400
    assert "token" not in refused.json()
    # The refusal has not used it up.
    assert use_link(server, code).status_code == 200


def test_server_with_several_processes_gives_no_link(server: ThreadedServer) -> None:
    settings = server.deployment.settings
    several = replace(settings, server=replace(settings.server, workers=2))
    with serve_in_thread(server.deployment, create_app(several)) as host:
        answer = host.client.post(LINKS, headers=server.bearer("me"))
    assert (answer.status_code, answer.json()["error_code"]) == (409, "CONFLICT")
