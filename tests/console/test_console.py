"""The console in a real browser, on a real server."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from agentctl.config.settings import Console
from agentctl.server import create_app
from agentctl.transcripts.texts import PHASE_LOOKS
from tests.cli.proxy import proxied
from tests.conditions import wait_for
from tests.console.browser import ConsolePage, expect, needs_browser, open_console
from tests.console.deployed import READS, RUNS, hold, start, token, wait_for_status
from tests.console.sums import repeat_sums
from tests.console.vendor import ROOT
from tests.deployment import ADMIN
from tests.policy.tokens import signed
from tests.server.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HOSTILE = f"{MARKUP}\u202e\u001b[31m"
"""A text that is dangerous as HTML, and at a terminal; it has to be shown as text."""

PRESS = """keys => {
    for (const key of keys) {
        document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    }
}"""
"""Press keys one after the other within the time that a sequence may take."""

FIRST_LIST = (15, 141_000, 48_500)
FIRST_OVERVIEW = (16, 165_000, 57_000)
FIRST_TRANSCRIPT = (22, 252_000, 84_500)
"""Requests, bytes and compressed bytes of the page and its files, at most; decision 56 has them."""

TALL: Any = {"width": 1280, "height": 1000}
"""A page that does not scroll with two short runs."""

CONSOLE = ROOT / "agentctl/server/console"

MAXIMUM_NODES = 475
"""Elements of a page with a long list."""

MAXIMUM_PICTURE = 140_000
"""Bytes of a picture of the documentation."""


def test_browser_is_led_to_the_page_and_programs_are_not(server: ThreadedServer) -> None:
    page = server.client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page.headers["location"]) == (307, "console")
    assert server.client.get("/", headers={"Accept": "*/*"}).json()["name"] == "World"


def test_page_and_files_have_strict_headers(server: ThreadedServer) -> None:
    answer = server.client.get("/console", headers={"Accept-Encoding": "identity"})
    rules = dict(
        rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
    )
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == rules["style-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["trusted-types"] == "'none'"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    names = [part.split('"')[0] for part in answer.text.split('"console/')[1:]]
    assert names
    for name in names:
        for accepted in ("identity", "gzip"):
            asset = server.client.get(f"/console/{name}", headers={"Accept-Encoding": accepted})
            assert asset.status_code == 200
            assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert asset.headers.get("content-encoding") == (
                None if accepted == "identity" else "gzip"
            )


def test_looks_of_phases_are_those_of_the_terminal(
    server: ThreadedServer, browser: Browser
) -> None:
    with open_console(browser, server.url) as shown:
        main = shown.page.locator("script[type=module]").get_attribute("src") or ""
        url = f"{server.url}/{main.replace('main.js', 'ui.js')}"
        looks = shown.evaluate("async url => (await import(url)).LOOKS", url)
    assert looks == {name: [look.glyph, look.color] for name, look in PHASE_LOOKS.items()}


def test_bad_token_is_refused_and_not_kept(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/sessions") as shown:
        shown.page.fill("textarea[name=token]", "not.a.token")
        shown.page.click("button[type=submit]")
        shown.see("401:", "agentctl auth explain GET /auth/me")
        assert shown.evaluate("sessionStorage.length") == 0
        start(server, "agents/echo", "after-sign-in", "Shown after the sign-in")
        shown.sign_in(token(server))
        shown.see("Shown after the sign-in")
        assert shown.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        shown.sign_out()
        expect(shown.page.locator("textarea[name=token]")).to_have_value("")


def test_transcript_shows_tools_members_and_errors(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "told", "_a__" * 600)
    start(server, "agents/tool-add", "told", '{"a": 1, "b": 2}')
    start(server, "agents/http-500", "told", "a failure")
    start(server, "teams/choir", "told-team", "sing")
    with open_console(browser, server.url, "#/sessions/told", token=token(server)) as shown:
        shown.see("add(a=1, b=2)", "✓ completed", "✗ failed", "MODEL_UNAVAILABLE")
        shown.page.click("text=add(a=1, b=2)")
        shown.see("Arguments", '"a": 1')
        expect(shown.page.locator("pre.plain")).to_contain_text("_a___a__")
        expect(shown.page.locator("[data-counts]")).to_have_text("3 runs · 1 failed")
        shown.page.click("[aria-label='Tool call as JSON']")
        shown.see('"tool_name": "add"', '"tool_call_error": false')
        shown.page.click("dialog button:text-is('Close')")
        expect(shown.page.locator("dialog")).to_have_count(0)
        shown.go("#/sessions/told-team")
        shown.see("Choir", "Echo: sing", "Http-500: sing", "MODEL_UNAVAILABLE")


def test_cancel_of_a_thread_tool_shows_both_facts(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "held", '{"name": "go"}', background=True)
    with open_console(browser, server.url, "#/sessions/held", token=token(server)) as shown:
        shown.see('hold(name="go")')
        shown.page.click("[data-cancel]")
        shown.page.fill("dialog input", "wrong customer")
        shown.page.click("dialog .danger")
        facts = shown.page.locator("[data-facts]")
        expect(facts).to_contain_text("Cancel requested")
        expect(facts).to_contain_text("tool hold has not returned")
        shown.see("■ stopped", "! work goes on", "Reason: wrong customer")
        (server.deployment.folder / "go").touch()
        expect(facts).to_contain_text("a late result was dropped")
        expect(shown.page.locator("article")).not_to_contain_text("work goes on")


def test_message_starts_a_run_that_is_followed(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "chat", "first")
    with open_console(
        browser, server.url, "#/sessions/chat", token=token(server), viewport=TALL
    ) as shown:
        shown.see("first")
        shown.page.fill("[data-message]", "second, with **bold** words")
        shown.page.keyboard.press("Enter")
        expect(shown.page.locator(".turn")).to_have_count(2)
        expect(shown.page.locator(".turn strong")).to_have_text("bold")
        expect(shown.page.locator(".turn .status").last).to_contain_text("completed")
        expect(shown.page.locator("[data-counts]")).to_have_text("2 runs")
        record = server.client.get("/sessions/chat", headers=server.bearer("me", *READS)).json()
        tokens = shown.page.locator("[data-counts] + span")
        expect(tokens).to_have_text(f"{record['total_tokens']:,} tokens")
        follow = shown.page.locator("button[aria-pressed]")
        for expected in ("true", "false"):
            expect(follow).to_have_attribute("aria-pressed", expected)
            follow.click()
        expect(follow).to_have_attribute("aria-pressed", "true")
        shown.page.keyboard.press("f")
        expect(follow).to_have_attribute("aria-pressed", "false")


def test_sessions_are_filtered_by_status_and_tag(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/http-500", "failed-one", "A failure of the list")
    start(server, "agents/echo", "tagged", "A tagged session")
    headers = server.bearer("me", "sessions:write")
    tags = {"metadata": {"tags": ["vip"]}}
    assert server.client.patch("/sessions/tagged", json=tags, headers=headers).is_success
    with open_console(browser, server.url, "#/sessions?status=ERROR", token=token(server)) as shown:
        rows = shown.page.locator("tbody")
        expect(rows).to_contain_text("A failure of the list")
        expect(rows).not_to_contain_text("A tagged session")
        shown.go("#/sessions")
        shown.filter("tag:vip")
        expect(rows).not_to_contain_text("A failure of the list")
        expect(rows).to_contain_text("A tagged session")
        shown.filter("tag:nothing")
        shown.see("No sessions match.")


def test_administrator_sees_every_page(server: ThreadedServer, browser: Browser) -> None:
    run = start(server, "teams/crew", "seen", "Look up the price").json()
    admin = server.deployment.token("boss", ADMIN)
    with open_console(browser, server.url, "#/sessions", token=admin) as shown:
        shown.see("Sessions", "Look up the price", "boss · admin")
        shown.go("#/runs?all=1&session=seen")
        shown.see("Crew", "2 runs")
        shown.go(f"#/runs/{run['run_id']}/timeline")
        shown.see("Crew · timeline", "member Echo", "model delegate", "model ")
        shown.page.click("[data-span=model] >> nth=0")
        shown.see(
            "first token", "answered by", "delegate", "Sent", "Delegate.", "Look up the price"
        )
        shown.page.keyboard.press("Escape")
        shown.go("#/agents")
        shown.see("A leader and two members", "Workflows")
        shown.go("#/agents/teams/crew")
        shown.see("Members", "Hang", "team · model delegate · mode coordinate", "completed")
        shown.go("#/audit?operation=create_team_run")
        shown.see("✓ allowed", "create_team_run")
        shown.go("#/access?method=GET&path=/agents/echo")
        shown.see("administrator", "200 allowed by policy", "checks passed")


def test_run_is_started_in_the_background(server: ThreadedServer, browser: Browser) -> None:
    place = "#/agents/agents/hold"
    (server.deployment.folder / "x").touch()
    with open_console(browser, server.url, place, token=token(server)) as shown:
        shown.page.fill("[data-message]", '{"name": "x"}')
        shown.page.check("text=in the background")
        shown.page.click("button:text-is('Start')")
        started = shown.page.locator("p[role=status] a")
        expect(started).to_have_count(1)
        assert shown.evaluate("location.hash") == place
        expect(shown.page.locator("tbody")).to_contain_text(started.inner_text())
        started.click()
        expect(shown.page.locator(".turn .status").last).to_contain_text("completed")
        shown.page.click("text=hold(name=")
        expect(shown.page.locator(".inside button:has-text('show all')")).to_have_count(1)
        shown.page.click("[aria-label='Tool call as JSON']")
        expect(shown.page.locator("dialog pre")).to_contain_text("." * 11_999)


def test_reader_sees_data_and_starts_nothing(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "read", "Only to read")
    with open_console(browser, server.url, "#/sessions/read", token=token(server, *READS)) as shown:
        shown.see("Only to read")
        expect(shown.page.locator("[data-message]")).to_be_disabled()
        message = shown.page.locator("[data-message]").get_attribute("placeholder")
        assert message == "Sending needs agents:echo:run"
        shown.go("#/agents/agents/echo")
        shown.see("Starting needs agents:echo:run.", "Only to read")
        shown.go("#/audit")
        shown.see("Not allowed", "This needs audit:read", "agentctl auth explain GET /audit")
        shown.go("#/access")
        shown.see("✗ run", "needs agents:run", "Explaining here needs the admin scope")


def test_reader_follows_a_live_run(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/trickle", "watched", "count", background=True)
    place = "#/sessions/watched"
    with open_console(browser, server.url, place, token=token(server, *READS)) as shown:
        expect(shown.page.locator(".markdown")).to_contain_text("w20")
        expect(shown.page.locator("[data-cancel]")).to_be_disabled()


def test_member_of_a_live_run_is_open_until_its_end(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "teams/jam", "live-team", "count", background=True)
    with open_console(browser, server.url, "#/sessions/live-team", token=token(server)) as shown:
        shown.see("Trickle", "Hang")
        expect(shown.page.locator("[data-member] .markdown")).to_contain_text("w5")
        shown.page.click("[data-cancel]")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("[data-member] .status")).to_have_text(["■ stopped"] * 2)
        expect(shown.page.locator("[data-member] .inside")).to_have_count(0)
        shown.page.click("text=Trickle: count")
        expect(shown.page.locator("[data-member] .markdown")).to_contain_text("w5")


def test_run_only_token_starts_a_run_and_sees_its_answer(
    server: ThreadedServer, browser: Browser
) -> None:
    only = token(server, "agents:run")
    with open_console(browser, server.url, "#/agents", token=only) as shown:
        shown.see("This needs agents:read; your token has agents:run.")
        shown.page.fill("input[name=id]", "echo")
        shown.page.click("text=Open")
        shown.see("Reading this needs agents:echo:read.")
        shown.page.fill("[data-message]", "said with *little* rights")
        shown.page.click("button:text-is('Start')")
        expect(shown.page.locator(".turn em")).to_have_text("little")
        shown.go("#/sessions")
        shown.see("This needs sessions:read; your token has agents:run.")


def test_token_without_scopes_opens_no_page(server: ThreadedServer, browser: Browser) -> None:
    empty = signed(server.deployment, "me", scopes=None, scope="agents:read")
    with open_console(browser, server.url, "#/access", token=empty) as shown:
        shown.see("none: this token grants nothing")
        for place in ("#/sessions", "#/sessions/told", "#/runs", "#/agents", "#/audit"):
            shown.go(place)
            expect(shown.page.locator("h2:text-is('Not allowed')")).to_have_count(1)
            shown.see("your token has no scopes")
            shown.see("the server does not read these claims: scope")


def test_runs_are_cancelled_from_the_list(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hang", "hung", "wait", background=True)
    start(server, "agents/hold", "hung", '{"name": "go on"}', background=True)
    place = "#/runs?session=hung"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        shown.see("2 running")
        for number in range(2):
            shown.page.locator("tbody input[type=checkbox]").nth(number).check()
        shown.page.click("text=Cancel 2 runs…")
        expect(shown.page.locator("dialog button:text-is('Keep running')")).to_be_focused()
        shown.page.click("dialog .danger")
        dialog = shown.page.locator("dialog")
        expect(dialog).to_contain_text("2 of 2")
        expect(dialog).to_contain_text("1 of 2 · waiting")
        expect(dialog).to_contain_text("tool hold has not returned")
        (server.deployment.folder / "go on").touch()
        expect(dialog.locator("dd").nth(1)).to_have_text("2 of 2")
        dialog.get_by_role("button", name="Close").click()
        shown.see("last action: 2 requested · 2 stopped", "No runs match.")


def test_cancel_of_a_finished_run_changes_nothing(server: ThreadedServer, browser: Browser) -> None:
    run = start(server, "agents/hold", "late", '{"name": "now"}', background=True).json()
    place = f"/sessions/late/runs/{run['run_id']}"
    with open_console(browser, server.url, "#/runs?session=late", token=token(server)) as shown:
        shown.page.click("tbody button")
        (server.deployment.folder / "now").touch()
        wait_for_status(server, place, "COMPLETED")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("dialog")).to_contain_text("had already ended1")
        expect(shown.page.locator("dialog dd").first).to_contain_text("0 of 1")
    record = server.client.get(place, headers=server.bearer("me", *READS)).json()
    assert record["cancel_requested_at"] is None


def test_stream_that_breaks_is_resumed_without_a_gap(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/trickle", "cut", "count", background=True)
    with (
        # On a busy machine one event has several words, so no word can be named here.
        proxied(server.url, cut_behind=b"event: ItemsChanged", times=2) as between,
        open_console(browser, between.url, "#/sessions/cut", token=token(server)) as shown,
    ):
        wait_for(lambda: between.cut == 2)
        text = shown.page.locator(".markdown")
        expect(text).to_contain_text(f"w{len(text.inner_text().split()) + 60}")
        words = text.inner_text().split()
        assert words == [f"w{number}" for number in range(len(words))]
        shown.page.click("[data-cancel]")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("[data-facts]")).to_contain_text("stopped")


def test_revoked_token_asks_again_over_the_page(server: ThreadedServer, browser: Browser) -> None:
    admin = server.bearer("boss", ADMIN)
    scopes = [{"scope": scope, "effect": "allow"} for scope in READS]
    body = {"name": "console", "scopes": scopes}
    account = server.client.post("/service-accounts", json=body, headers=admin).json()
    place = "#/runs?session=revoked"
    with open_console(browser, server.url, place, token=account["token"]) as shown:
        shown.see("No runs match.")
        server.client.delete(f"/service-accounts/{account['id']}", headers=admin)
        expect(shown.page.locator(".signin.over")).to_contain_text("did not accept the token")
        shown.sign_in(token(server))
        shown.see("No runs match.")
        assert shown.evaluate("location.hash") == place


def test_hostile_texts_are_shown_as_text(server: ThreadedServer, browser: Browser) -> None:
    headers = server.bearer(MARKUP, *READS, *RUNS, "sessions:write", "audit:read")
    message = f"{HOSTILE} [x](javascript:alert(3)) ![y](https://other.invalid/y.png)"
    body = {"message": message, "session_id": "hostile", "stream": False}
    body |= {"metadata": {MARKUP: MARKUP}}
    answer = server.client.post("/agents/hostile/runs", json=body, headers=headers)
    run = answer.json()["run_id"]
    renamed = {"session_name": HOSTILE}
    server.client.post("/sessions/hostile/rename", json=renamed, headers=headers)
    place = {"session_state": {MARKUP: MARKUP}, "metadata": {MARKUP: MARKUP}}
    server.client.patch("/sessions/hostile", json=place, headers=headers)
    secret = headers["Authorization"].partition(" ")[2]
    places = (
        "#/sessions",
        "#/sessions/hostile",
        "#/runs?all=1",
        f"#/runs/{run}/timeline",
        "#/agents",
        "#/agents/agents/hostile",
        "#/audit",
        "#/access",
    )
    with open_console(browser, server.url, places[0], token=secret) as shown:
        for place in places:
            shown.go(place)
            shown.see("<img src=x onerror=alert(1)>")
            assert shown.evaluate("document.querySelectorAll('#app img, #app script').length") == 0
            assert "\u202e" not in shown.page.locator("#app").inner_text()
        shown.go("#/sessions/hostile")
        expect(shown.page.locator(".markdown")).to_contain_text("x (javascript:alert(3))")
        expect(shown.page.locator(".markdown")).to_contain_text("\\u202e")
        link = shown.page.locator(".markdown a")
        expect(link).to_have_attribute("rel", "noreferrer noopener nofollow")
        shown.choose("Show as JSON")
        shown.see(f'"{MARKUP}": "{MARKUP}"')


def test_keys_lead_through_the_pages(server: ThreadedServer, browser: Browser) -> None:
    for number in range(2):
        start(server, "agents/tool-add", "keys", f'{{"a": {number}, "b": 1}}')
    body = {"session_name": "By key"}
    headers = server.bearer("me", *READS, "sessions:write")
    assert server.client.post("/sessions/keys/rename", json=body, headers=headers).is_success
    place = "#/sessions?name=By%20key"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        expect(shown.page.locator("tbody")).to_contain_text("By key")
        press = shown.page.keyboard.press
        press("/")
        expect(shown.page.get_by_role("combobox", name="Filters")).to_be_focused()
        press("Escape")
        press("j")
        press(" ")
        expect(shown.page.locator("tbody input")).to_be_checked()
        press("Enter")
        expect(shown.page.locator("[data-message]")).to_be_enabled()
        press("n")
        expect(shown.page.locator("[data-message]")).to_be_focused()
        press("Escape")
        opened = shown.page.locator(".inside")
        for key, count in (("o", 1), ("[", 1), ("o", 2), ("o", 1), ("O", 2), ("O", 0)):
            press(key)
            expect(opened).to_have_count(count)
        press("t")
        shown.see("Tool:Add · timeline")
        press("?")
        shown.see("Single-letter keys")
        press("Escape")
        expect(shown.page.locator("dialog")).to_have_count(0)
        shown.evaluate(PRESS, ["g", "a"])
        shown.see("Workflows")


def test_lists_and_assets_stay_within_their_budgets(
    server: ThreadedServer, browser: Browser
) -> None:
    headers = server.bearer("many", *READS, "sessions:write")
    for number in range(130):
        made = {"session_id": f"many-{number}", "agent_id": "echo"}
        assert server.client.post("/sessions", json=made, headers=headers).status_code == 201
    many = headers["Authorization"].partition(" ")[2]
    with open_console(browser, server.url, "#/sessions", token=many, fresh=True) as shown:
        expect(shown.page.locator("table")).to_have_attribute("aria-rowcount", "101")
        shown.evaluate("document.getElementById('main').scrollTo(0, 1e6)")
        expect(shown.page.locator("table")).to_have_attribute("aria-rowcount", "131")
        assert shown.page.locator("tbody tr").count() < 40
        assert shown.evaluate("document.querySelectorAll('*').length") < MAXIMUM_NODES
        shown.evaluate("document.getElementById('main').scrollTo(0, 1e6)")
        expect(shown.page.locator("tr[aria-rowindex='131']")).to_have_count(1)
        assets = [url for url in shown.requests if "/console" in url]
        assert len(assets) == len(set(assets))
        check_size(assets, FIRST_LIST)
        start(server, "agents/echo", "small", "a **bold** answer")
    reader = token(server, *READS, "usage:read")
    with open_console(browser, server.url, token=reader, fresh=True) as shown:
        expect(shown.page.locator("[data-groups] tbody tr").first).to_be_attached()
        check_size([url for url in shown.requests if "/console" in url], FIRST_OVERVIEW)
    place = "#/sessions/small"
    with open_console(browser, server.url, place, token=reader, fresh=True) as shown:
        expect(shown.page.locator(".markdown strong")).to_have_text("bold")
        check_size([url for url in shown.requests if "/console" in url], FIRST_TRANSCRIPT)


def check_size(urls: list[str], budget: tuple[int, int, int]) -> None:
    """Check the number and the size of the page and its files."""
    names = [urlsplit(url).path.split("/", 4)[4:] for url in urls]
    files = [(CONSOLE / (name[0] if name else "index.html")).read_bytes() for name in names]
    sizes = (len(files), sum(map(len, files)), sum(len(gzip.compress(each)) for each in files))
    assert all(size <= limit for size, limit in zip(sizes, budget, strict=True)), sizes


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
        expect(shown.page.locator(".signin")).to_have_count(0)


def test_disabled_console_is_not_served(server: ThreadedServer) -> None:
    off = replace(server.deployment.settings, console=Console(enabled=False))
    with serve_in_thread(server.deployment, create_app(off)) as host:
        assert host.client.get("/console").status_code == 404
        assert host.client.get("/", headers={"Accept": "text/html"}).json()["name"] == "World"


@pytest.mark.skipif(
    "AGENTCTL_TEST_SCREENSHOTS" not in os.environ,
    reason="writes docs/images: AGENTCTL_TEST_SCREENSHOTS=1",
)
def test_pictures_of_the_documentation(server: ThreadedServer, browser: Browser) -> None:
    """Write a screenshot of every page."""
    answer = "## Prices\n\n| article | price |\n|---|---:|\n| tea | 3.50 |\n| coffee | 2.80 |"
    start(server, "agents/tool-add", "added", '{"a": 3, "b": 4}')
    start(server, "agents/echo", "sum", answer)
    start(server, "agents/hold", "sum", '{"name": "never mind"}', background=True)
    for message in ("Wait for the delivery", "Ask for the invoice"):
        start(server, "agents/hang", "wait", message, background=True)
    run = start(server, "teams/choir", "song", "Sing about tea").json()["run_id"]
    start(server, "workflows/broken", "report", "Report on tea")
    for order, amount in (("A-130", 120), ("A-131", 35), ("B-7", 9)):
        start(server, "agents/refunds", "refunds", f'{{"order": "{order}", "amount": {amount}}}')
    for agent in ("priced", "http-500", "http-401"):
        start(server, f"agents/{agent}", "sums", "What does tea cost?")
    headers = server.bearer("boss", ADMIN)
    for session, name in (
        ("sum", "Prices of tea and coffee"),
        ("added", "Add two numbers"),
        ("refunds", "Refunds of November"),
    ):
        place = f"/sessions/{session}/rename"
        body = {"session_name": name}
        assert server.client.post(place, json=body, headers=headers).is_success
    repeat_sums(server, 23)
    hold(server, "report")
    approval = server.client.get("/approvals", headers=headers).json()["data"][-1]["approval_id"]
    admin = server.deployment.token("boss", ADMIN, seconds=3_300)
    pictures = {
        "overview": ("#/overview", "MODEL_UNAVAILABLE"),
        "sessions": ("#/sessions", "Sing about tea"),
        "transcript": ("#/sessions/sum", 'hold(name="never mind")'),
        "runs": ("#/runs", "Wait for the delivery"),
        "timeline": (f"#/runs/{run}/timeline", "model echo"),
        "agents": ("#/agents", "Workflows"),
        "agent": ("#/agents/agents/tool-add", "add(a, b)"),
        "audit": ("#/audit", "create_agent_run"),
        "approvals": ("#/approvals", "B-7"),
        "approval": (f"#/approvals/agent/refunds/{approval}", "A-130"),
        "access": ("#/access?method=POST&path=/agents/echo/runs", "checks passed"),
    }
    folder = Path(__file__).parents[2] / "docs" / "images"
    folder.mkdir(exist_ok=True)
    with open_console(browser, server.url, viewport={"width": 1280, "height": 600}) as shown:
        shown.page.fill("textarea[name=token]", admin)
        shown.see("expires in")
        _save_picture(shown, folder / "console-sign-in.png")
        shown.sign_in(admin)
        for name, (place, text) in pictures.items():
            shown.go(place)
            shown.see(text)
            height = {"transcript": 800, "overview": 720, "approval": 740}.get(name, 600)
            shown.page.set_viewport_size({"width": 1280, "height": height})
            if name == "overview":
                for key in ("End", *["Shift+ArrowLeft"] * 4):
                    shown.page.get_by_role("slider", name="Runs: hours").press(key)
            if name == "transcript":
                shown.page.click("[data-cancel]")
                shown.page.click("dialog .danger")
                shown.see("tool hold has not returned")
            if name == "approval":
                shown.page.click("text=Edit the arguments")
                shown.page.fill("[name=arguments]", '{"order": "A-130", "amount": 100}')
            _save_picture(shown, folder / f"console-{name}.png")
    (server.deployment.folder / "never mind").touch()


def _save_picture(shown: ConsolePage, file: Path) -> None:
    shown.page.evaluate("document.fonts.ready")
    shown.page.screenshot(path=file)
    assert file.stat().st_size <= MAXIMUM_PICTURE
