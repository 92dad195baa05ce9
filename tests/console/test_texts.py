"""Texts of users and models in the console: directions, joiners, Markdown, headings, names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.console.deployed import READS, start, token
from tests.kit.browser import check_accessibility, expect, needs_browser, open_console
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

pytestmark = needs_browser

PERSIAN = (
    "\u0645\u0646 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u06cc\u06a9"
    " \u06af\u0632\u0627\u0631\u0634 \u06a9\u0648\u062a\u0627\u0647 \u062f"
    "\u0631\u0628\u0627\u0631\u0647\u0654 \u0686\u0627\u06cc"
    " \u062f\u0627\u0634\u062a\u0647 \u0628\u0627\u0634\u0645."
)
"""A sentence with a joiner in its second word."""

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
MARKDOWN = f"""#### Deep first

{PERSIAN}

## Then higher

###### And deep again

| name | amount | number | total | note | more | last | and | value |
|---|---|---|---|---|---|---|---|---:|
| alphabetical | unbreakable | considerable | responsible | acceptable | irresistible | x | y | 10 |

```python
print("copied")
```

- {PERSIAN}
"""


def test_joiners_stay_in_words_and_emoji(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "joined", f"{PERSIAN} {FAMILY} loose\u200d \u200chidden")
    with open_console(browser, server.url, "#/sessions/joined", token=token(server)) as shown:
        for place in (".bubble", ".markdown"):
            text = shown.page.locator(place)
            expect(text).to_contain_text(PERSIAN)
            expect(text).to_contain_text(FAMILY)
            expect(text).to_contain_text("loose\\u200d \\u200chidden")


def test_left_out_messages_are_named(
    tmp_path: Path, model_endpoint: ModelEndpoint, browser: Browser
) -> None:
    model = f'provider = "openai"\nbase_url = "{model_endpoint.base_url}"\nmodel = "tokens:400"\n'
    table = f'[[models]]\nid = "small"\ncontext_tokens = 400\n{model}'
    table += '[[agents]]\nid = "small"\nmodel = "small"\n'
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=table)
    with serve_in_thread(deployment) as server:
        for _ in range(2):
            start(server, "agents/small", "small", "long " * 100)
        with open_console(browser, server.url, "#/sessions/small", token=token(server)) as shown:
            named = shown.page.get_by_text("not shown whole to the model: earlier runs: 1 (")
            expect(named).to_be_visible()


def test_object_is_shown_with_its_message(
    tmp_path: Path, model_endpoint: ModelEndpoint, browser: Browser
) -> None:
    (tmp_path / "takers.py").write_text("async def take(message, context):\n    return message\n")
    table = '[[agents]]\nid = "taker"\nobject = "takers:take"\n'
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=table)
    given = {"number": "A-1", "pieces": [1, None]}
    text = '{"number": "A-1", "pieces": [1, null]}'
    with serve_in_thread(deployment) as server:
        start(server, "agents/taker", "taken", "hello", input=given)
        start(server, "agents/taker", "taken", text, input=given)
        with open_console(browser, server.url, "#/sessions/taken", token=token(server)) as shown:
            asked = shown.page.locator(".bubble")
            expect(asked.nth(0)).to_have_text('hello\ninput: {"number":"A-1","pieces":[1,null]}')
            expect(asked.nth(1)).to_have_text(text)


TELLER = """
from agentctl import ToolCompleted, ToolStarted


async def tell(message, context):
    yield "I look at the orders first. "
    for number in range(3):
        yield ToolStarted(f"c{number}", "search_orders", {"page": number})
        yield ToolCompleted(f"c{number}", {"found": number})
        yield f"Page {number} has {number} orders. "
