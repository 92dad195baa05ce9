"""Measure the budgets of the console and write them into docs/internals/measurements.md.

    python -m tests.console.measure [SESSIONS RUNS]     by default 10000 and 1000

A server in this process with many sessions and one session with many runs, and Chromium without a
display. The figures depend on the machine; a busy one makes them larger.
"""

from __future__ import annotations

import gzip
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser

from tests.console.deployed import READS, RUNS
from tests.kit.browser import ConsolePage, open_browser, open_console
from tests.kit.deployment import create_deployment
from tests.kit.model import start_endpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.kit.vendored import ROOT

_PAGE = ROOT / "docs" / "internals" / "measurements.md"
_CONSOLE = ROOT / "agentctl" / "server" / "console"
_TABLE = re.compile(r"(?<=<!-- console -->\n).*?(?=<!-- end of console -->)", re.DOTALL)
_ECHO = """
[[models]]
id = "repeat"
provider = "demo"
model = "echo"

[[agents]]
id = "repeat"
model = "repeat"
"""
_SUFFIXES = (".js", ".mjs", ".css", ".html", ".svg")
_NODES = "document.querySelectorAll('*').length"

_RECORD_ROWS = """
window.rowsAt = 0;
new MutationObserver(() => {
    if (!window.rowsAt && document.querySelector("tbody tr")) window.rowsAt = performance.now();
}).observe(document, {childList: true, subtree: true});
"""
"""Note when the first row of a list is in the document."""

_SIGN_IN = """() => {
    const end = (text) => performance.getEntriesByType("resource")
        .filter((each) => each.name.includes(text)).pop().responseEnd;
    return [end("/auth/me"), end("/sessions?"), window.rowsAt];
}"""

_FRAMES = """async (step) => {
    const scroller = document.getElementById("main");
    const frames = [];
    let before = performance.now();
    for (let count = 0; count < 90; count++) {
        scroller.scrollBy(0, step);
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        frames.push(now - before);
        before = now;
    }
    frames.sort((a, b) => a - b);
    return [frames[45], frames[85], frames[89]];
}"""
"""Scroll for 90 frames; return the median, the 95th percentile and the longest, in ms."""

