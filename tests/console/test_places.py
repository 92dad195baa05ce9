"""Places of the console: unknown ones, the focus between pages, links to one run, counts."""

from __future__ import annotations

from playwright.sync_api import Browser

from tests.console.deployed import READS, RUNS, start, token, wait_for_status
from tests.kit.browser import ConsolePage, expect, needs_browser, open_console
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

FAILED = 20
COMPLETED = 120


def test_unknown_places_lead_to_the_first_page(server: ThreadedServer, browser: Browser) -> None:
    key = token(server, *READS, "usage:read")
    with open_console(browser, server.url, "#/__proto__/x", token=key) as shown:
        for place in ("#/__proto__/x", "#/constructor", "#/signin", "#/toString/x/y", "#/%E0"):
            shown.go("#/access")
            shown.see("Identity")
            shown.go(place)
            expect(shown.page.locator("h1")).to_have_text("Overview")


def test_place_without_a_kind_names_the_component(server: ThreadedServer, browser: Browser) -> None:
    with open_console(browser, server.url, "#/agents/echo", token=token(server)) as shown:
        shown.page.click("text=The agent echo")
        shown.see("Answers as echo")
        shown.go("#/agents/nothing")
        shown.see("No component that you can see has the id nothing.")


def test_focus_returns_to_the_row(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "focused", "Where the focus returns")
    with open_console(browser, server.url, "#/sessions", token=token(server)) as shown:
        row = shown.page.locator("[data-row]", has_text="Where the focus returns")
        row.click()
        expect(shown.page.locator("h1")).to_be_focused()
        shown.page.keyboard.press("Escape")
        expect(row).to_be_focused()
        shown.go("#/access")
        expect(shown.page.locator("h1")).to_be_focused()


def test_a_queued_run_shows_its_place_and_is_cancelled(
    server: ThreadedServer, browser: Browser
) -> None:
    first, _, third = [
        start(server, f"agents/{agent}", "in-line", "hello", background=True).json()["run_id"]
        for agent in ("hang", "lined", "lined")
    ]
    with open_console(browser, server.url, "#/sessions/in-line", token=token(server)) as shown:
        shown.see("2 queued", *(f"place {place} in the queue of its session" for place in "12"))
        article = shown.page.locator("article").nth(1)
        article.locator("[data-cancel]").click()
        shown.page.click("dialog .danger")
        expect(article).to_contain_text("■ stopped")
        path = f"/agents/hang/runs/{first}/cancel"
        query = {"session_id": "in-line"}
        server.client.post(path, params=query, headers=server.bearer("me", *RUNS))
        shown.see("✓ completed")
    wait_for_status(server, f"/runs/{third}", "COMPLETED")


def test_counts_of_ended_runs_are_the_counts(server: ThreadedServer, browser: Browser) -> None:
    headers = server.bearer("counted", *READS, *RUNS)
    agents = ["http-500"] * FAILED + ["echo"] * COMPLETED
    for number, agent in enumerate(agents):
        body = {"message": f"run {number}", "session_id": f"counted-{number}", "stream": False}
        assert server.client.post(f"/agents/{agent}/runs", json=body, headers=headers).is_success
    counted = headers["Authorization"].partition(" ")[2]
    with open_console(browser, server.url, "#/runs", token=counted) as shown:
        ended = shown.page.locator("[data-ended]")
        expect(ended).to_contain_text(f"{COMPLETED} completed, {FAILED} failed, 0 stopped")
        shown.page.click("button:text-is('Show')")
        shown.see(f"the newest 100 of {FAILED + COMPLETED}")
        shown.go("#/agents/agents/http-500")
        shown.see(f"{FAILED} runs")


def test_live_counts_name_their_part(server: ThreadedServer, browser: Browser) -> None:
    pages = []

    def answer(route):  # type: ignore[no-untyped-def]
        """Return the first page of a list of 230 live runs."""
        response = route.fetch()
        page = response.json()
        pages.append(page)
        page["meta"] |= {"total_count": 230, "next_cursor": "more"}
        route.fulfill(response=response, json=page)

    start(server, "agents/hang", "part", "wait", background=True)
    with open_console(browser, server.url, "", token=token(server)) as shown:
        shown.page.route("**/runs?live=true&session_id=part*limit=100", answer)
        shown.go("#/runs?session=part")
        shown.see("230 live, of the newest 1: 1 running")
        assert pages


def load_earlier_runs(shown: ConsolePage) -> None:
    """Press "Earlier runs" where it is.

    A click of the browser scrolls to the button first. The page then loads the runs by itself, and
    the button is gone before it can be pressed.
    """
    shown.evaluate(
        "[...document.querySelectorAll('.more button')]"
        ".find(button => button.textContent.includes('Earlier runs'))?.click()"
    )


def test_session_numbers_its_runs_from_its_count(server: ThreadedServer, browser: Browser) -> None:
    for number in range(40):
        start(server, "agents/echo", "numbered", f"message {number}")
    place = "#/sessions/numbered"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        expect(shown.page.locator("[data-counts]")).to_have_text("40 runs")
        entries = shown.page.locator(".index li a > span:first-child")
        expect(entries).to_have_text([str(at) for at in range(31, 41)])
        load_earlier_runs(shown)
        expect(entries).to_have_text([str(at) for at in range(1, 41)])


def test_link_to_an_old_run_opens_it(server: ThreadedServer, browser: Browser) -> None:
    runs = [start(server, "agents/echo", "linked", f"message {at};").json() for at in range(40)]
    wanted = runs[7]["run_id"]
    place = f"#/sessions/linked?run={wanted}"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        turn = shown.page.locator(f"#run-{wanted}")
        expect(turn).to_be_in_viewport()
        expect(shown.page.locator("[data-counts]")).to_have_text("40 runs")
        shown.page.click("text=Later runs")
        shown.see("message 39;")
        expect(shown.page.locator("text=Later runs")).to_have_count(0)
        load_earlier_runs(shown)
        shown.see("message 0;")


def test_list_of_sessions_shows_work_that_goes_on(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/hold", "going-on", '{"name": "going on"}', background=True)
    with open_console(browser, server.url, "#/sessions/going-on", token=token(server)) as shown:
        shown.see('hold(name="going on")')
        shown.page.click("[data-cancel]")
        shown.page.click("dialog .danger")
        shown.see("tool hold has not returned")
        shown.go("#/sessions")
        row = shown.page.locator("tbody tr", has_text="going on")
        expect(row).to_contain_text("■ stopped ! work goes on")
        (server.deployment.folder / "going on").touch()
        expect(row).not_to_contain_text("work goes on")
