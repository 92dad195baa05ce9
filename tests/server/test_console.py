"""The responses of the pages `/console` and `/chat`, and the sessions of their sign-in."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import replace

import httpx2
import pytest

from agentctl.config.settings import Console
from agentctl.server import create_app, sign_in_links
from agentctl.server.routes import console
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

READS = ("agents:read", "sessions:read")

TOKEN = "/console/sign-in/token"
LINKS = "/console/sign-in/links"
LINK = "/console/sign-in/link"


def new_key() -> str:
    """Return a key as a tab of the console makes one."""
    return base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def keep(server: ThreadedServer, key: str) -> str:
    """Keep the token of a tab with a key; return the cookie for the requests of this tab."""
    headers = {**server.bearer("me", *READS), "Agentctl-Console-Key": key}
    kept = server.client.post(TOKEN, headers=headers)
    assert kept.status_code == 204
    return kept.headers["set-cookie"].partition(";")[0]


def test_browser_is_led_to_the_page_and_programs_are_not(server: ThreadedServer) -> None:
    page = server.client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["location"]) == (307, "console")
    assert server.client.get("/", headers={"Accept": "*/*"}).json()["name"] == "World"


@pytest.mark.parametrize("name", ["console", "chat"])
def test_page_and_files_have_strict_headers(server: ThreadedServer, name: str) -> None:
    page = server.client.get(f"/{name}", headers={"Accept-Encoding": "identity"})
    policy = page.headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == rules["style-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == "'none'"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"

    files = [part.split('"')[0] for part in page.text.split('"console/')[1:]]
    assert files
    for file in files:
        for accepted, encoding in (("identity", None), ("gzip", "gzip")):
            asset = server.client.get(f"/console/{file}", headers={"Accept-Encoding": accepted})
            assert asset.status_code == 200
            assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert asset.headers.get("content-encoding") == encoding


def test_pages_are_switched_off(server: ThreadedServer) -> None:
    assert server.client.head("/chat").status_code == 200
    for settings, status in ((Console(chat=False), 200), (Console(enabled=False), 404)):
        off = replace(server.deployment.settings, console=settings)
        with serve_in_thread(server.deployment, create_app(off)) as host:
            assert host.client.get("/chat").status_code == 404
            assert host.client.get("/console").status_code == status
            page = host.client.get("/", headers={"Accept": "text/html"})
            assert page.status_code == (307 if settings.enabled else 200)


def test_console_knows_the_chat_only_if_it_is_served(server: ThreadedServer) -> None:
    assert '<meta name="chat" content="chat"' in server.client.get("/console").text
    settings = replace(server.deployment.settings, console=Console(chat=False))
    with serve_in_thread(server.deployment, create_app(settings)) as host:
        assert '<meta name="chat" content=""' in host.client.get("/console").text


def test_cookie_authorizes_no_request(server: ThreadedServer) -> None:
    key = new_key()
    headers = {**server.bearer("me", *READS), "Agentctl-Console-Key": key}
    kept = server.client.post(TOKEN, headers=headers)
    assert kept.status_code == 204
    field = kept.headers["set-cookie"]
    assert field.endswith("; HttpOnly; SameSite=Strict")

    cookie = {"Cookie": field.partition(";")[0]}
    with_key = {**cookie, "Agentctl-Console-Key": key}
    for headers in (cookie, with_key):
        assert server.client.get("/sessions", headers=headers).status_code == 401
        assert server.client.post("/agents/echo/runs", headers=headers).status_code == 401

    restored = server.client.get(TOKEN, headers=with_key)
    assert restored.json()["token"].count(".") == 2
    assert restored.headers["cache-control"] == "no-store"


def test_cookie_behind_https_is_secure(server: ThreadedServer) -> None:
    headers = {**server.bearer("me"), "Agentctl-Console-Key": new_key()}
    headers["Origin"] = "https://agents.example"
    kept = server.client.post(TOKEN, headers=headers)
    assert kept.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")


KEYS_AND_PAGES = [
    ({}, 400),
    ({"Agentctl-Console-Key": "short"}, 400),
    ({"Agentctl-Console-Key": "ü" * 43}, 400),
    ({"Agentctl-Console-Key": new_key()}, 404),
    ({"Agentctl-Console-Key": "KEY", "Sec-Fetch-Site": "cross-site"}, 400),
    ({"Agentctl-Console-Key": "KEY", "Sec-Fetch-Site": "same-site"}, 400),
]
"""Header fields of a request for a kept token, `KEY` for its own key, and the status."""


@every_row("fields, status", KEYS_AND_PAGES)
def test_kept_token_needs_the_key_and_the_page(
    server: ThreadedServer, fields: Mapping[str, str], status: int
) -> None:
    key = new_key()
    cookie = keep(server, key)
    sent = {name: value.replace("KEY", key).encode() for name, value in fields.items()}
    answer = server.client.get(TOKEN, headers={**sent, "Cookie": cookie.encode()})
    assert answer.status_code == status
    assert "token" not in answer.json()


def test_kept_time_is_bounded(server: ThreadedServer) -> None:
    key = os.urandom(32)
    named = {"Agentctl-Console-Key": base64.urlsafe_b64encode(key).decode().rstrip("=")}
    for digits, status in ((10, 200), (400, 404), (5_000, 404)):
        # A caller can encrypt anything with its own key.
        tokens = console._KeptTokens("t", "", "9" * digits)
        value = console._encrypt(console._compress(tokens), key)
        cookie = {"Cookie": f"{console._cookie_name(key)}={value}"}
        assert server.client.get(TOKEN, headers={**named, **cookie}).status_code == status, digits


def test_tokens_of_other_tabs_are_bounded(server: ThreadedServer) -> None:
    cookies = dict[str, str]()
    for _ in range(6):
        headers = {**server.bearer("me", *READS), "Agentctl-Console-Key": new_key()}
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        for field in server.client.post(TOKEN, headers=headers).headers.get_list("set-cookie"):
            name, _, rest = field.partition("=")
            cookies.pop(name, None)
            if "Max-Age=0" not in rest:
                cookies[name] = rest.partition(";")[0]
    assert len(cookies) == 4


def test_token_of_nobody_is_not_kept(server: ThreadedServer) -> None:
    for headers in ({}, {"Authorization": "Bearer not.a.token"}):
        fields = {**headers, "Agentctl-Console-Key": new_key()}
        answer = server.client.post(TOKEN, headers=fields)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def create_link(server: ThreadedServer) -> str:
    """Create a link that signs in; return its code."""
    answer = server.client.post(LINKS, headers=server.bearer("me", *READS))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


def use_link(server: ThreadedServer, code: str, **fields: str) -> httpx2.Response:
    """Send a code as a page does; `fields` are more header fields."""
    headers = {"Agentctl-Console-Key": new_key()} | fields
    return server.client.post(LINK, json={"code": code}, headers=headers)


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


def test_provider_that_is_gone_is_named(server: ThreadedServer) -> None:
    gone = Console(oidc_issuer="http://127.0.0.1:9", oidc_client_id="agentctl-console")
    app = create_app(replace(server.deployment.settings, console=gone))
    with serve_in_thread(server.deployment, app) as host:
        body = {"redirect_uri": f"{host.url}/console"}
        answer = host.client.post("/console/sign-in/start", json=body)
        assert answer.status_code == 503
        assert "provider" in answer.json()["detail"]


def test_sign_in_without_a_provider_does_not_exist(server: ThreadedServer) -> None:
    page = {"redirect_uri": "http://127.0.0.1/console"}
    answer = page | {"code": "c", "code_verifier": "v", "nonce": "n"}
    assert server.client.post("/console/sign-in/start", json=page).status_code == 404
    assert server.client.post("/console/sign-in/finish", json=answer).status_code == 404
