"""Functions of the pages that need no page: words of filters, questions, numbers, looks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import playwright

from agentctl.transcripts.texts import PHASE_LOOKS
from tests.kit.conditions import PATIENCE
from tests.kit.vendored import ROOT

NODE = Path(playwright.__file__).parent / "driver/node"
"""The interpreter that drives the browser of the other tests: the machine needs none."""

APP = ROOT / "agentctl/server/console/app"

PAGE = """
globalThis.location = { hash: "", pathname: "/console", search: "" };
globalThis.addEventListener = () => {};
globalThis.document = {
    baseURI: "http://127.0.0.1/console",
    querySelector: () => ({ content: "" }),
    addEventListener() {},
};
"""
"""The requests of a module of the console to its page when it is loaded."""


def call_js(module: str, code: str) -> Any:
    """Return the value of an expression with the exports of a module, such as `LOOKS`."""
    names = f"const {{ {', '.join(_find_exports(module))} }} = await import('{APP / module}');"
    script = f"{PAGE}{names}\nconsole.log(JSON.stringify({code}));\nprocess.exit(0);"
    command = [str(NODE), "--input-type=module", "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _find_exports(module: str) -> list[str]:
    lines = (APP / module).read_text().splitlines()
    exports = (line.split() for line in lines if line.startswith("export ") and line[7] != "{")
    return [words[3 if words[1] == "async" else 2].partition("(")[0] for words in exports]


KEYS = """[
    {key: "status", about: "the state", values: [["failed", "ERROR"], ["paused", "PAUSED"]],
     more: {all: "1"}},
    {key: "user", about: "the user of the run"},
    {key: "ended-since", name: "since", about: "a time in RFC 3339"},
]"""
"""Filters of a list: words and their values, a parameter with another name."""

WORDS = '{name: "search", more: {all: "1"}}'
"""The filter of words without a key."""

CHANGES = {
    "status:failed user:me": {"all": "1", "status": "ERROR", "user": "me"},
    "STATUS:failed": {"search": "STATUS:failed", "all": "1"},
    "status:FAILED": {"all": "1", "status": "ERROR"},
    'user:"ada lovelace"': {"user": "ada lovelace"},
    "ended-since:2026-01-01T00:00Z": {"since": "2026-01-01T00:00Z"},
    'status:paused "cake" and tea': {"all": "1", "status": "PAUSED", "search": "cake and tea"},
    '"a:b"': {"all": "1", "search": "a:b"},
    "  ": {},
}
"""Typed words, and the parameters of the place that they change."""

MESSAGES = {
    "stauts:failed": "Unknown filter stauts. This list has: status, user, ended-since."
    ' Write a word with a colon in quotation marks: "a:b".',
    "status:wrong": "status cannot be wrong: failed, paused.",
    "status:": "status needs a value: failed, paused.",
    "user:": "user needs a value: the user of the run.",
}


def test_words_of_a_list_change_its_place() -> None:
    texts = [*CHANGES, *MESSAGES]
    code = f"{json.dumps(texts)}.map((text) => readFilters(text, {KEYS}, {WORDS}))"
    found = dict(zip(texts, call_js("filters.js", code), strict=True))
    for text, changes in CHANGES.items():
        assert found[text] == {"changes": changes}, text
    for text, message in MESSAGES.items():
        assert found[text] == {"message": message}, text


def test_list_without_a_search_takes_filters_only() -> None:
    unsearched = call_js("filters.js", f'readFilters("cake", {KEYS})')
    assert unsearched == {
        "message": "This list has no text search. Use a filter and a value, such as status:failed."
    }
    unknown = call_js("filters.js", f'readFilters("cake:17", {KEYS})')
    assert unknown == {"message": "Unknown filter cake. This list has: status, user, ended-since."}


COMPLETIONS = {
    "": ["status:", "user:", "ended-since:"],
    "us": ["user:"],
    "nothing": [],
    "status:": ["status:failed", "status:paused"],
    "user:me status:pa": ["user:me status:paused"],
    "user:": [],
    '"in quotation st': [],
}


def test_keys_and_values_are_completed() -> None:
    code = f"{json.dumps(list(COMPLETIONS))}.map((text) => complete(text, {KEYS}))"
    found = call_js("filters.js", code)
    for text, options in zip(COMPLETIONS, found, strict=True):
        assert [option["text"] for option in options] == COMPLETIONS[text], text


REQUESTS: list[tuple[str, dict[str, Any], str, bool]] = [
    ("refund_order", {"order": 17, "urgent": True}, "refund order 17, urgent yes", True),
    ("refund", {"order": "A", "amount": 3}, "refund order A, amount 3", True),
    ("mailCustomer", {"subject": "Your order"}, "mail customer subject “Your order”", True),
    ("refund", {}, "refund", True),
    ("refund", {"order": "words " * 20}, "refund", False),
    ("refund", {"lines": [1, 2]}, "refund", False),
    ("refund", {"order": None}, "refund", False),
    ("refund", {"order": "\u202e17"}, "refund order “\\u202e17”", True),
]
"""Calls, the words about each, and True if these have all arguments."""


def test_call_is_asked_about_in_a_sentence() -> None:
    approvals = [
        {"kind": "approval", "tool_name": name, "arguments": values}
        for name, values, *_ in REQUESTS
    ]
    code = f'{json.dumps(approvals)}.map((each) => describeRequest(each, "Clerk"))'
    said = call_js("plain.js", code)
    assert said == [
        {"sentence": f"Clerk wants to {words}", "isWhole": is_whole}
        for _, _, words, is_whole in REQUESTS
    ]


def test_other_requests_are_asked_about_in_their_words() -> None:
    sentences = {
        "input": "Clerk needs an answer",
        "outcome": "Clerk may have made this call: pay amount 3",
        "external": "Clerk needs the result of pay amount 3",
    }
    calls = [{"kind": kind, "tool_name": "pay", "arguments": {"amount": 3}} for kind in sentences]
    code = f'{json.dumps(calls)}.map((each) => describeRequest(each, "Clerk").sentence)'
    assert call_js("plain.js", code) == list(sentences.values())


EXACT = (
    '{"id":9007199254740993,"price":1.50,"small":17,"text":"9007199254740993"}',
    "[-9007199254740993,9007199254740992,1e400]",
)


def test_integers_of_any_size_are_read_and_written() -> None:
    code = f"{json.dumps(EXACT)}.map((text) => writeExact(readExact(text)))"
    first, second = call_js("exact.js", code)
    assert first == EXACT[0].replace("1.50", "1.5")
    assert second == "[-9007199254740993,9007199254740992,null]"


TEXTS = {
    "plain\u202etext": "plain\\u202etext",
    "\u001b[31m": "\\u001b[31m",
    "\u0645\u06cc\u200c\u062e\u0648": "\u0645\u06cc\u200c\u062e\u0648",
    "loose\u200d \u200chidden": "loose\\u200d \\u200chidden",
    "\U0001f469\u200d\U0001f467": "\U0001f469\u200d\U0001f467",
    "two\nlines\tand a tab": "two\nlines\tand a tab",
}
"""Texts, and what a page shows: directions and controls written out, joiners inside words kept."""


def test_texts_show_what_they_hide() -> None:
    assert call_js("ui.js", f"{json.dumps(list(TEXTS))}.map(printable)") == list(TEXTS.values())


def test_looks_of_phases_are_those_of_the_terminal() -> None:
    looks = call_js("ui.js", "LOOKS")
    assert looks == {name: [look.glyph, look.color] for name, look in PHASE_LOOKS.items()}


FORMATS = """[
    formatDuration(340), formatDuration(1_234), formatDuration(12_345), formatDuration(184_000),
    formatSpan(45), formatSpan(720), formatSpan(11_100), formatSpan(777_600), formatSpan(86_399),
    formatSize(69), formatSize(2_048), formatSize(3_000_000),
    formatTotal({total_count: 1}, "run"),
    formatTotal({total_count: 10_000, total_is_capped: true}, "run"),
    costOf({cost: 0.000021, unpriced_tokens: 3}), costOf({cost: null}),
    shortCostOf({cost: 0.00001}),
    formatAgo("2026-01-01T00:00:00Z", Date.parse("2026-01-01T00:12:00Z")),
]"""


def test_numbers_and_times_have_units() -> None:
    assert call_js("ui.js", FORMATS) == [
        *("340 ms", "1.2 s", "12 s", "3 min 4 s"),
        *("45 s", "12 min", "3 h 5 min", "9 d", "1 d"),
        *("69 B", "2 KB", "2.9 MB"),
        *("1 run", "10,000+ runs"),
        *("≥ $0.000021", "", "< $0.0001"),
        "12 min ago",
    ]
