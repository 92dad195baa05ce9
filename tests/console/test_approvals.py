"""Approvals in the console: the page, the transcript, the timeline and the lists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from tests.approvals.people import APPROVER, USER, People
from tests.console.test_widths import SMALL_TARGETS, WIDTHS, check_layout
from tests.kit.browser import (
    HOSTILE,
    PRESS,
    ConsolePage,
    check_accessibility,
    check_view,
    expect,
    needs_browser,
    open_console,
)
from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

pytestmark = needs_browser

AGENTS = """
[[models]]
id = "tool-pay"
provider = "openai"
model = "tool:pay"
base_url = "{url}"

[[agents]]
id = "payer"
name = "Payer"
object = "paying_agent:wait_for_people"

[[agents]]
id = "clerk"
name = "Clerk"
model = "tool-pay"
tools = ["paying_tools:pay"]
approve = {{ pay = "user" }}

[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[agents]]
id = "planner"
name = "Planner"
model = "plan"
tools = ["paying_tools:pay"]
approve = {{ pay = "user" }}

[[teams]]
id = "counter"
name = "Counter"
mode = "broadcast"
model = "echo"
members = ["clerk", "echo"]
"""

TOOLS = """
def pay(amount: int, note: str = "") -> str:
    return f"paid {amount}"
