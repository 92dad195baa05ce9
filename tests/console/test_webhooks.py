"""The page Webhooks: endpoints with their states, and what was not delivered to them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import Browser

from tests.console.deployed import READS, token
from tests.kit.browser import check_view, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser


def build(name: str, waits: timedelta | None, **fields: Any) -> dict[str, Any]:
    """Return the record of a webhook whose oldest event waits for some time."""
    since = None if waits is None else (datetime.now(UTC) - waits).isoformat()
    record = {"webhook_id": name, "origin": "https://example.org", "events": ["run.failed"]}
    counts = {"waiting": 51, "delivered": 0, "dead": 0, "oldest_waiting_at": since}
    return {**record, "state": "active", "reason": None, **counts, **fields}


def test_webhooks_that_do_not_answer_are_tested_and_sent_again(
    server: ThreadedServer, browser: Browser
) -> None:
    webhooks = [
        build("late", timedelta(minutes=5)),
        build("busy", timedelta(seconds=5)),
        build("idle", None, waiting=0),
        build("gone", timedelta(minutes=5), state="disabled", reason="410"),
    ]
    delivery = {"delivery_id": "7", "webhook_id": "gone", "run_id": "r", "type": "run.failed"}
    delivery |= {"state": "dead", "attempts": 3, "last_error": "410 Gone"}
    delivery |= {"created_at": "2026-01-01T00:00:00.000000Z"}
    listed = {"data": [delivery], "meta": {"total_count": 1, "next_cursor": None}}
    key = token(server, *READS, "webhooks:read", "webhooks:write")
    with open_console(browser, server.url, "#/agents", token=key) as shown:
        route = shown.page.route
        route("**/webhooks", lambda request: request.fulfill(json=webhooks))
        route("**/webhooks/deliveries?**", lambda request: request.fulfill(json=listed))
        route("**/webhooks/late/test", lambda request: request.fulfill(json={"error": "refused"}))
        route("**/deliveries/7/redeliver", lambda request: request.fulfill(status=204))
        shown.go("#/webhooks")
        states = shown.page.locator("tr[data-webhook] .status")
        expect(states).to_have_text(["! failing", "✓ active", "✓ active", "✗ disabled"])
        since = webhooks[0]["oldest_waiting_at"]
        expect(states.first).to_have_attribute("title", f"events wait since {since}")
        check_view(shown)
        late = shown.page.locator("tr[data-webhook=late]")
        late.get_by_role("button", name="Test").click()
        expect(late).to_contain_text("refused")
        dead = shown.page.locator("tr[data-delivery]")
        expect(dead).to_contain_text("3 attempts: 410 Gone")
        dead.get_by_role("button", name="Redeliver").click()
        expect(dead).to_contain_text("sent again")
