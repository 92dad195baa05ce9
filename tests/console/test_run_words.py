"""The page Runs and `agentctl runs list` show the same runs in the same words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page

from tests.cli.conftest import environment, home
from tests.console.deployed import READS, RUNS
from tests.kit.browser import expect, needs_browser, open_console
from tests.kit.person import sit_at
from tests.kit.threaded_server import ThreadedServer

__all__ = ["environment", "home"]

pytestmark = needs_browser

STATES = {"echo": "✓ completed", "http-500": "✗ failed", "hang": "■ stopped", "half": "● running"}
"""Agents of the shared server, and the state of a run of each."""


MESSAGE = "three little words"


def start_runs(server: ThreadedServer, headers: dict[str, str]) -> list[dict[str, str]]:
    """Start a run of each agent, one more of `echo`, and stop the one of `hang`."""
    runs = list[dict[str, str]]()
    for agent in ("echo", *STATES):
        body = {"message": MESSAGE, "session_id": f"same-{len(runs)}", "stream": False}
        body |= {"background": agent in ("hang", "half")}
        started = server.client.post(f"/agents/{agent}/runs", json=body, headers=headers)
        runs.append(started.json())
    cancel(server, headers, runs[3])
    return runs


def cancel(server: ThreadedServer, headers: dict[str, str], run: dict[str, str]) -> None:
    path = f"/agents/{run['agent_id']}/runs/{run['run_id']}/cancel"
    query = {"session_id": run["session_id"], "wait": 20}
    assert server.client.post(path, params=query, headers=headers).is_success


class Row(NamedTuple):
    """A run on the page, with the texts of its cells."""

    state: str
    cells: list[str]


def read_rows(page: Page, count: int) -> dict[str, Row]:
    """Wait for a number of rows, and return them by run."""
    rows = page.locator("[data-run]")
    expect(rows).to_have_count(count)
    return {
        str(row.get_attribute("data-run")): Row(
            row.locator(".status").inner_text(), row.locator("td").all_inner_texts()
        )
        for row in rows.all()
    }


def check_words(run: dict[str, str], row: Row, words: list[str]) -> None:
    """Compare a row of the page with the words of a line of the list."""
    assert row.state == STATES[run["agent_id"]]
    assert row.state in words
    # The tokens and the session are cells of their own, the user is below the component.
    text = "\n".join(row.cells)
    for part in ("watched", run["session_id"], MESSAGE):
        assert part in text
    assert {"watched", run["session_id"]} <= set(words)
    assert set(words) & {cell for cell in row.cells if cell.isdigit()}


def test_page_of_runs_has_the_words_of_runs_list(
    server: ThreadedServer, browser: Browser, environment: dict[str, str], home: Path
) -> None:
    headers = server.bearer("watched", *READS, *RUNS)
    key = headers["Authorization"].partition(" ")[2]
    runs = start_runs(server, headers)
    with open_console(browser, server.url, "#/runs", token=key) as shown:
        expect(shown.page.get_by_text("1 running")).to_be_visible()
        shown.page.click("button:text-is('Show')")
        rows = read_rows(shown.page, len(runs))
        ended = " ".join(shown.page.locator("[data-ended]").inner_text().split())
    # A process: the browser keeps an event loop in the main thread of this one.
    variables = environment | {"AGENTCTL_TOKEN": key, "TERM": "xterm", "COLUMNS": "160"}
    with sit_at("runs", "list", "--url", server.url, env=variables, folder=home) as person:
        listed = person.read_rest()
        assert person.process.returncode == 0
    cancel(server, headers, runs[4])

    assert ended == "Last 5 minutes: 2 completed, 1 failed, 1 stopped"
    lines = [re.split(r"\s{2,}", line) for line in listed.splitlines()]
    words_of_list = {words[0]: words for words in lines}
    for run in runs:
        check_words(run, rows[run["run_id"]], words_of_list[run["run_id"][:13]])
