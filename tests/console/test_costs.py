"""Opening a session and sending a message cost the same for short and long histories."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Request

from tests.console.deployed import start, token
from tests.kit.browser import ConsolePage, expect, needs_browser, open_console
from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment, run_agentctl
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

RUNS = (10, 1_000, 10_000) if os.environ.get("AGENTCTL_TEST_LONG") else (10, 1_000)

TOLERANCE = 0.1

IDLE_SECONDS = 0.7

MESSAGE = '{"seconds": 0.5}'
"""Input of a run that lasts long enough to be seen live."""


class Cost(NamedTuple):
    """The requests and the bytes of their responses, without files and without polls."""

    requests: int
    content: int


ONE_POLL = Cost(1, 3_000)
"""A live run may be read once more on a busy machine, in a session of any length."""


def test_costs_do_not_grow_with_the_history(
    server: ThreadedServer, browser: Browser, tmp_path: Path
) -> None:
    opened = dict[int, Cost]()
    sent = dict[int, Cost]()
    for count in RUNS:
        fill(server, f"cost-{count}", count, tmp_path)
        key = token(server)
        with open_console(browser, server.url, "#/access", token=key, fresh=True) as shown:
            shown.see("Identity")
            wait_until_idle(shown)
            finished = record_requests(shown)
            shown.go(f"#/sessions/cost-{count}")
            expect(shown.page.locator("[data-counts]")).to_have_text(f"{count:,} runs")
            expect(shown.page.locator(".turn")).to_have_count(10)
            wait_until_idle(shown)
            opened[count] = sum_up(finished)
            sent[count] = min(send(shown, finished, count + number) for number in (1, 2, 3))
    for costs, slack in ((opened, Cost(0, 0)), (sent, ONE_POLL)):
        for mine, first, least in zip(costs[RUNS[-1]], costs[RUNS[0]], slack, strict=True):
            assert abs(mine - first) <= max(TOLERANCE * first, least), (opened, sent)


def test_timeline_of_a_live_run_reads_no_texts(server: ThreadedServer, browser: Browser) -> None:
    body = '{"name": "timeline"}'
    run = start(server, "agents/hold", "cost-timeline", body, background=True).json()["run_id"]
    with open_console(browser, server.url, "#/access", token=token(server)) as shown:
        shown.see("Identity")
        finished = record_requests(shown)
        shown.go(f"#/runs/{run}/timeline")
        shown.see("tool hold")
        wait_until_idle(shown, 0.3)
        last = [each for each in finished if "view=items" in each.url][-1]
        assert "cut=1&" in f"{last.url}&"
        (server.deployment.folder / "timeline").touch()
        shown.see("completed")
        shown.page.click("[data-span=tool]")
        expect(shown.page.locator("[data-chosen] pre").last).to_contain_text("timeline....")


def record_requests(shown: ConsolePage) -> list[Request]:
    """Return the list to which each finished request is added."""
    finished = list[Request]()
    shown.page.on("requestfinished", lambda request: finished.append(request))
    return finished


def send(shown: ConsolePage, finished: list[Request], count: int) -> Cost:
    """Send a message and wait for its end; return its cost."""
    finished.clear()
    shown.page.fill("[data-message]", MESSAGE)
    shown.page.keyboard.press("Enter")
    expect(shown.page.locator("[data-counts]")).to_have_text(f"{count:,} runs")
    expect(shown.page.locator(".turn .status").last).to_contain_text("completed")
    wait_until_idle(shown)
    return sum_up(finished)


def fill(server: ThreadedServer, session: str, count: int, folder: Path) -> None:
    """Create a session with runs: one by a request, and copies of it by an import."""
    key = server.bearer("me", "sessions:read")
    start(server, "agents/tool-wait", f"{session}-first", MESSAGE)
    place = f"/sessions/{session}-first/export"
    record = json.loads(server.client.get(place, params={"format": "jsonl"}, headers=key).text)
    record["session"] |= {"session_id": session, "session_name": session}
    record["session"].pop("agent_session_id", None)
    record["runs"] = list(copy_runs(record["runs"][0], session, count))
    file = folder / f"{session}.jsonl"
    file.write_text(json.dumps(record) + "\n")
    arguments = (str(file), "--config", str(server.deployment.path))
    done = run_agentctl("sessions", "import", *arguments, env=base_environment())
    assert done.returncode == 0, done.stderr


def copy_runs(run: dict[str, Any], session: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield copies of a run with increasing ids."""
    begin = int(run["run_id"].replace("-", "")[:12], 16) - 100_000
    for number in range(count):
        head = f"{begin + number:012x}"
        tail = run["run_id"].split("-", 2)[2]
        yield {**run, "session_id": session, "run_id": f"{head[:8]}-{head[8:]}-{tail}"}


def sum_up(requests: list[Request]) -> Cost:
    """Return the cost of requests.

    Polls depend on the time: one for new runs that found none is not counted, and each place is
    counted once.
    """
    counted = {
        each.url: each for each in requests if not re.search(r"after=|/console/", each.url)
    }.values()
    return Cost(len(counted), sum(each.sizes()["responseBodySize"] for each in counted))


def wait_until_idle(shown: ConsolePage, seconds: float = IDLE_SECONDS) -> None:
    """Wait until the page sends no request but polls for some time."""
    deadline = time.monotonic() + PATIENCE
    since = time.monotonic()
    known = -1
    while time.monotonic() - since < seconds:
        assert time.monotonic() < deadline
        count = sum("after=" not in url for url in shown.requests)
        if count != known:
            since = time.monotonic()
            known = count
        shown.page.wait_for_timeout(50)
