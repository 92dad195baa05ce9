"""Files in the chat and the console: attached, refused, seen by a model, shown, never executed."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from tests.console.deployed import READS, RUNS
from tests.console.test_widths import SMALL_TARGETS, check_layout
from tests.kit.browser import (
    ConsolePage,
    check_accessibility,
    check_view,
    expect,
    needs_browser,
    open_console,
    open_viewer,
)
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.files_of_runs import PDF, build_png, upload

pytestmark = needs_browser

ITEM_BYTES = 300_000
DAY_BYTES = 500_000

CODE = """
import agentctl


async def make(message: str, context: agentctl.RunContext) -> str:
    \"\"\"Save each file of the message again, and a table in two versions.\"\"\"
    for file in context.files:
        await context.save_file(f"copy-{file.name}", await file.read())
    await context.save_file("table.csv", b"a,b\\n")
    await context.save_file("table.csv", message.encode())
    return "made"
"""

EXTRA = """
[files]
item_bytes = {item}
user_day_bytes = {day}

[[models]]
id = "seeing"
provider = "openai"
model = "history"
base_url = "{url}"
takes = ["image", "pdf", "audio"]

[[agents]]
id = "seeing"
name = "Seeing"
model = "seeing"

[[agents]]
id = "maker"
name = "Maker"
object = "console_files:make"
"""

WAV = struct.pack(
    "<4sI4s4sIHHIIHH4sI8x", b"RIFF", 44, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 8
)

CALL_OUT = "fetch('/called-out')"
"""A request that an executed file would send from the origin of the page."""

HOSTILE = {
    "page.html": f"<!doctype html><script>{CALL_OUT}</script>".encode(),
    "drawing.svg": f'<svg xmlns="http://www.w3.org/2000/svg" onload="{CALL_OUT}"/>'.encode(),
    "both.png": build_png() + f"<script>{CALL_OUT}</script>".encode(),
    "both.pdf": b"%PDF-1.4\n" + f"<html><script>{CALL_OUT}</script>".encode(),
}
"""Files that the server refuses under any name."""

PAGE_OF_HTML: Any = {"body": HOSTILE["page.html"], "content_type": "text/html"}

RELABELLED = ("text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "video/mp4")
"""Types that a page must not show, if a store ever has them."""


@pytest.fixture(scope="module")
def site(deploy: Deploy) -> Iterator[ThreadedServer]:
    extra = EXTRA.format(url=deploy.url, item=ITEM_BYTES, day=DAY_BYTES)
    with serve_in_thread(deploy(extra, files={"console_files.py": CODE})) as host:
        yield host


def open_page(browser: Browser, site: ThreadedServer, place: str, user: str, name: str) -> Any:
    """Open the chat or the console as a user who reads, runs and writes."""
    key = site.deployment.token(user, *READS, *RUNS, "sessions:write")
    return open_console(browser, site.url, place, token=key, name=name)


def choose(shown: ConsolePage, **files: bytes) -> None:
    """Choose files in the dialog of the browser, whose names have `_` for the dot."""
    given = [
        {"name": name.replace("_", "."), "mimeType": "", "buffer": data}
        for name, data in files.items()
    ]
    shown.page.locator("input[type=file]").set_input_files(given)  # type: ignore[arg-type]


def give(shown: ConsolePage, event: str, name: str, data: bytes) -> None:
    """Drop or paste a file."""
    shown.page.wait_for_selector("button.attach")
    shown.evaluate(
        """([event, name, data]) => {
            const bytes = Uint8Array.from(atob(data), each => each.charCodeAt(0));
            const given = new DataTransfer();
            given.items.add(new File([bytes], name, {type: "image/png"}));
            const options = {bubbles: true, cancelable: true};
            document.querySelector("[data-message]").dispatchEvent(event === "paste"
                ? new ClipboardEvent(event, {...options, clipboardData: given})
                : new DragEvent(event, {...options, dataTransfer: given}));
        }""",
        [event, name, base64.b64encode(data).decode()],
    )


def wait_for_picture(shown: ConsolePage, place: str) -> None:
    """Wait until a picture has its bytes."""
    shown.page.locator(f"{place} img").first.wait_for()
    shown.page.wait_for_function(
        "place => [...document.querySelectorAll(`${place} img`)].every(each => each.naturalWidth)",
        arg=place,
    )


DROPPED = build_png(8)

PASTED = build_png(9)


def attach_in_every_way(shown: ConsolePage) -> None:
    """Choose a picture, a PDF and a sound, drop a picture, and paste another one."""
    choose(shown, dot_png=build_png(7), paper_pdf=PDF, beep_wav=WAV)
    give(shown, "drop", "dropped.png", DROPPED)
    give(shown, "paste", "image.png", PASTED)
    wait_for_picture(shown, ".compose")


def expect_download(shown: ConsolePage, name: str, content: bytes) -> None:
    with shown.page.expect_download() as saved:
        shown.page.get_by_role("button", name=f"Download {name}").click()
    assert saved.value.suggested_filename == name
    assert saved.value.path().read_bytes() == content


def test_files_without_a_message_are_seen_by_the_model_and_saved(
    site: ThreadedServer, browser: Browser, model_endpoint: ModelEndpoint
) -> None:
    with open_page(browser, site, "#/?with=agent:seeing", "ada", "chat") as shown:
        page = shown.page
        send = page.get_by_role("button", name="Send")
        page.wait_for_selector("button.attach")
        expect(send).to_be_disabled()

        attach_in_every_way(shown)
        rows = page.locator(".compose .file[data-file]")
        expect(rows).to_have_count(5)
        expect(rows.nth(1)).to_contain_text("paper.pdf PDF · 69 B")
        page.get_by_role("button", name="Remove dropped.png").click()
        expect(rows).to_have_count(4)
        expect(page.locator("button.attach")).to_be_focused()
        page.get_by_role("button", name="Show beep.wav").click()
        expect(page.locator("dialog audio")).to_have_count(1)
        check_view(shown)
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)

        send.click()
        expect(page.locator(".turn[data-phase=completed]")).to_have_count(1)
        expect(page.locator(".compose .file")).to_have_count(0)
        expect(page.locator(".asked .file")).to_have_count(4)
        page.reload()
        wait_for_picture(shown, ".asked")
        expect_download(shown, "paper.pdf", PDF)

    sent = json.dumps(model_endpoint.requests("history")[-1]["messages"])
    for data in (build_png(7), PDF, PASTED):
        assert base64.b64encode(data).decode() in sent
    assert base64.b64encode(DROPPED).decode() not in sent


def test_a_refused_file_names_the_reason_and_keeps_the_message(
    site: ThreadedServer, browser: Browser
) -> None:
    with open_page(browser, site, "#/?with=agent:echo", "bob", "chat") as shown:
        page = shown.page
        page.fill("[data-message]", "kept")
        send = page.get_by_role("button", name="Send")
        error = page.locator(".compose [role=alert]")
        for name, data, reason in (
            ("big_txt", b"a" * (ITEM_BYTES + 1), f"A file has at most {ITEM_BYTES} bytes"),
            ("empty_txt", b"", "A file must have at least 1 byte"),
            ("packed_zip", b"PK\x03\x04" + bytes(300), "of no accepted type"),
        ):
            choose(shown, **{name: data})
            expect(error).to_contain_text(reason)
            expect(send).to_be_disabled()
            page.get_by_role("button", name="Remove").click()
            expect(send).to_be_enabled()
        choose(shown, first_txt=b"a" * ITEM_BYTES)
        expect(page.locator(".compose [data-file]")).to_have_count(1)
        choose(shown, second_txt=b"b" * ITEM_BYTES)
        expect(error).to_contain_text("bytes of files a day for one user is used up")
        check_view(shown)
        page.get_by_role("button", name="Remove second.txt").click()
        page.get_by_role("button", name="Remove first.txt").click()
        choose(shown, dot_png=build_png())
        expect(page.locator(".compose [data-file]")).to_have_count(1)
        page.locator("[data-message]").press("Enter")
        expect(page.locator(".compose .bar.red")).to_contain_text("does not take dot.png")
        expect(page.locator("[data-message]")).to_have_value("kept")
        expect(page.locator(".compose [data-file]")).to_have_count(1)
        page.get_by_role("button", name="Remove dot.png").click()
        page.locator("[data-message]").press("Enter")
        expect(page.locator(".turn .markdown")).to_have_text("kept")


def test_an_upload_shows_its_progress_and_ends_when_it_is_removed(
    site: ThreadedServer, browser: Browser
) -> None:
    held: list[Route] = []
    with open_page(browser, site, "#/?with=agent:echo", "progress", "chat") as shown:
        shown.page.route("**/files?*", lambda route: held.append(route))
        choose(shown, slow_txt=b"slow")
        expect(shown.page.get_by_role("progressbar", name="Upload of slow.txt")).to_have_count(1)
        shown.page.get_by_role("button", name="Remove slow.txt").click()
        expect(shown.page.locator("progress")).to_have_count(0)
        shown.page.unroute_all()
        choose(shown, next_txt=b"next")
        expect(shown.page.locator(".compose [data-file]")).to_contain_text("next.txt")


def test_files_of_a_run_are_shown_with_their_versions(
    site: ThreadedServer, browser: Browser
) -> None:
    with open_page(browser, site, "#/agents/agents/maker", "cara", "console") as shown:
        page = shown.page
        page.fill("[data-message]", "c,d\n1,2\n")
        choose(shown, dot_png=build_png(20))
        expect(page.locator("form .file[data-file]")).to_have_count(1)
        page.get_by_role("button", name="Start").click()
        made = page.locator(".answer .file")
        expect(made).to_have_count(3)
        expect(made.nth(0)).to_contain_text("copy-dot.png PNG")
        expect(made.nth(2)).to_contain_text("table.csv CSV · 8 B · version 2")
        wait_for_picture(shown, ".answer")
        wait_for_picture(shown, ".asked")
        check_view(shown)
        shown.choose("Files")
        rows = page.locator("dialog .file")
        expect(rows).to_have_count(4)
        page.get_by_role("button", name="Delete copy-dot.png").click()
        page.get_by_role("button", name="Delete for good: copy-dot.png").click()
        expect(rows).to_have_count(3)
        page.keyboard.press("Escape")
        page.reload()
        expect(page.locator(".answer [role=alert]")).to_have_text("File not found")
        page.click("text=Timeline")
        expect(page.locator("[data-chosen=run] .file")).to_have_count(4)
        shown.go("#/sessions")
        page.get_by_role("button", name="Files", exact=True).click()
        expect(rows).to_have_count(3)


def test_files_hold_on_a_phone(site: ThreadedServer, browser: Browser) -> None:
    with open_page(browser, site, "#/agents/agents/maker", "phone", "console") as shown:
        page = shown.page
        page.fill("[data-message]", "c,d\n1,2\n")
        choose(shown, dot_png=build_png(20))
        expect(page.locator("form .file[data-file]")).to_have_count(1)
        check_accessibility(shown)
        page.get_by_role("button", name="Start").click()
        expect(page.locator(".answer .file")).to_have_count(3)
        wait_for_picture(shown, ".asked")
        check_accessibility(shown)
        page.set_viewport_size({"width": 390, "height": 844})
        check_layout(shown)
        assert shown.evaluate(SMALL_TARGETS) == []
        shown.choose("Files")
        expect(page.locator("dialog .file")).to_have_count(4)
        check_layout(shown)
        check_accessibility(shown)
        page.keyboard.press("Escape")
        page.click("text=Timeline")
        expect(page.locator("[data-chosen=run] .file")).to_have_count(4)
        check_accessibility(shown)


def test_files_that_would_be_executed_are_refused(site: ThreadedServer, browser: Browser) -> None:
    with open_page(browser, site, "#/?with=agent:maker", "frank", "chat") as shown:
        for name, content in HOSTILE.items():
            choose(shown, **{name.replace(".", "_"): content})
            refused = shown.page.locator(".compose .file", has_text=name)
            expect(refused.locator("[role=alert]")).to_have_count(1)
        assert shown.page.locator(".compose :is(img, iframe)").count() == 0
        check_nothing_called(shown)


def test_types_that_are_not_shown_are_downloads(site: ThreadedServer, browser: Browser) -> None:
    """A record claims a type that the server never stores: its bytes are saved, not opened."""
    content = HOSTILE["page.html"]
    record = {"media_type": ""}

    def relabel(route: Route) -> None:
        answer = route.fetch()
        page = answer.json()
        page["data"][0] |= record
        route.fulfill(response=answer, json=page)

    def send(route: Route) -> None:
        route.fulfill(body=content, content_type=record["media_type"])

    with site.deployment.client(site.url, "gina", *READS, "sessions:write") as gina:
        upload(gina, "page.txt", b"plain")
    with open_page(browser, site, "#/sessions", "gina", "console") as shown:
        page = shown.page
        page.route("**/files?*", relabel)
        page.route("**/content*", send)
        for media_type in RELABELLED:
            record["media_type"] = media_type
            page.get_by_role("button", name="Files", exact=True).click()
            row = page.locator("dialog .file").first
            expect(row).to_contain_text("page.txt")
            expect(row.get_by_role("button", name="Show")).to_have_count(0)
            with page.expect_download() as saved:
                row.get_by_role("button", name="Download").click()
            assert saved.value.path().read_bytes() == content
            assert page.locator(":is(img, iframe, audio, video, object, embed)").count() == 0
            page.keyboard.press("Escape")
            expect(page.locator("dialog")).to_have_count(0)
        check_nothing_called(shown)


def test_bytes_that_are_no_picture_are_shown_as_none(
    site: ThreadedServer, browser: Browser
) -> None:
    """A store that sends a page for a picture: the blob has the type of the record."""
    with site.deployment.client(site.url, "hal", *READS, "sessions:write") as hal:
        upload(hal, "dot.png", build_png(31))
    with open_page(browser, site, "#/sessions", "hal", "console") as shown:
        shown.page.route("**/content*", lambda route: route.fulfill(**PAGE_OF_HTML))
        shown.page.get_by_role("button", name="Files", exact=True).click()
        shown.page.locator("dialog .thumb img").wait_for(state="attached")
        check_nothing_called(shown)


def test_a_frame_shows_a_pdf_and_executes_no_page(site: ThreadedServer, browser: Browser) -> None:
    with site.deployment.client(site.url, "ida", *READS, "sessions:write") as ida:
        upload(ida, "paper.pdf", PDF)
    with (
        open_viewer(browser) as viewer,
        open_page(viewer, site, "#/sessions", "ida", "console") as shown,
    ):
        page = shown.page
        page.get_by_role("button", name="Files", exact=True).click()
        page.get_by_role("button", name="Show paper.pdf").click()
        expect(page.locator("dialog iframe")).to_have_attribute("title", "paper.pdf")
        page.reload()

        # A store that sends a page for a PDF: the blob has the type of the record.
        page.route("**/content*", lambda route: route.fulfill(**PAGE_OF_HTML))
        page.get_by_role("button", name="Files", exact=True).click()
        page.get_by_role("button", name="Show paper.pdf").click()
        expect(page.locator("dialog iframe")).to_have_count(1)
        for frame in page.frames:
            frame.wait_for_load_state()
        check_nothing_called(shown)


def check_nothing_called(shown: ConsolePage) -> None:
    """Check that no file of the page was executed, in it or in a frame."""
    assert not [url for url in shown.requests if "called-out" in url]


def test_an_administrator_attaches_for_the_user_of_the_session(
    site: ThreadedServer, browser: Browser
) -> None:
    body = {"message": "hello", "session_id": "of-june", "stream": False}
    june = site.bearer("june", *READS, *RUNS)
    assert site.client.post("/agents/maker/runs", json=body, headers=june).is_success
    key = site.deployment.token("boss", ADMIN)
    with open_console(browser, site.url, "#/sessions/of-june", token=key) as shown:
        choose(shown, dot_png=build_png(40))
        expect(shown.page.locator(".compose [data-file]")).to_have_count(1)
        shown.page.fill("[data-message]", "look")
        shown.page.locator("[data-message]").press("Enter")
        expect(shown.page.locator(".asked .file")).to_have_count(1)
        wait_for_picture(shown, ".asked")
    files = site.client.get("/files?session_id=of-june", headers=june).json()["data"]
    assert {each["user_id"] for each in files} == {"june"}
