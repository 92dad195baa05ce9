"""The pages Audit and Access, and what the other pages say to a caller without a scope."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.deployed import READS, start, token
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser


def test_denied_call_leads_from_the_audit_log_to_its_reason(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/echo", "audited", "An allowed call")
    denied = server.client.get("/agents/echo", headers=server.bearer("denied-one", "teams:read"))
    assert denied.status_code == 403
    admin = server.deployment.token("boss", ADMIN)
    with open_console(browser, server.url, "#/audit?principal=me", token=admin) as shown:
        shown.see("boss · admin", "✓ allowed", "create_agent_run")
        shown.go("#/audit")
        shown.filter("principal:denied-one outcome:denied")
        row = shown.page.locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("✗ denied")
        check_view(shown)
        row.get_by_role("link", name="Explain").click()
        shown.see("administrator", "200 allowed by policy", "checks passed")
        assert shown.evaluate("location.hash") == "#/access?method=GET&path=%2Fagents%2Fecho"
        check_view(shown)

        shown.page.get_by_label("another").check()
        other = server.deployment.token("denied-one", "teams:read")
        shown.page.get_by_label("Token to explain").fill(other)
        shown.page.click("button:text-is('Explain')")
        shown.see("403 refused", "Grant one of", "agents:echo:read")


def test_reader_is_told_the_scope_of_what_is_missing(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "agents/trickle", "watched", "Only to read", background=True)
    with open_console(browser, server.url, token=token(server, *READS)) as shown:
        shown.see("The overview needs usage:read; your token has agents:read", "Only to read")
        expect(shown.page.locator("h1")).to_have_text("Sessions")
        shown.go("#/sessions/watched")
        expect(shown.page.locator(".markdown")).to_contain_text("w20")
        expect(shown.page.locator("[data-cancel]")).to_be_disabled()
        message = shown.page.locator("[data-message]")
        expect(message).to_be_disabled()
        expect(message).to_have_attribute("placeholder", "Sending needs agents:trickle:run")
        shown.go("#/agents/agents/trickle")
        shown.see("Starting needs agents:trickle:run.", "watched")
        shown.go("#/audit")
        shown.see("Not allowed", "This needs audit:read", "agentctl auth explain GET /audit")
        shown.go("#/access")
        shown.see("✗ run", "needs agents:run", "Explaining here needs the admin scope")
        shown.go("#/operate")
        blocks = shown.page.locator("[data-block] h2")
        expect(blocks).to_have_text(["Server", "Runs and queue"])
        refused = ("/usage", "/approvals", "/halts", "/webhooks", "/budgets")
        assert not [url for url in shown.requests if any(part in url for part in refused)]
