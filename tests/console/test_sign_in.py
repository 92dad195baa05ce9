"""The sign-in of the console and the chat, and how long a tab keeps its token."""

from __future__ import annotations

import time
from dataclasses import replace

from playwright.sync_api import Browser

from agentctl.server import create_app
from tests.console.deployed import READS, start, token
from tests.kit.browser import SIGN_IN, check_view, expect, needs_browser, open_console
from tests.kit.command import shift_clock
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

PLACE = "/console/sign-in/token"
LINKS = "/console/sign-in/links"


def test_token_is_checked_and_survives_a_reload(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "reloaded", "Still here after the reload")
    key = token(server)
    with open_console(browser, server.url, "#/sessions/reloaded") as shown:
        check_view(shown)
        shown.page.fill("textarea[name=token]", "not.a.token")
        shown.page.click(f"{SIGN_IN} button[type=submit]")
        shown.see("401:", "agentctl auth explain GET /auth/me")
        assert shown.evaluate("sessionStorage.length") == 0
        shown.sign_in(key)
        shown.see("Still here")

        shown.page.reload()
        shown.see("Still here")
        expect(shown.page.locator(SIGN_IN)).to_have_count(0)
        stored = shown.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert not any(part in stored for part in key.split("."))
        assert shown.evaluate("document.cookie") == ""
        (cookie,) = shown.page.context.cookies(f"{server.url}{PLACE}")
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        assert cookie["path"] == "/console/sign-in"
        assert not any(part in cookie["value"] for part in key.split("."))
        assert shown.page.context.cookies(f"{server.url}/sessions") == []


def test_sign_out_forgets_the_token_and_removes_the_page(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "left", "A text of this user")
    with open_console(browser, server.url, "#/sessions/left", token=token(server)) as shown:
        shown.see("A text of this user")
        expect(shown.page).to_have_title("A text of this user · World")
        with shown.page.expect_response(lambda answer: answer.request.method == "DELETE"):
            shown.sign_out()
        expect(shown.page.locator("textarea[name=token]")).to_have_value("")
        expect(shown.page.locator("#app")).not_to_contain_text("A text of this user")
        assert shown.page.locator("main").inner_html() == ""
        expect(shown.page).to_have_title("World")

        shown.page.reload()
        expect(shown.page.locator(SIGN_IN)).to_have_count(1)
        assert shown.evaluate("sessionStorage.length") == 0
        assert shown.page.context.cookies(f"{server.url}{PLACE}") == []


def test_link_signs_in_one_tab_and_only_once(server: ThreadedServer, browser: Browser) -> None:
    headers = server.bearer("me", *READS)
    code = server.client.post(LINKS, headers=headers).json()["code"]
    with open_console(browser, server.url, f"#link={code}") as shown:
        name = shown.page.locator("header .name")
        expect(name).to_have_text("me")
        assert code not in shown.page.url
        assert not any(code in url.partition("#")[0] for url in shown.requests)

        other = shown.page.context.new_page()
        other.goto(f"{server.url}/console#link={code}")
        expect(other.locator(SIGN_IN)).to_contain_text("has expired or was used before")
        assert code not in other.url
        second = server.client.post(LINKS, headers=server.bearer("you", *READS)).json()["code"]
        other.goto(f"{server.url}/chat#link={second}")
        expect(other.locator("header .name")).to_have_text("you")
        assert second not in other.url

        # Each tab keeps its own user over a reload.
        shown.page.reload()
        expect(name).to_have_text("me")
        other.reload()
        expect(other.locator("header .name")).to_have_text("you")


def test_long_absence_and_an_expired_token_ask_again(
    server: ThreadedServer, browser: Browser
) -> None:
    key = server.deployment.token("me", *READS, seconds=7_200)
    # Fresh, because a page keeps the clock that it gets here.
    with open_console(browser, server.url, "#/access", token=key, fresh=True) as shown:
        for minutes, forms in ((20, 0), (31, 1)):
            shown.see("Identity")
            shown.page.goto(f"{server.url}/health")
            shown.page.clock.set_fixed_time(time.time() + minutes * 60)
            shown.page.goto(f"{server.url}/console#/access")
            shown.page.wait_for_selector(f"header .name, {SIGN_IN}")
            expect(shown.page.locator(SIGN_IN)).to_have_count(forms)
            shown.page.clock.set_fixed_time(time.time())

        shown.sign_in(server.deployment.token("me", *READS, seconds=600))
        with shift_clock(601):
            shown.page.clock.set_fixed_time(time.time())
            expect(shown.page.locator(SIGN_IN)).to_contain_text("The token has expired")
            shown.page.reload()
            expect(shown.page.locator(SIGN_IN)).to_have_count(1)


def test_revoked_token_asks_again_over_the_page(server: ThreadedServer, browser: Browser) -> None:
    admin = server.bearer("boss", ADMIN)
    scopes = [{"scope": scope, "effect": "allow"} for scope in READS]
    body = {"name": "console", "scopes": scopes}
    account = server.client.post("/service-accounts", json=body, headers=admin).json()
    with open_console(browser, server.url, "#/access", token=account["token"]) as shown:
        shown.see("service account")
        server.client.delete(f"/service-accounts/{account['id']}", headers=admin)
        shown.go("#/runs?session=revoked")
        over = shown.page.locator(".signin.over")
        expect(over).to_contain_text("did not accept the token")
        shown.sign_in(token(server))
        shown.see("No runs match.")
        assert shown.evaluate("location.hash") == "#/runs?session=revoked"


def test_open_server_shows_a_warning_and_no_sign_in(
    server: ThreadedServer, browser: Browser
) -> None:
    settings = server.deployment.settings
    off = replace(settings, authorization=replace(settings.authorization, enabled=False))
    with (
        serve_in_thread(server.deployment, create_app(off)) as host,
        open_console(browser, host.url) as shown,
    ):
        shown.see("Authorization is off", "Sessions")
        expect(shown.page.locator(SIGN_IN)).to_have_count(0)