"""


def test_text_around_calls_is_drawn_once(
    tmp_path: Path, model_endpoint: ModelEndpoint, browser: Browser
) -> None:
    (tmp_path / "tellers.py").write_text(TELLER)
    table = '[[agents]]\nid = "teller"\nobject = "tellers:tell"\n'
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=table)
    config = ("--config", str(deployment.path))
    with serve_in_thread(deployment) as server:
        start(server, "agents/teller", "told", "tell")
        with open_console(browser, server.url, "#/sessions/told", token=token(server)) as shown:
            shown.see("Page 2 has 2 orders.")
            drawn = [shown.page.locator("main").inner_text()]
    commands = [("sessions", "get", "told", "-o", form) for form in ("text", "markdown")]
    drawn += [run_agentctl(*command, *config) for command in commands]
    for text in drawn:
        words = " ".join(text.split())
        for told in ("I look at the orders first.", *(f"Page {n} has {n}" for n in range(3))):
            assert words.count(told) == 1, text


def run_agentctl(*arguments: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "agentctl", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout


def test_directions_follow_their_texts(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "right-to-left", f"{PERSIAN}\n\n- {PERSIAN}\n\n> {PERSIAN}")
    place = "#/sessions/right-to-left"
    direction = "each => getComputedStyle(each).direction"
    with open_console(browser, server.url, place, token=token(server)) as shown:
        shown.page.wait_for_selector(".markdown")
        for selector in ("h1", ".bubble", ".markdown p", ".markdown li", ".markdown blockquote"):
            assert shown.page.locator(selector).first.evaluate(direction) == "rtl", selector
        assert shown.page.locator("main").evaluate(direction) == "ltr"
        shown.go("#/sessions")
        row = shown.page.locator("td.name", has_text=PERSIAN[:2]).first
        assert row.evaluate(direction) == "rtl"


@pytest.mark.parametrize("width", [360, 800])
def test_wide_table_scrolls_and_breaks_no_word(
    server: ThreadedServer, browser: Browser, width: int
) -> None:
    start(server, "agents/echo", f"table-{width}", MARKDOWN)
    place = f"#/sessions/table-{width}"
    size = {"width": width, "height": 800}
    with open_console(browser, server.url, place, token=token(server), viewport=size) as shown:
        shown.page.wait_for_selector(".scroll td")
        lines = shown.evaluate(
            "[...document.querySelectorAll('.scroll td')].map(cell => {"
            " const range = document.createRange(); range.selectNodeContents(cell);"
            " return range.getClientRects().length })"
        )
        assert set(lines) == {1}
        assert shown.evaluate(
            "(each => each.scrollWidth > each.clientWidth)(document.querySelector('.scroll'))"
        )
        align = "each => getComputedStyle(each).textAlign"
        assert shown.page.locator(".scroll td").last.evaluate(align) == "right"
        assert shown.page.locator(".scroll td").first.evaluate(align) in ("start", "left")


def test_headings_of_answers_leave_out_no_level(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "headings", MARKDOWN)
    with open_console(browser, server.url, "#/sessions/headings", token=token(server)) as shown:
        shown.page.wait_for_selector(".markdown h2")
        headings = shown.page.locator(".markdown :is(h1, h2, h3, h4, h5, h6)")
        names = headings.evaluate_all("all => all.map(each => each.tagName)")
        assert names == ["H2", "H2", "H3"]
        check_accessibility(shown)


def test_steps_and_links_of_a_workflow_are_accessible(
    server: ThreadedServer, browser: Browser
) -> None:
    start(server, "workflows/broken", "steps", "Report on tea")
    start(server, "agents/tool-add", "opened", '{"a": 1, "b": 2}')
    with open_console(browser, server.url, "#/sessions/steps", token=token(server)) as shown:
        shown.see("Step ")
        check_accessibility(shown)
        shown.go("#/agents/workflows/broken")
        shown.see("Steps")
        check_accessibility(shown)
        shown.go("#/sessions/opened")
        shown.page.click("text=add(a=1, b=2)")
        shown.see("Arguments")
        check_accessibility(shown)


def test_code_block_is_copied(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/echo", "code", MARKDOWN)
    with open_console(browser, server.url, "#/sessions/code", token=token(server)) as shown:
        shown.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        shown.page.click(".block button")
        expect(shown.page.locator(".block button")).to_have_text("Copied")
        assert shown.evaluate("navigator.clipboard.readText()") == 'print("copied")'


def test_failure_separates_its_request_id(server: ThreadedServer, browser: Browser) -> None:
    start(server, "agents/http-500", "separated", "fail")
    with open_console(browser, server.url, "#/sessions/separated", token=token(server)) as shown:
        expect(shown.page.locator(".answer .bar.red")).to_contain_text(
            "The model is not available now · request"
        )


def test_long_first_message_is_marked_as_cut(server: ThreadedServer) -> None:
    start(server, "agents/echo", "long-name", "w" * 61)
    start(server, "agents/echo", "whole-name", "w" * 60)
    headers = server.bearer("me", *READS)
    names = [
        server.client.get(f"/sessions/{name}", headers=headers).json()["session_name"]
        for name in ("long-name", "whole-name")
    ]
    assert names == ["w" * 59 + "…", "w" * 60]


def test_cause_of_a_failure_is_shown_with_its_scope_only(
    tmp_path: Path, model_endpoint: ModelEndpoint, browser: Browser
) -> None:
    (tmp_path / "breaking.py").write_text(
        "async def fail(message, context):\n    raise LookupError('no order 17')\n"
    )
    table = '[[agents]]\nid = "shop"\nobject = "breaking:fail"\n'
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=table)
    with serve_in_thread(deployment) as server:
        start(server, "agents/shop", "broken", "17")
        place = "#/sessions/broken"
        fixed = "The code of the agent failed"
        debugger = token(server, "sessions:read", "agents:read", "runs:debug")
        with open_console(browser, server.url, place, token=debugger) as shown:
            shown.see(fixed, "LookupError: no order 17", "breaking.py:2 in fail")
        with open_console(browser, server.url, place, token=token(server)) as shown:
            shown.see(fixed)
            expect(shown.page.locator(".cause")).to_have_count(0)
