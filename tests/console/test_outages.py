"""The console while the server refuses, does not answer, or rejects the token; and its exports."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Route

from tests.console.deployed import start, token
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.process import base_environment, run_agentctl
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

TRY_NOW = "document.querySelector('[data-retry] button')?.click()"
"""Try again at once, unless the page has done so in the meantime."""


def test_list_keeps_its_data_and_recovers(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hang", "outage", "the first one", background=True)
    with open_console(browser, server.url, "#/runs?session=outage", token=token(server)) as shown:
        retry = shown.page.locator("[data-retry]")
        page = shown.page
        shown.see("the first one", "1 running")
        page.route("**/runs?**", lambda route: refuse(route, 429, {"Retry-After": "600"}))
        expect(retry).to_contain_text(re.compile(r"Too many requests · trying again in 5\d\d s"))
        expect(page.locator(".stale table")).to_contain_text("the first one")
        page.unroute_all()
        page.route("**/runs?**", lambda route: refuse(route, 503, {}))
        shown.evaluate(TRY_NOW)
        expect(retry).to_contain_text(re.compile(r"server is not available · trying again in \d s"))
        page.unroute_all()
        shown.evaluate(TRY_NOW)
        expect(retry).to_have_count(0)

        page.context.set_offline(True)
        expect(retry).to_contain_text("No answer since")
        expect(page.locator("header .dot")).to_contain_text("No answer since")
        shown.see("the first one")
        start(server, "agents/hang", "outage", "the second one", background=True)
        page.context.set_offline(False)
        shown.evaluate(TRY_NOW)
        shown.see("the second one", "2 running")
        expect(page.locator("header .dot")).to_have_text("Connected")

        field = page.get_by_role("combobox", name="Filters")
        with page.expect_response(lambda answer: answer.status == 304):
            field.press_sequentially("user:nobody-at-all", delay=90)
        expect(field).to_have_value("user:nobody-at-all")
        field.press("Enter")
        shown.see("No runs match.")


def test_kept_data_is_as_readable_as_before(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "readable", "hello")
    start(server, "agents/http-500", "readable", "a failure")
    views = (
        ("#/overview", "**/usage/overview?**", "Waiting for approval"),
        ("#/approvals", "**/approvals?**", "Approvals"),
        ("#/webhooks", "**/webhooks", "Webhooks"),
    )
    key = server.deployment.token("boss", ADMIN)
    with open_console(browser, server.url, token=key) as shown:
        for place, requests, text in views:
            # The text is there before the data, which has to be there to be kept.
            with shown.page.expect_response(requests):
                shown.go(place)
            shown.see(text)
            shown.page.route(requests, lambda route: refuse(route, 503, {"Retry-After": "600"}))
            expect(shown.page.locator(".stale")).to_be_visible()
            for scheme in ("light", "dark"):
                check_view(shown, scheme, 1280, runOnly=["color-contrast"])
            shown.page.unroute_all()


def refuse(route: Route, status: int, fields: dict[str, str]) -> None:
    """Answer a request with an error."""
    route.fulfill(status=status, json={"detail": "not now"}, headers=fields)


def test_stream_goes_on_after_a_rejected_token(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/trickle", "replaced", "count", background=True)
    place = "#/sessions/replaced"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        answer = shown.page.locator(".markdown")
        expect(answer).to_contain_text("w5")
        rejected = {"detail": "The token is not valid"}
        shown.page.route(
            "**/sessions/replaced/runs?**", lambda route: route.fulfill(status=401, json=rejected)
        )
        expect(shown.page.locator(".signin.over")).to_contain_text("did not accept the token")
        shown.page.unroute_all()
        last = len(answer.inner_text().split())
        shown.sign_in(token(server))
        expect(answer).to_contain_text(f"w{last + 10}")
        words = answer.inner_text().split()
        assert words == [f"w{number}" for number in range(len(words))]


def test_session_is_exported_as_by_the_command(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/tool-add", "exported", '{"a": 1, "b": 2}')
    start(server, "teams/choir", "exported-team", "Sing \u202e of `tea`\tand\r\n\r\nmore")
    names = ("exported", "exported-team")
    key = token(server)
    files: dict[tuple[str, str], str] = {}
    with open_console(browser, server.url, "#/sessions/exported", token=key) as shown:
        for name in names:
            shown.go(f"#/sessions/{name}")
            shown.see(name.replace("exported-team", "Sing").replace("exported", "add(a=1, b=2)"))
            labels = {"jsonl": "JSON Lines", "json": "JSON", "markdown": "Markdown"}
            for form, label in labels.items():
                with shown.page.expect_download() as download:
                    shown.choose(f"Export as {label}")
                files[name, form] = download.value.path().read_text()
                assert download.value.suggested_filename.startswith(f"{name}.")
    env = {**base_environment(), "AGENTCTL_TOKEN": key, "HOME": str(server.deployment.folder)}
    arguments = (*names, "--format", "markdown", "--url", server.url)
    done = run_agentctl("sessions", "export", *arguments, env=env)
    assert done.returncode == 0, done.stderr
    assert "".join(files[name, "markdown"] for name in names) == done.stdout.decode()
    headers = {"Authorization": f"Bearer {key}"}
    for name in names:
        session, runs = (
            server.client.get(f"/sessions/{name}{rest}", headers=headers).text
            for rest in ("", "/runs")
        )
        record = f'{{"session":{session},"runs":{runs}}}'
        assert files[name, "jsonl"] == f"{record}\n"
        assert files[name, "json"] == f"[{record}]\n"
