"""Measure the budgets of the console and write them into docs/console.md.

    python -m tests.console.measure [SESSIONS RUNS]     by default 10000 and 1000

A server in this process with many sessions and one session with many runs, and Chromium without a
display. The figures depend on the machine; a busy one makes them larger.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentctl.server import create_app
from tests.console.browser import ConsolePage, open_browser, open_console
from tests.console.deployed import READS, RUNS
from tests.console.vendor import ROOT
from tests.deployment import create_deployment
from tests.endpoint import start_endpoint
from tests.server.threaded_server import ThreadedServer, serve_in_thread

_PAGE = ROOT / "docs" / "console.md"
_TABLE = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)
_ECHO = """
[[models]]
id = "repeat"
provider = "demo"
model = "echo"

[[agents]]
id = "repeat"
model = "repeat"
"""

_LONGEST_FRAME = """async () => {
    const scroller = document.getElementById("main");
    let longest = 0, before = performance.now();
    for (let step = 0; step < 60; step++) {
        scroller.scrollBy(0, scroller.scrollHeight / 60);
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        longest = Math.max(longest, now - before);
        before = now;
    }
    return longest;
}"""
_SUFFIXES = (".js", ".mjs", ".css", ".html", ".svg")
_NODES = "document.querySelectorAll('*').length"


def main() -> None:
    """Measure, print the table and write it into the page."""
    endpoint = start_endpoint()
    try:
        with tempfile.TemporaryDirectory() as folder:
            deployment = create_deployment(Path(folder), endpoint.base_url, extra=_ECHO)
            with serve_in_thread(deployment, create_app(deployment.settings)) as server:
                rows = list(_measure(server, *(int(each) for each in sys.argv[1:3])))
    finally:
        endpoint.stop()
    lines = ["| figure | measured |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)]
    table = "\n" + "\n".join(lines) + "\n\n"
    _PAGE.write_text(_TABLE.sub(lambda _: table, _PAGE.read_text()))
    print(table)


def _measure(
    server: ThreadedServer, sessions: int = 10_000, runs: int = 1_000
) -> Iterator[tuple[str, str]]:
    console = ROOT / "agentctl" / "server" / "console"
    files = [file.read_bytes() for file in console.rglob("*") if file.suffix in _SUFFIXES]
    sizes = sum(map(len, files)) / 1000, sum(len(gzip.compress(file)) for file in files) / 1000
    yield "all files, plain and compressed", f"{sizes[0]:.0f} KB, {sizes[1]:.0f} KB"
    token = server.deployment.token("me", *READS, *RUNS, "sessions:write", seconds=7200)
    headers = {"Authorization": f"Bearer {token}"}
    for number in range(sessions):
        body = {"session_id": f"s{number}", "agent_id": "repeat"}
        assert server.client.post("/sessions", json=body, headers=headers).status_code == 201
    for number in range(runs):
        message = f"**What** does article {number} cost?"
        run = {"message": message, "session_id": "long", "stream": False}
        answer = server.client.post("/agents/repeat/runs", json=run, headers=headers)
        assert answer.status_code == 200, answer.text
    with open_browser() as browser:
        with open_console(browser, server.url) as shown:
            paint = shown.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            yield "first paint, cold", f"{paint:.0f} ms"
            start = time.perf_counter()
            shown.sign_in(token)
            shown.page.wait_for_selector("tbody tr")
            yield "sign-in to the first list", f"{(time.perf_counter() - start) * 1000:.0f} ms"
            bytes_, count = _transferred(shown)
            yield "requests and bytes until then", f"{count}, {bytes_ / 1000:.0f} KB"
            yield from _measure_list(shown)
        with open_console(browser, server.url, "#/sessions/long", token=token) as shown:
            yield from _measure_transcript(shown)


def _transferred(shown: ConsolePage) -> tuple[float, int]:
    entries: list[dict[str, Any]] = shown.evaluate(
        "performance.getEntries().filter((each) => 'transferSize' in each)"
        ".map((each) => ({name: each.name, size: each.transferSize}))"
    )
    assets = [each for each in entries if "/console" in each["name"]]
    return sum(each["size"] for each in assets), len(assets)


def _measure_list(shown: ConsolePage) -> Iterator[tuple[str, str]]:
    more = shown.page.locator("text=Load 100 more")
    while more.count():
        rows = shown.page.locator("table").get_attribute("aria-rowcount")
        more.click()
        shown.page.wait_for_function(
            "rows => document.querySelector('table').getAttribute('aria-rowcount') !== rows",
            arg=rows,
        )
    count = int(shown.page.locator("table").get_attribute("aria-rowcount") or 0) - 1
    yield f"nodes with {count:,} sessions in the list", f"{shown.evaluate(_NODES):,}"
    yield "longest frame while scrolling through it", f"{shown.evaluate(_LONGEST_FRAME):.0f} ms"


def _measure_transcript(shown: ConsolePage) -> Iterator[tuple[str, str]]:
    shown.page.wait_for_selector(".turn")
    earlier = shown.page.locator("text=Earlier runs")
    longest = 0.0
    while earlier.count():
        turns = shown.page.locator(".turn").count()
        start = time.perf_counter()
        earlier.click()
        shown.page.wait_for_function(
            "turns => document.querySelectorAll('.turn').length > turns"
            " || !document.querySelector('#main .more')",
            arg=turns,
        )
        longest = max(longest, time.perf_counter() - start)
    count = shown.page.locator(".turn").count()
    yield "50 earlier runs of a transcript, at most", f"{longest * 1000:.0f} ms"
    yield f"nodes with {count:,} runs in a transcript", f"{shown.evaluate(_NODES):,}"


if __name__ == "__main__":
    main()
