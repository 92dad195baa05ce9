"""The overview of the console: numbers of the API, pictures with tables, and ways to the runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Route

from agentctl.records.times import now
from tests.console.deployed import READS, RUNS, start
from tests.console.sums import HOUR, open_sums
from tests.console.test_widths import check_layout
from tests.kit.browser import (
    ConsolePage,
    check_accessibility,
    check_view,
    expect,
    needs_browser,
    open_console,
)
from tests.kit.command import stay_in_hour
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

SEER = (*READS, *RUNS, "usage:read")

NONE = "\N{EN DASH}"
"""A value that does not exist, in a table."""

HOURS_AGO = {"priced": 0, "http-500": 1, "tool-add": 3, "crew": 5, "echo": 5}
"""The components whose runs are counted, and when their runs ended."""

COUNT = 7
"""The runs without that of the member `echo`."""

SHOWN = 12
"""The hours of a picture whose period nobody has chosen: no run is older."""

PICTURES = ("Runs", "Time to first token", "Duration", "Tokens", "Cost")

COLUMNS: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "Runs": lambda row: [
        *(row[name] for name in ("completed", "failed", "cancelled", "runs")),
        row["member_runs"],
    ],
    "Tokens": lambda row: [
        *(row[name] for name in ("input_tokens", "output_tokens", "total_tokens")),
        *(row[name] for name in ("cache_read_tokens", "model_calls")),
    ],
    "Cost": lambda row: [_show_cost(row["cost"]), row["unpriced_tokens"]],
    "Time to first token": lambda row: _show_times(row["first_token"]),
    "Duration": lambda row: _show_times(row["duration"]),
}
"""The tables behind the pictures, and the values of their rows in a record of the API."""

SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
    for (const each of list.getEntries()) {
        const moved = each.sources.map(({node}) => node?.parentElement?.closest("main, header"));
        if (!each.hadRecentInput && moved.some(box => box?.matches("main"))) {
            shifts.push(each.sources.map(({node}) => (node.outerHTML ?? node.data).slice(0, 100)));
        }
    }
}).observe({type: "layout-shift", buffered: true});
"""


@pytest.fixture(scope="module")
def seer(server: ThreadedServer) -> Iterator[str]:
    """Create runs that ended in four different hours; return the token of their user.

    The hours are counted from the current one of the server, so it lasts as long as the tests.
    """
    with stay_in_hour():
        yield _create_runs(server)


def _create_runs(server: ThreadedServer) -> str:
    headers = server.bearer("seer", *SEER)
    for place, message in (
        *[("agents/priced", f"question {number}") for number in range(3)],
        *[("agents/http-500", "fail")] * 2,
        ("agents/tool-add", '{"a": 1, "b": 2}'),
        ("teams/crew", "Look up the price"),
    ):
        body = {"message": message, "session_id": place.replace("/", "-"), "stream": False}
        assert server.client.post(f"/{place}/runs", json=body, headers=headers).is_success
    _move_into_the_past(server, "seer")
    return server.deployment.token("seer", *SEER)


