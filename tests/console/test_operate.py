"""The page Operate: what the server reports, as far as the caller may read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.console.test_widths import SMALL_TARGETS, check_layout
from tests.kit.browser import ConsolePage, check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

BUDGET = '[[budgets]]\nid = "few"\nper = "user"\ntokens = 1\n'

BLOCKS = {
    (ADMIN,): [
        "Server", "Workers and databases", "Runs and queue", "Last hour", "Approvals",
        "Webhooks", "Budgets", "Usage by user, today", "Retention",
    ],
    ("sessions:read", "webhooks:read"): ["Server", "Runs and queue", "Webhooks"],
    ("config:read",): ["Server", "Databases"],
    ("agents:run",): ["Server"],
}  # fmt: skip
"""The blocks that a caller with some scopes sees."""

LATE = {
    "webhook_id": "ops", "origin": "http://127.0.0.1:1", "events": ["run.failed"], "agents": [],
    "content": False, "public_key": None, "state": "disabled", "reason": "503 for a day",
    "disabled_at": "2026-01-01T00:00:00.000000Z", "waiting": 3, "delivered": 0, "dead": 2,
    "oldest_waiting_at": "2026-01-01T00:00:00.000000Z",
}  # fmt: skip


@pytest.fixture(scope="module")
def used(deploy: Deploy) -> Iterator[ThreadedServer]:
    """A server with a failed run and a budget that is exceeded."""
    with serve_in_thread(deploy(BUDGET)) as host:
        headers = host.bearer("ada", "agents:run")
        for agent in ("http-500", "echo"):  # the second one uses the budget up
            body = {"message": "What does tea cost?", "stream": False}
            host.client.post(f"/agents/{agent}/runs", json=body, headers=headers)
        yield host


def lines_of(shown: ConsolePage, block: str) -> list[str]:
    """Return the lines of a block, each in one line of text."""
    found = shown.page.locator(f"[data-block='{block}'] li")
    expect(found.first).to_be_visible()
    return [" ".join(text.split()) for text in found.all_inner_texts()]


def test_reader_of_the_configuration_sees_the_names_of_databases(
    used: ThreadedServer, browser: Browser
) -> None:
    key = used.deployment.token("reader", "config:read")
    with open_console(browser, used.url, "#/operate", token=key) as shown:
        assert lines_of(shown, "Databases") == [
            "✓ ok main configured, the system database",
            "✓ ok second configured",
        ]


def test_page_names_what_is_wrong(used: ThreadedServer, browser: Browser) -> None:
    headers = used.bearer("ada", ADMIN)
    halt = {"scope": "agent", "scope_id": "hang", "reason": "wrong prices"}
    halt_id = used.client.post("/halts", json=halt, headers=headers).json()["halt_id"]
    admin = used.deployment.token("boss", ADMIN)
    with open_console(browser, used.url, "#/operate") as shown:
        shown.page.route("**/webhooks", lambda route: route.fulfill(json=[LATE]))
        shown.sign_in(admin)
        assert "✓ ok database ok" in lines_of(shown, "Server")
        lines = lines_of(shown, "Workers and databases")
        assert any("✓ ok worker" in line and "idle: process" in line for line in lines)
        assert any("are free on its disk" in line for line in lines)
        assert any("few · ada" in line and "✗" in line for line in lines_of(shown, "Budgets"))
        assert "! note MODEL_UNAVAILABLE 1 run failed" in lines_of(shown, "Last hour")
        assert lines_of(shown, "Usage by user, today")[0].startswith("✓ ok ada 2 runs, 1 failed")
        expect(shown.page.locator("[data-block=Webhooks] li")).to_contain_text("disabled: 503")
        expect(shown.page.locator("[data-verdict]")).to_contain_text("2 problems · 1 warning")
        bar = shown.page.locator(".banner")
        expect(bar).to_contain_text("Halted: agent hang, by ada at 20")
        expect(bar).to_contain_text(": wrong prices")
        check_view(shown)

        used.client.delete(f"/halts/{halt_id}", headers=headers)
        shown.page.route("**/ready", lambda route: route.fulfill(status=503, json={}))
        shown.page.reload()
        expect(shown.page.locator("[data-block=Server]")).to_contain_text("is not available")
        expect(bar).to_have_count(0)


@pytest.mark.parametrize("width", [360, 390, 1280, 1920])
def test_operate_holds_at_any_width(used: ThreadedServer, browser: Browser, width: int) -> None:
    size: Any = {"width": width, "height": 800}
    admin = used.deployment.token("boss", ADMIN)
    with open_console(browser, used.url, "#/operate", token=admin, viewport=size) as shown:
        lines_of(shown, "Workers and databases")
        check_layout(shown)
        assert width > 390 or shown.evaluate(SMALL_TARGETS) == []


@pytest.mark.parametrize("scopes", BLOCKS, ids=" ".join)
def test_each_caller_sees_the_blocks_of_its_scopes(
    used: ThreadedServer, browser: Browser, scopes: tuple[str, ...]
) -> None:
    name = f"reader {len(scopes)} {scopes[0]}"
    key = used.deployment.token(name, *scopes)
    with open_console(browser, used.url, "#/operate", token=key) as shown:
        blocks = shown.page.locator("[data-block]")
        expect(blocks).to_have_count(len(BLOCKS[scopes]))
        assert blocks.locator("h2").all_inner_texts() == BLOCKS[scopes]
        expect(shown.page.locator("[data-finding=ok]").first).to_be_visible()
        expect(shown.page.locator(".findings:empty + *")).to_have_count(0)
    query = {"outcome": "denied", "principal": name}
    headers = used.bearer("boss", ADMIN)
    denied = used.client.get("/audit", params=query, headers=headers).json()["data"]
    assert [each["operation"] for each in denied] == []
