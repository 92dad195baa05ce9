"""Lists of the console show what one looks for, at the width of a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import READS, RUNS, start, token
from tests.console.test_vendor import FIRST_FILES
from tests.console.test_widths import SMALL_TARGETS, check_layout
from tests.kit.browser import check_accessibility, expect, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

SELLER = "seller-of-the-department-for-gardens"
USER = "ada.lovelace@department.example"
FAILURES = 45

SHOWN = {
    "sessions": ["tbody tr"],
    "overview": ["[data-groups] tbody tr"],
    "transcript": [".markdown strong", "button.attach"],
}
"""Elements of the first pages that show that all their modules are loaded."""

MAXIMUM_NODES = 475
"""Elements of a page with a long list."""

CUT = """() => [...document.querySelectorAll(".table td, .table td *")].filter(each =>
    each.checkVisibility() && each.getClientRects().length
    && !each.closest(".found, .two[title], .pair[title]")
    && (each.scrollWidth > each.clientWidth + 1 || each.scrollHeight > each.clientHeight + 2)
    && getComputedStyle(each).overflow === "hidden").map(each => each.outerHTML.slice(0, 200))"""
"""Cells whose text is neither whole nor in a title."""

FOUND = """() => [...document.querySelectorAll("tbody mark")].every(each => {
    const [mark, cell] = [each, each.closest("td")].map(box => box.getBoundingClientRect());
    return mark.right <= cell.right && mark.top >= cell.top && mark.bottom <= cell.bottom;
})"""
"""True if each found word is in view in its cell."""


@pytest.fixture(scope="module")
def failed(server: ThreadedServer) -> str:
    """Fail many runs of one agent and user; return the token of an administrator."""
    headers = server.bearer(USER, *READS, *RUNS)
    for number in range(FAILURES):
        body = {"message": f"{number}", "session_id": f"sold-{number}", "stream": False}
        place = f"/agents/{SELLER}/runs"
        assert server.client.post(place, json=body, headers=headers).is_success
    return server.deployment.token("boss", ADMIN)


def test_failures_show_their_exception_at_1280(
    server: ThreadedServer, browser: Browser, failed: str
) -> None:
    place = f"#/runs?all=1&component={SELLER}"
    with open_console(browser, server.url, place, token=failed) as shown:
        row = shown.page.locator("tbody tr[data-run]", has_text="order 44")
        expect(row).to_contain_text("ValueError: the shop answered 500 to the order 44")
        shown.see(f"{FAILURES} runs")
        assert shown.evaluate(CUT) == []
        shown.go(f"#/agents/agents/{SELLER}")
        shown.see("ValueError: the shop answered 500 to the order 44")
        heads = shown.page.locator("thead th")
        assert "Component" not in heads.all_inner_texts()
        assert shown.evaluate(CUT) == []
        check_accessibility(shown)


def test_failures_are_grouped_by_exception(
    server: ThreadedServer, browser: Browser, failed: str
) -> None:
    headers = server.bearer(USER, *READS, *RUNS)
    body = {"message": "refused", "session_id": "sold-refused", "stream": False}
    assert server.client.post("/agents/http-500/runs", json=body, headers=headers).is_success
    with open_console(browser, server.url, f"#/runs?user={USER}", token=failed) as shown:
        shown.page.click("button:text-is('Failures')")
        groups = shown.page.locator("[data-group]")
        expect(groups).to_have_count(2)
        shown.see(f"2 groups of {FAILURES + 1} failures")
        expect(groups.first).to_contain_text("ValueError: the shop answered 500 to the order 44")
        count = groups.first.locator("button")
        expect(count).to_have_text(str(FAILURES))
        assert groups.first.locator("svg path").first.get_attribute("d")
        expect(groups.last).to_contain_text("MODEL_UNAVAILABLE")
        count.click()
        expect(shown.page.locator("tbody tr[data-run]", has_text="order 43")).to_have_count(1)
        assert "group=1" in shown.evaluate("location.hash")
        check_layout(shown)
        check_accessibility(shown)
        shown.page.set_viewport_size({"width": 390, "height": 800})
        check_layout(shown)
        assert shown.evaluate(SMALL_TARGETS) == []


def test_times_to_the_first_token_name_their_runs(
    server: ThreadedServer, browser: Browser, failed: str
) -> None:
    place = f"#/overview?component={SELLER}"
    with open_console(browser, server.url, place, token=failed) as shown:
        first_token = shown.page.locator("[data-figure='Time to first token'] .legend")
        expect(first_token).to_contain_text(f"measured in 0 of {FAILURES} runs")
        duration = shown.page.locator("[data-figure=Duration] .legend")
        expect(duration).not_to_contain_text("runs")


def test_causes_need_their_scope(server: ThreadedServer, browser: Browser, failed: str) -> None:
    reader = server.deployment.token(USER, *READS)
    place = f"#/runs?all=1&component={SELLER}"
    with open_console(browser, server.url, place, token=reader) as shown:
        shown.see("AGENT_FAILED: The code of the agent failed")
        assert not any("/failures?" in url for url in shown.requests)


def test_long_list_is_drawn_in_part(server: ThreadedServer, browser: Browser) -> None:
    headers = server.bearer("many", *READS, "sessions:write")
    for number in range(130):
        made = {"session_id": f"many-{number}", "agent_id": "echo"}
        assert server.client.post("/sessions", json=made, headers=headers).status_code == 201
    many = headers["Authorization"].partition(" ")[2]
    with open_console(browser, server.url, "#/sessions", token=many, fresh=True) as shown:
        table = shown.page.locator("table")
        expect(table).to_have_attribute("aria-rowcount", "101")
        shown.evaluate("document.getElementById('main').scrollTo(0, 1e6)")
        expect(table).to_have_attribute("aria-rowcount", "131")
        assert shown.page.locator("tbody tr").count() < 40
        assert shown.evaluate("document.querySelectorAll('*').length") < MAXIMUM_NODES
        shown.evaluate("document.getElementById('main').scrollTo(0, 1e6)")
        expect(shown.page.locator("tr[aria-rowindex='131']")).to_have_count(1)


@pytest.mark.parametrize(("modules", "count"), [row[:2] for row in FIRST_FILES])
def test_page_loads_the_files_of_its_budget(
    server: ThreadedServer, browser: Browser, modules: Sequence[str], count: int
) -> None:
    start(server, "agents/echo", "small", "a **bold** answer")
    page = modules[0].removeprefix("pages/").removesuffix(".js")
    place = {"transcript": "#/sessions/small"}.get(page, f"#/{page}")
    key = token(server, *READS, *RUNS, "sessions:write", "usage:read")
    with open_console(browser, server.url, place, token=key, fresh=True) as shown:
        for part in SHOWN[page]:
            shown.page.locator(part).first.wait_for(state="attached")
        urls = [url for url in shown.requests if "/console" in url]
        assert len(urls) == len(set(urls))
        names = [urlsplit(url).path.split("/", 4)[4:] for url in urls]
        files = {name[0] if name else "index.html" for name in names}
        assert set(modules) <= files
        assert len(files) <= count, files


@pytest.mark.parametrize("width", [360, 1280])
def test_found_word_is_in_view(server: ThreadedServer, browser: Browser, width: int) -> None:
    long = "The beginning of a message that says nothing about what one looks for, and then a "
    start(server, "agents/echo", "searched", f"{long}marzipan {long}")
    size = {"width": width, "height": 800}
    place = "#/sessions?search=marzipan"
    with open_console(
        browser,
        server.url,
        place,
        token=token(server),
        viewport=size,  # type: ignore[arg-type]
    ) as shown:
        expect(shown.page.locator("tbody mark").first).to_have_text("marzipan")
        check_layout(shown)
        assert shown.evaluate(FOUND)