"""

LARGE = 2**53 + 1
"""An integer that JavaScript rounds."""


@pytest.fixture(scope="module")
def people(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[People]:
    """People who use a server with an agent that waits for them."""
    folder = tmp_path_factory.mktemp("asking")
    shutil.copy(Path(__file__).parents[1] / "approvals" / "paying_agent.py", folder)
    (folder / "ledger.jsonl").touch()
    (folder / "paying_tools.py").write_text(TOOLS)
    url = model_endpoint.base_url
    deployment = create_deployment(folder, url, extra=AGENTS.format(url=url))
    with serve_in_thread(deployment) as host:
        yield People(host)


def open_as(people: People, browser: Browser, name: str, place: str, *scopes: str) -> Any:
    """Open a place of the console as a person."""
    given = scopes or {"eve": APPROVER, "root": (ADMIN,)}.get(name, USER)
    key = people.host.deployment.token(name, *given)
    return open_console(browser, people.host.url, place, token=key)


def place_of(people: People, run: dict[str, Any]) -> str:
    approval = people.approvals(run)[0]
    return f"#/approvals/agent/payer/{approval['approval_id']}"


def test_approver_edits_and_approves_the_shown_call(people: People, browser: Browser) -> None:
    run = people.start("large", session_id="edited")
    with open_as(people, browser, "eve", "#/approvals?user=ann") as shown:
        row = shown.page.locator("tbody tr[data-approval]")
        expect(row).to_have_count(1)
        expect(row).to_contain_text(f'amount={LARGE}, to="bob"')
        expect(shown.page.locator("nav [data-waiting]")).to_have_text("1 waiting")
        check_view(shown)
        shown.page.keyboard.press("j")
        shown.page.keyboard.press("Enter")
        shown.see("payer wants to pay", "the user of the run, or an approver", "edited", str(LARGE))
        expect(shown.page.locator("dd a")).to_have_count(0)  # no right to read the session
        expect(shown.page.locator("[data-turn]")).to_have_count(0)
        shown.page.click("text=Edit the arguments")
        field = shown.page.locator("textarea[name=arguments]")
        exact = field.input_value()
        field.fill('{"amount": 10, ')
        expect(shown.page.locator("[role=alert]")).to_contain_text("Not JSON")
        expect(shown.page.locator("button[type=submit]")).to_be_disabled()
        field.fill(exact.replace("bob", "ben"))
        expect(shown.page.locator("[data-difference] tbody tr")).to_have_text("tobobben")
        check_view(shown)
        shown.page.fill("input[name=note]", "ben is right")
        with shown.page.expect_request("**/decide") as sent:
            shown.page.click("text=Approve with changes")
        approval = people.approvals(run)[0]
        assert sent.value.post_data_json["arguments_hash"] == approval["arguments_hash"]
        expect(shown.page.locator("nav [data-waiting]")).to_have_count(0)
        people.wait_for_end(run)
        shown.page.reload()
        expect(shown.page.locator("[data-decided]")).to_contain_text("approved · done by eve")
        shown.see("ben is right", "Approved with changes")
    assert people.payments[-1] == {"amount": LARGE, "to": "ben"}


def test_page_shows_the_turn_that_led_to_the_call(people: People, browser: Browser) -> None:
    call = {"name": "pay", "arguments": '{"amount": 5}'}
    calls = [{"id": "c1", "type": "function", "function": call}]
    message = json.dumps([{"content": "The bill of May is open.", "tool_calls": calls}])
    approval = people.approvals(people.start(message, agent="planner"))[0]
    place = f"#/approvals/agent/planner/{approval['approval_id']}"
    with open_as(people, browser, "root", place) as shown:
        turn = shown.page.locator("[data-turn]")
        expect(turn.locator("dt")).to_have_text(["ann", "answer"])
        expect(turn.locator("dd")).to_have_text([message, "The bill of May is open."])
    people.decide(approval, "reject")


def test_late_decision_shows_who_decided(people: People, browser: Browser) -> None:
    run = people.start("other")
    frozen = [True]

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            frozen[0] = False
        if frozen[0]:
            route.fulfill(status=304)
        else:
            route.continue_()

    with open_as(people, browser, "eve", place_of(people, run)) as shown:
        shown.page.wait_for_selector("[data-decision]")
        shown.page.route("**/approvals/**", answer)
        assert people.decide(people.approvals(run)[0], "reject", name="root").is_success
        with shown.page.expect_response("**/decide") as answered:
            shown.page.click("button[type=submit]")
        assert answered.value.status == 409
        expect(shown.page.locator("[data-refusal]")).to_contain_text("is rejected by root already")
        expect(shown.page.locator("[data-decided]")).to_contain_text("✗ rejected by root")


def test_own_run_needs_another_person(people: People, browser: Browser) -> None:
    run = people.start("other")
    with open_as(people, browser, "ann", place_of(people, run), *USER, *APPROVER) as shown:
        expect(shown.page.locator("dd a")).to_have_count(2)
        shown.page.click("button[type=submit]")
        refusal = shown.page.locator("[data-refusal]")
        expect(refusal).to_contain_text("Four eyes. The policy of this call is other")
        expect(refusal).to_contain_text("approvals:payer:write")
        assert people.approvals(run)[0]["status"] == "pending"
    people.decide(people.approvals(run)[0], "reject")


def test_a_question_is_answered_in_the_chat(people: People, browser: Browser) -> None:
    run = people.start("ask", session_id="asked-in-chat")
    key = people.host.deployment.token("ann", *USER)
    place = "#/sessions/asked-in-chat"
    with open_console(browser, people.host.url, place, token=key, name="chat") as shown:
        form = shown.page.locator("[data-waits]")
        expect(form).to_contain_text("Which way?")
        form.locator("select[name=answer-]").select_option(label="left")
        form.locator("button[type=submit]").click()
        expect(shown.page.locator(".turn")).to_contain_text("Results: left")
    assert people.wait_for_end(run)["content"] == "Results: left"


def expect_decided(shown: ConsolePage, words: str) -> None:
    expect(shown.page.locator("[data-decided]")).to_contain_text(words)


def answer_question(shown: ConsolePage) -> None:
    """Send a question first without its answer, and then with one of the two that it names."""
    shown.see("Which way?", "Question")
    shown.page.click("button[type=submit]")
    shown.see("The answer is required")
    shown.page.select_option("select[name=answer-]", label="left")
    shown.page.click("button[type=submit]")
    expect_decided(shown, "answered by eve")


def fill_form(shown: ConsolePage) -> None:
    """Send a form first with a text for a number, and then with values of the right types."""
    shown.see("Which seats?", "as in the passport")
    shown.page.fill("[name=answer-seats]", "two")
    shown.page.select_option("[name=answer-window]", label="yes")
    shown.page.click("button[type=submit]")
    shown.see("seats must be an integer")
    shown.page.fill("[name=answer-seats]", "2")
    shown.page.select_option("[name=answer-class]", label="second")
    shown.page.click("button[type=submit]")
    expect_decided(shown, "answered by eve")


def report_result_of_open_call(shown: ConsolePage) -> None:
    """Complete a call that the caller makes: first with broken JSON, and then with an object."""
    shown.page.fill("textarea[name=result]", "{")
    shown.page.check("text=The result is JSON")
    shown.see("Not JSON", "The caller makes this call")
    shown.page.fill("textarea[name=result]", '{"lines": 3}')
    shown.page.click("text=Complete")
    expect_decided(shown, "answered · done by eve")


def report_result_of_lost_call(shown: ConsolePage) -> None:
    """Say what a call has done whose process has died."""
    shown.see("It is not known whether pay had its effect.", "it has it twice")
    expect(shown.page.locator("button[type=submit]")).to_be_disabled()
    shown.page.check("input[value=complete]")
    shown.page.fill("textarea[name=result]", "paid at noon")
    shown.page.click("text=Report the result")
    expect_decided(shown, "answered · done by eve")


def reject_call(shown: ConsolePage) -> None:
    shown.page.fill("input[name=note]", "too much")
    shown.page.click("button.danger")
    expect_decided(shown, "✗ rejected by eve")


ANSWERS: dict[str, Callable[[ConsolePage], None]] = {
    "ask": answer_question,
    "form": fill_form,
    "open": report_result_of_open_call,
    "lost": report_result_of_lost_call,
    "other": reject_call,
}
"""The messages of runs of the payer, and what a person does on the page of their requests."""


def test_every_kind_of_request_is_answered(people: People, browser: Browser) -> None:
    runs = {message: people.start(message, name="ben") for message in ANSWERS}
    with open_as(people, browser, "eve", "#/approvals") as shown:
        for message, answer in ANSWERS.items():
            shown.go(place_of(people, runs[message]))
            answer(shown)

        shown.go("#/approvals?user=ben")
        shown.see("No approvals match.")
        shown.page.click("button:text-is('All')")
        rows = shown.page.locator("tbody tr[data-approval]")
        expect(rows).to_have_count(5)
        shown.filter("status:rejected")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("by eve · pay(")

    contents = {
        message: people.wait_for_end(runs[message])["content"]
        for message in ("ask", "form", "open", "other")
    }
    assert contents["ask"] == "Results: left"
    assert contents["form"] == "Results: {'seats': 2, 'window': True, 'class': 'second'}"
    assert contents["open"] == 'Results: {"lines":3}'
    assert "rejected: too much" in contents["other"]
    approval = people.approvals(runs["lost"])[0]
    assert (approval["execution"], approval["result"]) == ("done", "paid at noon")


def test_reader_of_approvals_decides_nothing(people: People, browser: Browser) -> None:
    run = people.start("other")
    with open_as(people, browser, "ann", place_of(people, run), "approvals:read") as shown:
        shown.see("Another person than the user of the run", "approvals:payer:write")
        expect(shown.page.locator("form")).to_have_count(0)
    people.decide(people.approvals(run)[0], "reject")


def test_new_approvals_are_notified_on_request(people: People, browser: Browser) -> None:
    with open_as(people, browser, "eve", "#/approvals") as shown:
        shown.page.evaluate(RECORD_NOTIFICATIONS, "denied")
        notify = shown.page.locator("button:has-text('Notify me')")
        notify.click()
        shown.see("The browser refuses notifications of this site")
        expect(notify).to_have_attribute("aria-pressed", "false")
        shown.page.evaluate(RECORD_NOTIFICATIONS, "granted")
        notify.click()
        expect(notify).to_have_attribute("aria-pressed", "true")
        run = people.start("ask", name="notified")
        approval = people.approvals(run)[0]
        wait_for(lambda: shown.evaluate("sent.length") == 1)
        assert shown.evaluate("sent.map(each => each.texts)") == [
            [f"Approval needed: {approval['tool_name']}", approval["component_id"]]
        ]
        shown.evaluate("sent[0].onclick()")
        expect(shown.page.locator("h1")).to_have_text(approval["question"])
        assert shown.evaluate("location.hash").endswith(approval["approval_id"])


RECORD_NOTIFICATIONS = """answer => {
    window.sent = [];
    window.Notification = class {
        static requestPermission = async () => answer;
        constructor(title, { body }) { this.texts = [title, body]; sent.push(this); }
        close() {}
    };
}"""
"""Replace the notifications of the browser, which a test cannot see, by a list."""


def test_list_is_filtered(people: People, browser: Browser) -> None:
    runs = [people.start(word, name="ben") for word in ("ask", "user")]
    people.decide(people.approvals(runs[0])[0], "reject")
    with open_as(people, browser, "eve", "#/access") as shown:
        shown.see("Identity")
        shown.evaluate(PRESS, ["g", "p"])
        shown.filter("user:ben")
        rows = shown.page.locator("tbody tr[data-approval]")
        expect(rows).to_have_count(1)
        shown.page.click("button:text-is('All')")
        expect(rows).to_have_count(2)
        shown.filter("status:rejected")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("by eve · ask(")
        shown.go("#/approvals?all=1&user=ben&tool=pay")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("amount=10")
        shown.go("#/approvals?all=1&user=ben&kind=external")
        shown.see("No approvals match.")
    people.decide(people.approvals(runs[1])[0], "reject")


def test_user_decides_in_the_transcript(people: People, browser: Browser) -> None:
    """The run goes on in the page, for a token without any scope on approvals."""
    people.start("none", session_id="in-place")
    with open_as(people, browser, "ann", "#/sessions/in-place") as shown:
        page = shown.page
        shown.see("Results:")
        page.fill("[data-message]", "user | ask")
        page.keyboard.press("Enter")
        shown.see("for approval of pay", "‖ paused")
        page.click("[aria-label='Decide: approval of pay']")
        dialog = page.locator("dialog")
        expect(dialog).to_contain_text("amount10")
        check_view(shown)
        page.fill("dialog input[name=note]", "as agreed")
        page.click("dialog button[type=submit]")
        shown.see("for an answer to ask")
        expect(page.locator("[data-decided]")).to_contain_text("✓ approved · done by ann")
        expect(page.locator("[data-decided]")).to_contain_text("as agreed")
        page.click("[aria-label='Decide: an answer to ask']")
        expect(dialog).to_contain_text("Which way?")
        page.select_option("dialog select", label="right")
        page.click("dialog button[type=submit]")
        expect(page.locator(".turn .status").last).to_contain_text("✓")
        expect(page.locator(".turn").last).to_contain_text("Results: right")
        expect(page.locator("[data-decided]")).to_have_count(2)
        expect(page.locator("dialog")).to_have_count(0)


def test_decided_calls_have_their_decision_below(people: People, browser: Browser) -> None:
    run = people.start('{"amount": 3}', agent="clerk", session_id="gated")
    scopes = (*USER, "teams:read", "teams:run")
    with open_as(people, browser, "ann", "#/sessions/gated", *scopes) as shown:
        page = shown.page
        call = page.locator(".fold .line")
        expect(call).to_contain_text("pay(amount=3)")
        expect(call).to_contain_text("‖")
        page.click("[data-waits] button")
        page.click("dialog button[type=submit]")
        expect(call).to_contain_text("paid 3")
        expect(page.locator(".fold + [data-decided]")).to_contain_text("✓ approved · done")
        expect(page.locator(".turn .status").first).to_have_text("✓ completed")
        people.wait_for_end(run, "COMPLETED")

        # A call of a member is decided in the run of its team.
        shown.go("#/agents/teams/counter")
        page.fill("[data-message]", '{"amount": 4}')
        page.click("button:text-is('Start')")
        page.click("[data-waits] button")
        expect(page.locator("dialog")).to_contain_text("amount4")
        page.click("dialog button[type=submit]")
        expect(page.locator(".turn .status").first).to_have_text("✓ completed")
        page.click("[data-member] >> text=Clerk")
        expect(page.locator("[data-member] [data-decided]")).to_contain_text("approved")


def test_hostile_arguments_are_shown_as_text(people: People, browser: Browser) -> None:
    call = {"amount": 1, "note": f"{HOSTILE} <img src=x onerror=alert(1)>"}
    run = people.start(json.dumps(call), agent="clerk", session_id="hostile")
    place = place_of(people, run).replace("payer", "clerk")
    with open_as(people, browser, "root", "#/approvals") as shown:
        for each in ("#/approvals?user=ann", f"#/runs/{run['run_id']}/timeline", place):
            shown.go(each)
            shown.page.wait_for_selector("tbody tr, [data-span=pause], [data-decision]")
            assert shown.evaluate("document.querySelectorAll('#app img, #app script').length") == 0
            assert "\u202e" not in shown.page.locator("#app").inner_text()
        shown.see("\\u202e", "<img src=x onerror=alert(1)>")
        shown.page.click("button.danger")
        expect(shown.page.locator("[data-decided]")).to_contain_text("rejected")


def test_transcript_goes_on_after_the_decision_of_another(people: People, browser: Browser) -> None:
    run = people.start("other", session_id="elsewhere")
    with open_as(people, browser, "ann", "#/sessions/elsewhere") as shown:
        shown.see("for approval of pay", "needs approvals:payer:write")
        expect(shown.page.locator("[data-waits] button")).to_have_count(0)
        people.decide(people.approvals(run)[0], "approve", note="checked")
        expect(shown.page.locator(".turn")).to_contain_text("Results: paid")
        expect(shown.page.locator("[data-decided]")).to_contain_text("approved · done by eve")
        expect(shown.page.locator("[data-waits]")).to_have_count(0)


def test_paused_runs_in_lists_and_timeline(people: People, browser: Browser) -> None:
    run = people.start("user", name="ben", session_id="listed")
    with open_as(people, browser, "ben", "#/sessions") as shown:
        expect(shown.page.locator("tbody .status").first).to_have_text("‖ paused")
        shown.go(f"#/runs/{run['run_id']}/timeline")
        bar = shown.page.locator("[data-span=pause]")
        expect(bar).to_contain_text("pay · waits")
        bar.click()
        expect(shown.page.locator("[data-chosen]")).to_contain_text("waits")
        shown.go("#/runs?all=paused&session=listed")
        shown.see("1 paused run", "waits", "for approval of pay")
        shown.page.click("tbody button")
        shown.page.click("dialog .danger")
        expect(shown.page.locator("dialog")).to_contain_text("1 of 1")
        shown.page.keyboard.press("Escape")
        shown.go(f"#/runs/{run['run_id']}/timeline")
        expect(bar).to_contain_text("pay · cancelled")
    assert people.approvals(run)[0]["status"] == "cancelled"


@pytest.mark.parametrize("width", WIDTHS)
def test_approvals_hold_at_any_width(people: People, browser: Browser, width: int) -> None:
    run = people.start("user form lost", session_id=f"wide-{width}")
    size: Any = {"width": width, "height": 800}
    with open_as(people, browser, "root", "#/approvals") as shown:
        shown.page.set_viewport_size(size)
        shown.page.wait_for_selector("tbody tr")
        check_layout(shown, minimum=100)
        for approval in people.approvals(run):
            shown.go(f"#/approvals/agent/payer/{approval['approval_id']}")
            shown.see(approval["approval_id"][:13])
            shown.page.wait_for_selector("[data-decision]")
            _open_details(shown)
            check_layout(shown)
            assert width > 699 or shown.evaluate(SMALL_TARGETS) == []
        shown.go(f"#/sessions/wide-{width}")
        shown.see("for the outcome of pay")
        check_layout(shown)
        shown.page.locator("[data-waits] button").last.click()
        shown.page.wait_for_selector("dialog [data-decision]")
        check_layout(shown)
    people.send("root", "POST", f"/agents/payer/runs/{run['run_id']}/cancel")


def test_approvals_are_accessible(people: People, browser: Browser) -> None:
    run = people.start("user ask lost", session_id="axe")
    with open_as(people, browser, "root", "#/approvals") as shown:
        shown.page.wait_for_selector("tbody tr")
        check_accessibility(shown)
        names = shown.page.get_by_role("link", name="Approvals")
        expect(names).to_contain_text("waiting")
        for approval in people.approvals(run):
            shown.go(f"#/approvals/agent/payer/{approval['approval_id']}")
            shown.page.wait_for_selector("[data-decision]")
            _open_details(shown)
            check_accessibility(shown)
        shown.go("#/sessions/axe")
        shown.see("for the outcome of pay")
        check_accessibility(shown)
        shown.page.locator("[data-waits] button").first.click()
        shown.page.wait_for_selector("dialog [data-decision]")
        check_accessibility(shown)
    people.send("root", "POST", f"/agents/payer/runs/{run['run_id']}/cancel")


def _open_details(shown: ConsolePage) -> None:
    shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    edit = shown.page.locator("text=Edit the arguments")
    if edit.count():
        edit.click()
        shown.page.fill("textarea[name=arguments]", '{"amount": 7, "to": "ben"}')
