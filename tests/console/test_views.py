"""Every page and state of the console at five widths, light and dark: axe-core and the layout.

Each view is checked once, with another width and color scheme than the view before; with
AGENTCTL_TEST_LONG=1 in all ten of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import hold, start, token
from tests.console.test_widths import check_layout
from tests.kit.browser import ConsolePage, check_view, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer
from tests.server.files_of_runs import build_png, upload

pytestmark = needs_browser

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

LOOKS = [*product((390, 768, 1024, 1280, 1920), ("light", "dark"))]


class View(NamedTuple):
    """A page or a state of it.

    Attributes:
        place: the hash, with the names of `records`.
        text: a text that shows that it is complete.
        click: the element that is clicked first.
        menu: the beginning of the label of a menu that is opened before.
        fill: a field, and its text.
    """

    place: str
    text: str
    click: str = ""
    fill: tuple[str, str] | None = None
    menu: str = ""


ALL = (
    View("#/overview", "Group by"),
    View("#/sessions", "Last used"),
    View("#/sessions?search=failure", "a failure"),
    View("#/sessions/axe", "add(a=1, b=2)", click="text=add(a=1, b=2)"),
    View(
        "#/sessions/axe", "add(a=1, b=2)", menu="More actions of the session", click="text=Rename…"
    ),
    View(
        "#/sessions/axe", "add(a=1, b=2)", menu="More actions of the session", click="text=Release…"
    ),
    View("#/sessions", "Last used", click="button:text-is('Files')"),
    View("#/sessions/song", "Sing about tea", menu="More actions of run"),
    View(
        "#/sessions/song", "Sing about tea", menu="More actions of run", click="text=Show as JSON"
    ),
    View("#/sessions", "Last used", menu="Account"),
    View("#/runs", " running"),
    View("#/runs", " running", fill=("[role=combobox]", "st")),
    View("#/runs", " running", click="summary:has-text('Saved views')"),
    View("#/runs?all=1", "completed"),
    View("#/runs?all=1&status=ERROR&group=1", "MODEL_UNAVAILABLE"),
    View("#/runs/{run}/timeline", "timeline"),
    View("#/runs/{tool}/timeline", "add", click="[data-span=tool] >> nth=0"),
    View("#/runs/{tool}/timeline", "model", click="[data-span=model] >> nth=0"),
    View("#/approvals", "A-130"),
    View("#/approvals/agent/refunds/{approval}", "A-130"),
    View(
        "#/approvals/agent/refunds/{approval}",
        "A-130",
        "text=Edit the arguments",
        ("[name=arguments]", '{"order": "A-130", "amount": 100}'),
    ),
    View("#/sessions/refunds", "for approval of refund", "[data-waits] button >> nth=0"),
    View("#/agents", "Workflows"),
    View("#/agents/agents/tool-add", "Last runs"),
    View("#/agents/agents/refunds", "Configuration of version"),
    View("#/agents/teams/crew", "Members"),
    View("#/agents/workflows/broken", "Steps"),
    View("#/webhooks", "Webhooks"),
    View("#/operate", "Retention"),
    View("#/audit", "create_agent_run"),
    View("#/access?method=GET&path=/agents", "checks passed"),
    View("#/sessions/unknown", "Not found, or you have no access"),
    View("#/runs/unknown/timeline", "Not found, or you have no access"),
    View("#/agents/agents/unknown", "Not found, or you have no access"),
    View("#/approvals/agent/refunds/unknown", "Not found, or you have no access"),
    View("#/overview", "Waiting for approval", click="button:has-text('Shortcuts')"),
)
"""The pages of an administrator, and the states of them."""

EMPTY = (
    View("#/overview", "usage:read"),
    View("#/sessions", "No sessions yet"),
    View("#/sessions?status=ERROR", "No sessions match"),
    View("#/runs", "Nothing is running"),
    View("#/runs?all=1", "No runs yet"),
    View("#/approvals", "approvals:read"),
    View("#/webhooks", "webhooks:read"),
    View("#/operate", "Server"),
    View("#/audit", "audit:read"),
    View("#/access", "Identity"),
)
"""The pages of a caller without a session and without the other scopes."""

CHAT = (
    View("", "New chat"),
    View("#/sessions/song", "Sing about tea"),
    View("#/sessions/axe", "Something went wrong", click="text=Used add"),
    View("#/sessions/refunds", "Refunds wants to refund", click="text=Change the values"),
    View("#/sessions/axe", "Used add", menu="Account"),
    View("#/sessions/unknown", "Not found, or you have no access"),
    View("#/none", "New chat", click="button:has-text('Shortcuts')"),
)
"""The pages of the chat, and the states of them."""


@pytest.fixture(scope="module")
def records(server: ThreadedServer) -> dict[str, str]:
    """Create what the pages show; return the ids in places."""
    tool = start(server, "agents/tool-add", "axe", '{"a": 1, "b": 2}').json()["run_id"]
    start(server, "agents/http-500", "axe", "a failure")
    run = start(server, "teams/choir", "song", "Sing about tea").json()["run_id"]
    start(server, "workflows/broken", "report", "Report on tea")
    start(server, "agents/refunds", "refunds", '{"order": "A-130", "amount": 120}')
    hold(server, "axe")
    with server.deployment.client(server.url, "boss") as client:
        upload(client, "picture.png", build_png())
    listed = server.client.get("/approvals", headers=server.bearer("boss", ADMIN)).json()["data"]
    (approval,) = [each for each in listed if "A-130" in str(each) and each["status"] == "pending"]
    return {"run": run, "tool": tool, "approval": approval["approval_id"]}


@pytest.mark.parametrize(
    ("views", "name"),
    [(ALL, "boss"), (EMPTY, "nobody"), (CHAT, "me")],
    ids=["all", "empty", "chat"],
)
def test_views_are_accessible_and_whole(
    server: ThreadedServer,
    browser: Browser,
    records: Mapping[str, str],
    views: tuple[View, ...],
    name: str,
) -> None:
    keys: dict[str, Callable[[], str]] = {
        "boss": lambda: server.deployment.token("boss", ADMIN),
        "nobody": lambda: server.deployment.token("nobody", "sessions:read"),
        "me": lambda: token(server),
    }
    page = "chat" if views is CHAT else "console"
    with open_console(browser, server.url, name=page) as shown:
        if views is ALL:
            check_looks(shown, 0)
        shown.sign_in(keys[name]())
        for number, view in enumerate(views, start=1):
            if page == "console":  # The page of the view before is gone, with its dialogs.
                shown.go("#/agents")
                expect(shown.page.locator("main h1")).to_have_text("Agents")
            shown.page.set_viewport_size({"width": 1280, "height": 720})
            shown.go(view.place.format(**records))
            shown.see(view.text)
            if view.menu:
                shown.page.locator(f"[data-menu^='{view.menu}']").first.click()
            if view.click:
                shown.page.click(view.click)
            if view.fill:
                shown.page.fill(*view.fill)
            check_looks(shown, number)
            shown.page.keyboard.press("Escape")


def check_looks(shown: ConsolePage, number: int) -> None:
    """Check a page in all looks, or in the one of its number."""
    for width, scheme in LOOKS if LONG else [LOOKS[3 * number % len(LOOKS)]]:
        check_view(shown, scheme, width)
        check_layout(shown)