def test_first_page_is_the_overview_with_the_numbers_of_the_api(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    with open_console(browser, server.url) as shown:
        with shown.page.expect_response("**/usage/overview*") as answered:
            shown.sign_in(seer)
        expect(shown.page.locator("h1")).to_have_text("Overview")
        expect(shown.page.locator("nav a").first).to_have_attribute("aria-current", "page")
        overview = answered.value.json()
        total = overview["total"]
        again = server.client.get("/usage/overview", headers=_bearer(seer)).json()
        assert again["total"] == total
        assert (total["runs"], total["failed"], total["member_runs"]) == (COUNT, 2, 1)
        assert total["cost"] > 0
        assert total["unpriced_tokens"] > 0
        expect(_tile(shown, "Runs")).to_contain_text(str(COUNT))
        expect(_tile(shown, "Failed")).to_have_text("2 28.6% of the runs")
        expect(_tile(shown, "Tokens")).to_contain_text(f"{total['total_tokens']:,}")
        expect(_tile(shown, "Cost")).to_contain_text("≥ $")
        check_view(shown)
        points = overview["points"][-SHOWN:]
        for title, find_values in COLUMNS.items():
            rows = _read_table(shown, title)
            assert list(rows) == [*(point["at"][:16].replace("T", " ") for point in points), "all"]
            for name, record in zip(rows, [*points, total], strict=True):
                expected = [_show(value) for value in find_values(record)]
                assert rows[name] == expected, (title, name)
        assert len(overview["data"]) == len(HOURS_AGO)
        for row, group in enumerate(overview["data"]):
            cells = shown.page.locator("[data-groups] tbody tr").nth(row).locator("td.right")
            expect(cells.first).to_have_text(str(group["runs"]))


def test_key_leads_to_the_runs_behind_a_bar(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    with open_console(browser, server.url, "#/overview", token=seer) as shown:
        points = _wait_for_points(server, seer, shown)
        plot = shown.page.get_by_role("slider", name="Runs: hours")
        plot.focus()
        shown.page.keyboard.press("End")
        for _ in range(HOURS_AGO["http-500"]):
            shown.page.keyboard.press("ArrowLeft")
        expect(plot).to_have_attribute("aria-valuetext", re.compile("2 runs, 2 failed"))
        shown.page.keyboard.press("Enter")
        _expect_runs(shown, 2, {"since": [points[-2]["at"]]})


def _brush_by_keys(shown: ConsolePage, runs: str) -> None:
    """Select all hours but the last one, until their runs are shown."""
    plot = shown.page.get_by_role("slider", name="Runs: hours")
    # Newer numbers draw the picture again, and the selection is gone.
    for timeout in (5_000, 10_000, 30_000):
        plot.focus()
        for key in ("Home", "Shift+End", "Shift+ArrowLeft"):
            shown.page.keyboard.press(key)
        with contextlib.suppress(AssertionError):
            expect(shown.page.locator("[data-brushed]")).to_contain_text(runs, timeout=timeout)
            return
    raise AssertionError(f"the selection does not {runs!r}")


def _drag_across_last_hours(shown: ConsolePage, title: str, hours: int, shown_hours: int) -> None:
    """Select hours with the mouse: from the middle of one to the end of the picture."""
    plot = shown.page.get_by_role("slider", name=title)
    plot.evaluate("each => each.scrollIntoView({block: 'center'})")
    box = plot.bounding_box()
    assert box is not None
    slot = (box["width"] - 68) / shown_hours
    middle = box["y"] + 60
    left = box["x"] + 64 + (shown_hours - hours + 0.5) * slot
    shown.page.mouse.move(left, middle)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + box["width"] - 10, middle, steps=4)
    shown.page.mouse.up()


def test_brush_leads_to_the_runs_of_a_span(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    with open_console(browser, server.url, "#/overview", token=seer) as shown:
        points = _wait_for_points(server, seer, shown)
        brushed = shown.page.locator("[data-brushed]")
        _brush_by_keys(shown, "Show 4 runs")
        expect(brushed).to_have_css("position", "sticky")
        shown.page.keyboard.press("Escape")
        expect(brushed).to_contain_text("Drag across a chart")
        expect(brushed).to_have_css("position", "static")

        _drag_across_last_hours(shown, "Cost: hours", 3, len(points))
        expect(brushed).to_contain_text("Show 5 runs")
        expect(shown.page.locator(".causes tbody a")).to_have_text("2")
        brushed.locator("text=Show failed ones").click()
        _expect_runs(shown, 2, {"status": ["ERROR"], "before": [_end_of(points[-1])]})
        shown.page.click("text=Remove all")
        expect(shown.page.locator("[data-given]")).to_have_count(0)


def test_numbers_lead_to_lists_with_the_same_count(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    key = server.deployment.token("seer", *SEER, "runs:debug")
    with open_console(browser, server.url, "#/overview", token=key) as shown:
        _wait_for_points(server, key, shown)
        # With `runs:debug` a cause has the words of its failures.
        causes = shown.page.locator(".causes tbody")
        expect(causes).to_contain_text("The model is not available now")
        for number, link in (
            (COUNT, _tile(shown, "Runs").locator("a")),
            (2, shown.page.locator(".causes tbody a")),
            (3, _group(shown, "Priced").locator("td a").first),
        ):
            expect(link).to_have_text(str(number))
            link.click()
            _expect_runs(shown, number, {"parent": ["none"]})
            shown.page.go_back()
        expect(_tile(shown, "Runs")).to_contain_text(str(COUNT))
        _open_table(shown, "Runs").locator("tfoot a").first.click()
        _expect_runs(shown, 5, {"status": ["COMPLETED"]})
        shown.page.go_back()
        shown.page.select_option("label:has-text('Group by') select", "model")
        _group(shown, "priced").locator("th a").click()
        expect(_tile(shown, "Runs")).to_contain_text("3")
        _tile(shown, "Runs").locator("a").click()
        _expect_runs(shown, 3, {"model": ["priced"]})


def test_pictures_differ_without_color_and_nothing_moves(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    with open_console(browser, server.url, "#/overview", token=seer, fresh=True) as shown:
        _wait_for_points(server, seer, shown)
        for title in PICTURES:
            looks = shown.evaluate(
                """title => [...document.querySelectorAll(`[data-figure="${title}"] [data-series]`)]
                .map(each => each.matches("g") ? each.firstChild.getAttribute("stroke-dasharray")
                    + "/" + each.lastChild.getAttribute("d").replace(/[^a-zA-Z]/g, "").slice(0, 4)
                    : each.getAttribute("fill").replace(/var.*/, "solid"))""",
                title,
            )
            assert looks
            assert len(set(looks)) == len(looks), (title, looks)
        # After a reload no input of a person explains a movement.
        shown.page.add_init_script(SHIFTS)
        # Until the sums are there, the page shows the period of its own clock: the server's here
        # may be in the next hour (`stay_in_hour`), whose period has another width before midnight.
        shown.page.clock.set_fixed_time(now() / 1_000_000)
        for width in (1280, 360):
            shown.page.set_viewport_size({"width": width, "height": 800})
            shown.page.reload()
            expect(_tile(shown, "Runs")).to_contain_text(str(COUNT))
            expect(shown.page.locator("[data-groups]")).to_be_attached()
            assert shown.evaluate("shifts") == [], width


def test_overview_holds_at_any_width_and_in_both_schemes(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    size: Any = {"width": 1280, "height": 900}
    with open_console(browser, server.url, "#/overview", token=seer, viewport=size) as shown:
        _wait_for_points(server, seer, shown)
        shown.page.get_by_role("slider", name="Runs: hours").press("End")
        for title in PICTURES:
            _open_table(shown, title)
        check_accessibility(shown)
        for width in (360, 640, 1280):
            shown.page.set_viewport_size({"width": width, "height": 800})
            check_layout(shown)


def test_labels_of_the_axes_are_whole(server: ThreadedServer, browser: Browser, seer: str) -> None:
    def serve_extremes(route: Route) -> None:
        headers = route.request.headers
        headers.pop("if-none-match", None)
        answer = route.fetch(headers=headers)
        body = answer.json()
        for number, point in enumerate(body["points"]):
            duration = 0.002 if number % 2 else 86_400
            point["duration"] = dict.fromkeys(point["duration"], duration) | {"count": 1}
            point |= {"cost": 0.000_021, "total_tokens": 123_456_789}
        route.fulfill(response=answer, json=body)

    with open_console(browser, server.url, "#/sessions", token=seer) as shown:
        shown.page.route("**/usage/overview?*", serve_extremes)
        shown.go("#/overview")
        shown.see("100,000 s", "1 ms")
        cut = shown.evaluate(
            """() => [...document.querySelectorAll(".plot text")]
            .filter(each => each.getBBox().x < 0).map(each => each.textContent)"""
        )
        assert cut == []


def test_period_and_place_are_part_of_the_link(
    server: ThreadedServer, browser: Browser, seer: str
) -> None:
    place = "#/overview?period=90d&component=http-500"
    # Fresh, because a page keeps the clock that it gets here: in a later test, a token of some
    # seconds would have expired before it is used.
    with open_console(browser, server.url, place, token=seer, fresh=True) as shown:
        expect(_tile(shown, "Runs")).to_contain_text("2")
        slider = shown.page.get_by_role("slider", name="Runs: days")
        expect(slider).to_have_attribute("aria-valuemax", "89")
        # The page counts the days from its own clock.
        shown.page.clock.set_system_time(now() / 1_000_000)
        shown.page.click("button:text-is('7 d')")
        slider = shown.page.get_by_role("slider", name="Runs: hours")
        expect(slider).to_have_attribute("aria-valuemax", "167")
        expect(_tile(shown, "Runs")).to_contain_text("2")


def test_users_see_their_own_numbers(server: ThreadedServer, browser: Browser, seer: str) -> None:
    other = server.deployment.token("nobody-else", *SEER)
    with open_console(browser, server.url, "#/overview", token=other) as shown:
        shown.see("No runs ended in this period", "Start a run")
        expect(_tile(shown, "Runs")).to_contain_text("0")
        shown.go("#/overview?user=seer")
        shown.see("No runs match these filters in this period", "Clear filters")
    boss = server.deployment.token("boss", ADMIN)
    with open_console(browser, server.url, "#/overview?user=seer", token=boss) as shown:
        expect(_tile(shown, "Runs")).to_contain_text(str(COUNT))
        # With `runs:debug` a cause has the words of its failures.
        causes = shown.page.locator(".causes tbody")
        expect(causes).to_contain_text("The model is not available now")
        shown.page.select_option("label:has-text('Group by') select", "user")
        expect(_group(shown, "seer").locator("td a").first).to_have_text(str(COUNT))


def test_count_of_waiting_calls_links_to_a_list_that_the_caller_may_read(
    server: ThreadedServer, browser: Browser
) -> None:
    run = start(server, "agents/refunds", "waits-for-a-person", '{"order": "7", "amount": 1}')
    for scopes, links in ((SEER, 0), ((*SEER, "approvals:read"), 1)):
        key = server.deployment.token("me", *scopes)
        with open_console(browser, server.url, "#/overview", token=key) as shown:
            tile = _tile(shown, "Waiting for approval")
            expect(tile).to_contain_text(re.compile(r"[1-9]\d* oldest"))
            expect(tile.locator("a")).to_have_count(links)
    cancel = f"/agents/refunds/runs/{run.json()['run_id']}/cancel?session_id=waits-for-a-person"
    answer = server.client.post(cancel, headers=server.bearer("me", *READS, *RUNS))
    assert answer.is_success, answer.text


def _tile(shown: ConsolePage, name: str) -> Locator:
    return shown.page.locator(f"[data-tile='{name}'] dd")


def _group(shown: ConsolePage, name: str) -> Locator:
    link = shown.page.locator(f"th a:text-is('{name}')")
    return shown.page.locator("[data-groups] tbody tr", has=link)


def _open_table(shown: ConsolePage, title: str) -> Locator:
    figure = shown.page.locator(f"[data-figure='{title}']")
    figure.locator("summary").click()
    return figure.get_by_role("region", name=f"Table: {title}").locator("table")


def _read_table(shown: ConsolePage, title: str) -> dict[str, list[str]]:
    """Return the texts of the cells by the headings of their rows."""
    table = _open_table(shown, title)
    expect(table.locator("tfoot")).to_be_attached()
    rows = table.evaluate(
        "table => [...table.querySelectorAll('tbody tr, tfoot tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )
    return {name: cells for name, *cells in rows}


def _wait_for_points(server: ThreadedServer, key: str, shown: ConsolePage) -> list[dict[str, Any]]:
    """Wait until the page has its numbers; return those of each hour."""
    expect(_tile(shown, "Runs")).to_contain_text(str(COUNT))
    answer = server.client.get("/usage/overview", headers=_bearer(key)).json()
    return list[dict[str, Any]](answer["points"][-SHOWN:])


def _expect_runs(shown: ConsolePage, count: int, filters: dict[str, list[str]]) -> None:
    """Wait for the list of runs with a total; check filters of its place."""
    expect(shown.page.locator("h1")).to_have_text("Runs")
    expect(shown.page.locator(".head .aside")).to_have_text(f"{count} runs")
    expect(shown.page.locator("tbody tr[data-run]")).to_have_count(count)
    found = parse_qs(urlsplit(shown.evaluate("location.hash.slice(1)")).query)
    assert found.items() >= filters.items(), found


def _end_of(point: dict[str, Any]) -> str:
    end = datetime.fromisoformat(point["at"]) + timedelta(hours=1)
    return end.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _show(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _show_cost(cost: float | None) -> str:
    """Return dollars as the console writes them: at least two digits, at most six."""
    if cost is None:
        return NONE
    whole, _, digits = f"{cost:,.6f}".partition(".")
    return f"${whole}.{digits.rstrip('0').ljust(2, '0')}"


def _show_times(times: dict[str, Any]) -> list[object]:
    """Return percentiles as the console writes them, and their number."""
    percentiles = [_show_seconds(times[name]) for name in ("p50", "p95", "p99")]
    return [*percentiles, times["count"]]


def _show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    return f"{_round(seconds * 1000)} ms" if seconds < 1 else f"{seconds:.1f} s"


def _round(value: float) -> int:
    return int(value + 0.5)


def _move_into_the_past(server: ThreadedServer, user: str) -> None:
    """Move the runs of a user and their sums by the hours of their agents, once all are counted."""
    with open_sums(server) as store:
        for agent, hours in HOURS_AGO.items():
            store.execute(
                "UPDATE usage_hourly SET start = start - ?"
                " WHERE everyone = 0 AND user_id = ? AND component_id = ?",
                (hours * HOUR, user, agent),
            )
            store.execute(
                "UPDATE runs SET created_at = created_at - ?1, started_at = started_at - ?1,"
                " finished_at = finished_at - ?1, stopped_at = stopped_at - ?1"
                " WHERE user_id = ?2 AND component_id = ?3",
                (hours * HOUR, user, agent),
            )
