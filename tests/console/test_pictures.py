"""The pictures of the console in the documentation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import hold, start
from tests.console.sums import repeat_sums
from tests.kit.browser import ConsolePage, needs_browser, open_console
from tests.kit.deployment import ADMIN
from tests.kit.threaded_server import ThreadedServer

pytestmark = needs_browser

FOLDER = Path(__file__).parents[2] / "docs" / "images"

MAXIMUM_PICTURE = 140_000
"""Bytes of a picture."""


ANSWER = "## Prices\n\n| article | price |\n|---|---:|\n| tea | 3.50 |\n| coffee | 2.80 |"

SESSION_NAMES = {
    "sum": "Prices of tea and coffee",
    "added": "Add two numbers",
    "refunds": "Refunds of November",
}


def create_runs(server: ThreadedServer) -> str:
    """Start the runs that the pictures show; return the id of that of a team."""
    start(server, "agents/tool-add", "added", '{"a": 3, "b": 4}')
    start(server, "agents/echo", "sum", ANSWER)
    start(server, "agents/hold", "sum", '{"name": "never mind"}', background=True)
    for message in ("Wait for the delivery", "Ask for the invoice"):
        start(server, "agents/hang", "wait", message, background=True)
    run_id = start(server, "teams/choir", "song", "Sing about tea").json()["run_id"]
    start(server, "workflows/broken", "report", "Report on tea")
    for order, amount in (("A-130", 120), ("A-131", 35), ("B-7", 9)):
        start(server, "agents/refunds", "refunds", f'{{"order": "{order}", "amount": {amount}}}')
    for agent in ("priced", "http-500", "http-401"):
        start(server, f"agents/{agent}", "sums", "What does tea cost?")

    headers = server.bearer("boss", ADMIN)
    for session_id, name in SESSION_NAMES.items():
        body = {"session_name": name}
        place = f"/sessions/{session_id}/rename"
        assert server.client.post(place, json=body, headers=headers).is_success
    repeat_sums(server, 23)
    hold(server, "report")
    return str(run_id)


def find_oldest_approval(server: ThreadedServer) -> str:
    headers = server.bearer("boss", ADMIN)
    listed = server.client.get("/approvals", headers=headers).json()["data"]
    return str(listed[-1]["approval_id"])


def mark_last_hours(shown: ConsolePage) -> None:
    for key in ("End", *["Shift+ArrowLeft"] * 4):
        shown.page.get_by_role("slider", name="Runs: hours").press(key)


def cancel_held_run(shown: ConsolePage) -> None:
    shown.page.click("[data-cancel]")
    shown.page.click("dialog .danger")
    shown.see("tool hold has not returned")


def edit_arguments(shown: ConsolePage) -> None:
    shown.page.click("text=Edit the arguments")
    shown.page.fill("[name=arguments]", '{"order": "A-130", "amount": 100}')


PREPARATIONS = {
    "overview": mark_last_hours,
    "transcript": cancel_held_run,
    "approval": edit_arguments,
}
"""The steps on a page before its picture."""

HEIGHTS = {"transcript": 800, "overview": 720, "approval": 740}
"""The heights of pictures in pixels; the others have 600."""


@pytest.mark.skipif(
    "AGENTCTL_TEST_SCREENSHOTS" not in os.environ,
    reason="writes docs/images: AGENTCTL_TEST_SCREENSHOTS=1",
)
def test_pictures_of_the_documentation(server: ThreadedServer, browser: Browser) -> None:
    """Write a screenshot of every page."""
    run_id = create_runs(server)
    admin = server.deployment.token("boss", ADMIN, seconds=3_300)
    pictures = {
        "overview": ("#/overview", "MODEL_UNAVAILABLE"),
        "sessions": ("#/sessions", "Sing about tea"),
        "transcript": ("#/sessions/sum", 'hold(name="never mind")'),
        "runs": ("#/runs", "Wait for the delivery"),
        "timeline": (f"#/runs/{run_id}/timeline", "model echo"),
        "agents": ("#/agents", "Workflows"),
        "agent": ("#/agents/agents/tool-add", "add(a, b)"),
        "audit": ("#/audit", "create_agent_run"),
        "approvals": ("#/approvals", "B-7"),
        "approval": (f"#/approvals/agent/refunds/{find_oldest_approval(server)}", "A-130"),
        "access": ("#/access?method=POST&path=/agents/echo/runs", "checks passed"),
    }
    FOLDER.mkdir(exist_ok=True)
    with open_console(browser, server.url, viewport={"width": 1280, "height": 600}) as shown:
        shown.page.fill("textarea[name=token]", admin)
        shown.see("expires in")
        _save_picture(shown, FOLDER / "console-sign-in.png")
        shown.sign_in(admin)
        for name, (place, text) in pictures.items():
            shown.go(place)
            shown.see(text)
            shown.page.set_viewport_size({"width": 1280, "height": HEIGHTS.get(name, 600)})
            if name in PREPARATIONS:
                PREPARATIONS[name](shown)
            _save_picture(shown, FOLDER / f"console-{name}.png")
    (server.deployment.folder / "never mind").touch()


def _save_picture(shown: ConsolePage, file: Path) -> None:
    shown.page.evaluate("document.fonts.ready")
    shown.page.screenshot(path=file)
    assert file.stat().st_size <= MAXIMUM_PICTURE
