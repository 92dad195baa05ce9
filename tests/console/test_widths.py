"""The console in narrow and wide windows, with long lists and long texts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from tests.console.deployed import READS, RUNS, start, token
from tests.kit.browser import ConsolePage, expect, needs_browser, open_console
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

WIDTHS = (360, 390, 640, 800, 1024, 1280, 1920)

ROWS = 200

LONG = "What does the article number one hundred and thirty cost, and when is it here? " * 3

TEAM = "A long question to the choir: " + "Donaudampfschifffahrtsgesellschaftskapitän" * 4

FAULTS = """minimum => {
    const main = document.getElementById("main");
    const faults = [];
    const add = (text, element) => faults.push(`${text}: ${element.outerHTML.slice(0, 160)}`);
    const visible = element => element.checkVisibility() && element.getClientRects().length;
    for (const box of [document.documentElement, main]) {
        if (box.scrollWidth > box.clientWidth) add("scrolls sideways", box);
    }
    const root = document.documentElement;
    if (root.scrollHeight > root.clientHeight) add("scrolls below the page", root);
    for (const table of document.querySelectorAll(".table table")) {
        const right = table.getBoundingClientRect().right;
        for (const row of table.querySelectorAll("thead tr, tbody tr:not(.space)")) {
            const cells = [...row.cells].filter(visible);
            const last = cells.at(-1).getBoundingClientRect().right;
            if (Math.abs(right - last) > 2) add(`${right - last} px of the table are empty`, row);
        }
        for (const cell of table.querySelectorAll("th, td.state, td.right")) {
            if (visible(cell) && cell.scrollWidth > cell.clientWidth + 1) add("is cut", cell);
        }
        for (const cell of table.querySelectorAll("td.name, td.operation")) {
            if (cell.clientWidth < minimum) add(`has ${cell.clientWidth} px`, cell);
        }
    }
    for (const field of document.querySelectorAll(".filters input")) {
        if (visible(field) && field.clientWidth < 90) add("has no room for its label", field);
    }
    for (const box of document.querySelectorAll(".answer, .panel, .asked, .card, dialog")) {
        const right = box.getBoundingClientRect().right;
        for (const each of box.querySelectorAll("*")) {
            if (each.closest("dialog") !== box.closest("dialog")) continue;
            if (each.closest(".scroll, pre, .line .call, .hidden") || !visible(each)) continue;
            if (each.getBoundingClientRect().right > right + 1) add("leaves its box", each);
            const boxed = getComputedStyle(each).display !== "inline";
            if (boxed && each.matches(".end, .bar, .strip, .status")
                && each.scrollWidth > each.clientWidth + 1) add("is cut", each);
        }
    }
    return faults.slice(0, 5);
}"""
"""Return elements that are cut, empty or out of their box; names have at least some pixels."""

SMALL_TARGETS = """() => [...document.querySelectorAll(
    "button, select, summary, nav a, .back, td a[data-row],"
    + " input:not([type=checkbox], [type=radio])"
)].filter(each => each.checkVisibility() && !each.closest(".hidden, [inert]"))
    .filter(each => each.getBoundingClientRect().height < 43.5)
    .map(each => `${each.getBoundingClientRect().height} px: ${each.outerHTML.slice(0, 160)}`)"""


@pytest.fixture(scope="module")
def crowded(server: ThreadedServer) -> str:
    """Create many sessions, runs and entries; return the token of their administrator."""
    headers = server.bearer("wide", *READS, *RUNS, "sessions:write")
    for number in range(ROWS):
        session = {"session_id": f"wide-{number}", "agent_id": "echo"}
        assert server.client.post("/sessions", json=session, headers=headers).is_success
        agent = "echo" if number % 10 else "http-500"
        body = {"message": f"{number}: {LONG}", "session_id": f"wide-{number}", "stream": False}
        assert server.client.post(f"/agents/{agent}/runs", json=body, headers=headers).is_success
    return server.deployment.token("boss", ADMIN)


@pytest.mark.parametrize("width", WIDTHS)
def test_lists_hold_with_many_rows(
    server: ThreadedServer, browser: Browser, crowded: str, width: int
) -> None:
    with _open(browser, server, "#/sessions", crowded, width) as shown:
        for place, text in {
            "#/sessions": "What does",
            "#/runs?all=1&user=wide": "completed",
            "#/audit": "create_agent_run",
        }.items():
            shown.go(place)
            shown.see(text)
            for _ in range(2):
                check_layout(shown, minimum=110)
                shown.evaluate("document.getElementById('main').scrollTo(0, 2000)")
                shown.page.wait_for_selector("tr.space", state="attached")


@pytest.mark.parametrize("width", WIDTHS)
def test_top_and_agents_hold_with_unusual_facts_of_the_server(
    server: ThreadedServer, browser: Browser, width: int
) -> None:
    def rename(route: Route) -> None:
        answer = route.fetch()
        unusual = {"name": "Agents of the Company " * 3, "left_out_count": 2}
        route.fulfill(response=answer, json=answer.json() | unusual)

    with _open(browser, server, "#/access", server.deployment.token("boss", ADMIN), width) as shown:
        shown.page.route("**/info", rename)
        shown.page.reload()
        shown.see("Agents of the Company", "Identity")
        check_layout(shown)
        shown.go("#/agents")
        shown.see("Left out, because their code cannot be loaded: 2")
        check_layout(shown)


@pytest.mark.parametrize("width", WIDTHS)
def test_transcript_holds_with_long_texts(
    server: ThreadedServer, browser: Browser, width: int
) -> None:
    session = f"team-{width}"
    start(server, "agents/tool-add", "tools", '{"a": 1234567890, "b": 987654321}')
    start(server, "teams/choir", session, TEAM)
    key = token(server, *READS, *RUNS, "sessions:write")
    with _open(browser, server, f"#/sessions/{session}", key, width) as shown:
        shown.see("MODEL_UNAVAILABLE")
        expect(shown.page.locator("[data-member] .status")).to_have_text(
            ["✓ completed", "✗ failed"]
        )
        check_layout(shown)
        shown.page.keyboard.press("O")
        check_layout(shown)
        shown.go("#/sessions/tools")
        shown.see("add(")
        shown.page.keyboard.press("o")
        check_layout(shown)
        for place, text in {
            "#/agents": "Workflows",
            "#/agents/teams/crew": "Members",
            "#/access": "Identity",
        }.items():
            shown.go(place)
            shown.see(text)
            check_layout(shown)


def test_live_run_with_a_cancel_holds_on_a_phone(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "held-wide", '{"name": "phone"}', background=True)
    with _open(browser, server, "#/sessions/held-wide", token(server), 360) as shown:
        shown.see('hold(name="phone")')
        shown.page.click("[data-cancel]")
        shown.page.click("dialog .danger")
        shown.see("tool hold has not returned", "! work goes on")
        check_layout(shown)
        shown.go("#/sessions?name=" + '{"name": "phone')
        shown.see("■ stopped", "! work goes on")
        check_layout(shown, minimum=110)
        (server.deployment.folder / "phone").touch()


def test_run_list_on_a_phone_names_the_agent(
    server: ThreadedServer, browser: Browser, crowded: str
) -> None:
    with _open(browser, server, "#/runs?all=1&user=wide", crowded, 390) as shown:
        row = shown.page.locator("tbody tr[data-run]").first
        expect(row).to_contain_text("Echo")
        assert "Echo" in row.inner_text()


def test_targets_on_a_phone_are_large(
    server: ThreadedServer, browser: Browser, crowded: str
) -> None:
    start(server, "teams/choir", "targets", "sing")
    start(server, "agents/hang", "targets-live", "wait", background=True)
    with _open(browser, server, "", None, 390) as shown:
        assert shown.evaluate(SMALL_TARGETS) == []
        shown.sign_in(crowded)
        for place, text in {
            "#/overview": "Failures by cause",
            "#/sessions": "What does",
            "#/sessions/targets": "MODEL_UNAVAILABLE",
            "#/runs": "running",
            "#/agents": "Workflows",
            "#/agents/agents/tool-add": "add(a, b)",
            "#/audit": "create_agent_run",
            "#/access": "Identity",
        }.items():
            shown.go(place)
            shown.see(text)
            assert shown.evaluate(SMALL_TARGETS) == [], place


def test_filters_of_a_laptop_are_one_line(
    server: ThreadedServer, browser: Browser, crowded: str
) -> None:
    with _open(browser, server, "#/overview", crowded, 1280) as shown:
        for place in ("#/overview", "#/sessions", "#/runs?all=1", "#/audit"):
            shown.go(place)
            shown.page.wait_for_selector("tbody tr", state="attached")
            tops = shown.evaluate(
                "[...document.querySelectorAll('.filters > :not(.narrow)')].map(each => {"
                " const box = each.getBoundingClientRect(); return box.top + box.height / 2 })"
            )
            assert max(tops) - min(tops) < 4, place


def test_request_ids_of_the_audit_log_are_whole(
    server: ThreadedServer, browser: Browser, crowded: str
) -> None:
    with _open(browser, server, "#/audit", crowded, 1280) as shown:
        shown.page.wait_for_selector("tbody button")
        right = "each => each.getBoundingClientRect().right"
        for button in shown.page.locator("tbody button").all()[:5]:
            cell = button.locator("xpath=ancestor::td")
            assert button.evaluate(right) <= cell.evaluate(right)


def _open(browser: Browser, server: ThreadedServer, place: str, key: str | None, width: int) -> Any:
    size = {"width": width, "height": 800}
    return open_console(browser, server.url, place, token=key, viewport=size)


def check_layout(shown: ConsolePage, minimum: int = 0) -> None:
    """Check that no element is cut, empty or out of its box, once the page has settled.

    Args:
        minimum: pixels of the names in a list.
    """
    deadline = time.monotonic() + PATIENCE
    while faults := shown.evaluate(FAULTS, minimum):
        assert time.monotonic() < deadline, "\n".join(faults)
        shown.page.wait_for_timeout(100)