_SELECT = """async (key) => {
    const start = performance.now();
    dispatchEvent(new CustomEvent("console-key", {detail: key, cancelable: true}));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""
"""Press a key; return the time until its frame is painted."""

_LAY_OUT = """async () => {
    const content = document.querySelector(".transcript");
    content.style.display = "none";
    content.getBoundingClientRect();
    content.style.display = "";
    const start = performance.now();
    content.getBoundingClientRect();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""
"""Lay out and paint the whole transcript again; return the time."""


def main() -> None:
    """Measure, print the table and write it into the page."""
    endpoint = start_endpoint()
    try:
        with tempfile.TemporaryDirectory() as folder:
            deployment = create_deployment(Path(folder), endpoint.base_url, extra=_ECHO)
            with serve_in_thread(deployment) as server:
                rows = list(_measure(server, *(int(each) for each in sys.argv[1:3])))
    finally:
        endpoint.stop()
    head = "| figure | measured | budget |\n| --- | ---: | ---: |\n"
    table = "\n" + head + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"
    _PAGE.write_text(_TABLE.sub(lambda _: table, _PAGE.read_text()))
    print(table)


def _measure(
    server: ThreadedServer, sessions: int = 10_000, runs: int = 1_000
) -> Iterator[tuple[str, str, str]]:
    files = [file for file in _CONSOLE.rglob("*") if file.suffix in _SUFFIXES]
    yield "all files, plain and gzip", _size(files), "150 KB, 45 KB"
    token = server.deployment.token("me", *READS, *RUNS, "sessions:write", seconds=36_000)
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
        yield from _measure_start(browser, server.url, token)
        with open_console(browser, server.url, "#/sessions", token=token) as shown:
            yield from _measure_list(shown)
        with open_console(browser, server.url, "#/sessions/long", token=token) as shown:
            yield from _measure_transcript(shown)
        run = {"message": "count", "session_id": "live", "background": True, "stream": False}
        server.client.post("/agents/trickle/runs", json=run, headers=headers)
        with open_console(browser, server.url, "#/sessions/live", token=token) as shown:
            yield from _measure_stream(shown)


def _measure_start(browser: Browser, url: str, token: str) -> Iterator[tuple[str, str, str]]:
    paints = list[float]()
    shows = list[float]()
    draws = list[float]()
    for _ in range(5):
        with open_console(browser, url, "#/sessions", fresh=True) as shown:
            shown.page.evaluate(_RECORD_ROWS)
            paints.append(
                shown.evaluate(
                    "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                )
            )
            shown.sign_in(token)
            shown.page.wait_for_selector("tbody tr")
            signed_in, answered, rows = shown.evaluate(_SIGN_IN)
            shows.append(rows - signed_in)
            draws.append(rows - answered)
            loaded = _loaded(shown)
    yield "files of the first list, plain and gzip", _size(loaded), "150 KB, 45 KB"
    yield "requests of the first list", f"{len(loaded)}", "16"
    yield "first paint, cold, median of 5", _milliseconds(paints), "800 ms"
    yield "sign-in to the first list, from its answer, median of 5", _milliseconds(shows), "300 ms"
    yield "of it from the answer of the list to its rows", _milliseconds(draws), "100 ms"


def _measure_list(shown: ConsolePage) -> Iterator[tuple[str, str, str]]:
    table = shown.page.locator("table")
    while shown.page.locator("#main .more button").count():
        rows = table.get_attribute("aria-rowcount")
        shown.evaluate("document.getElementById('main').scrollTo(0, 1e9)")
        shown.page.wait_for_function(
            "rows => document.querySelector('table').getAttribute('aria-rowcount') !== rows"
            " || !document.querySelector('#main .more button')",
            arg=rows,
        )
    count = int(table.get_attribute("aria-rowcount") or 0) - 1
    yield f"nodes with {count:,} sessions in the list", f"{shown.evaluate(_NODES):,}", "400"
    shown.evaluate("document.getElementById('main').scrollTo(0, 0)")
    yield (
        "frames while it scrolls: median, 95 %, longest",
        _frames(shown, count * 41 // 90),
        "50 ms",
    )
    yield "memory of the page", _memory(shown), "100 MB"


def _measure_transcript(shown: ConsolePage) -> Iterator[tuple[str, str, str]]:
    shown.page.wait_for_selector(".turn")
    earlier = shown.page.locator("text=Earlier runs")
    while earlier.count():
        turns = shown.page.locator(".turn").count()
        earlier.click()
        shown.page.wait_for_function(
            "turns => document.querySelectorAll('.turn').length > turns"
            " || !document.querySelector('#main .more')",
            arg=turns,
        )
    count = shown.page.locator(".turn").count()
    loaded = _loaded(shown)
    yield "files of a transcript, plain and gzip", _size(loaded), "150 KB, 45 KB"
    yield f"nodes with {count:,} runs in a transcript", f"{shown.evaluate(_NODES):,}", "40,000"
    painted = [shown.evaluate(_LAY_OUT) for _ in range(5)]
    yield "layout and paint of all of them, median of 5", _milliseconds(painted), "500 ms"
    chosen = [shown.evaluate(_SELECT, "[") for _ in range(5)]
    yield "run before (`[`), median of 5", _milliseconds(chosen), "100 ms"
    yield "frames while it scrolls: median, 95 %, longest", _frames(shown, -1000), "50 ms"
    yield "memory of the page", _memory(shown), "100 MB"


def _measure_stream(shown: ConsolePage) -> Iterator[tuple[str, str, str]]:
    shown.page.wait_for_selector(".markdown")
    before = len(shown.requests)
    seconds = 10
    yield "frames of a live run: median, 95 %, longest", _frames(shown, 0), "50 ms"
    shown.page.wait_for_timeout(seconds * 1000)
    asked = (len(shown.requests) - before) / seconds
    yield "requests a second while it is followed", f"{asked:.1f}", "1"


def _loaded(shown: ConsolePage) -> list[Path]:
    """Return the files that a page has loaded, its own included."""
    names = [urlsplit(url).path.split("/", 4) for url in shown.requests if "/console" in url]
    return [_CONSOLE / (name[4] if len(name) > 4 else "index.html") for name in names]


def _size(files: list[Path]) -> str:
    contents = [file.read_bytes() for file in files]
    plain = sum(map(len, contents)) / 1000
    return f"{plain:.0f} KB, {sum(len(gzip.compress(each)) for each in contents) / 1000:.0f} KB"


def _milliseconds(values: list[float]) -> str:
    return f"{sorted(values)[len(values) // 2]:.0f} ms"


def _frames(shown: ConsolePage, step: int) -> str:
    return ", ".join(f"{each:.0f} ms" for each in shown.evaluate(_FRAMES, step))


def _memory(shown: ConsolePage) -> str:
    session = shown.page.context.new_cdp_session(shown.page)
    session.send("HeapProfiler.collectGarbage")
    metrics: dict[str, Any] = session.send("Runtime.getHeapUsage")
    return f"{metrics['usedSize'] / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
