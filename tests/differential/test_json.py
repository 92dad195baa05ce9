"""Strict JSON and base64url, and the count of values in a document, against json and orjson."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

import orjson
import pytest

from agentctl.records import strict
from agentctl.records.strict import NotStrict, decode_base64url, parse_json, parse_object
from tests.auth.test_fuzz_tokens import changed_bytes, changed_text
from tests.differential.comparison import Comparison, Outcome, attempt

NAMES = {"names a member twice": "RFC 8259 4: names are unique; RFC 7515 4"}
RULES = {
    **NAMES,
    "has a number that JSON does not know": "RFC 8259 6: no NaN, no Infinity",
    "has a number that is too large": "RFC 8259 6: no number that a double cannot have",
}
OBJECT_RULES = {
    **RULES,
    "has a number that is too long": "docs/internals/security-cases.md J13",
    "is nested deeper": "docs/internals/security-cases.md J13",
    "is not a JSON object": "RFC 7515 4, RFC 7517 5, RFC 7519 7.2",
}
WIDER = {"str is not valid UTF-8": "RFC 8259 8.2: an escaped lone surrogate is JSON"}

TEXTS = ["", "a", "é", "\U0001f600", "\\", '"', "\n", "\x7f", "[", "{{{{{{{{{", "\ud800", "NaN"]
NUMBERS: list[Any] = [0, -1, 1.5, -0.0, 1e300, 5e-324, 2**63, 2**64 + 1, 10**70, 0.1]


def random_value(chance: Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > chance.choice([2, 4, 10]) or kind < 0.3:
        return chance.choice([None, True, False, *NUMBERS, *TEXTS])
    inner = (random_value(chance, depth + 1) for _ in range(chance.choice([0, 1, 1, 2, 3])))
    return list(inner) if kind < 0.5 else {chance.choice(TEXTS): value for value in inner}


def random_document(chance: Random) -> bytes:
    """Return a document, mostly changed: in its text, in its bytes, or in its encoding."""
    separators = chance.choice([(",", ":"), (", ", " : "), (",\n", ":\t")])
    value = random_value(chance)
    text = json.dumps(value, separators=separators, ensure_ascii=chance.random() < 0.5)
    kind = chance.random()
    if kind < 0.2:
        text = changed_text(chance, text)
    elif kind < 0.35:
        odd = ["NaN", "Infinity", "1e999", "01", "1.", "+1", "'a'", "[1,]", "tru", "1" * 70, "//"]
        text = text.replace(chance.choice(["1", "null", "true", '"a"']), chance.choice(odd), 1)
    elif kind < 0.45:
        text = text.replace("{", '{"a":1,"\\u0061":2,', 1)
    elif kind < 0.5:
        text = "[" * chance.choice([7, 8, 9]) + text + "]" * chance.choice([7, 8, 9])
    data = text.encode("utf-8", "surrogatepass" if chance.random() < 0.1 else "replace")
    if chance.random() < 0.03:
        return text.encode(chance.choice(["utf-16", "utf-32", "utf-8-sig"]), "replace")
    return changed_bytes(chance, data) if chance.random() < 0.2 else data


def test_every_accepted_document_is_that_of_json_and_orjson() -> None:
    """The value is that of json; orjson makes doubles of integers of more than 64 bits."""
    with (
        Comparison("JSON", stricter=RULES) as values,
        Comparison("JSON, accepted by orjson", stricter=NAMES, wider=WIDER) as syntax,
        Comparison("JSON of tokens and keys", stricter=OBJECT_RULES) as objects,
    ):
        for _ in values.rounds(10_000):
            data = random_document(values.chance)
            text = data.decode("utf-8", "replace")
            own = attempt(lambda text=text: parse_json(text), NotStrict)  # type: ignore[misc]
            library = attempt(lambda text=text: json.loads(text), ValueError)  # type: ignore[misc]
            values.compare(text, own, library)
            other = attempt(lambda text=text: orjson.loads(text), ValueError)  # type: ignore[misc]
            if r"\ud" in text.lower() and other.refusal is not None:
                other = Outcome(refusal="str is not valid UTF-8: escaped surrogate")
            syntax.compare(text, own._replace(value=None), other._replace(value=None))
            objects.compare(
                data,
                attempt(lambda data=data: parse_object(data), NotStrict),  # type: ignore[misc]
                attempt(lambda data=data: json.loads(data.decode()), ValueError),  # type: ignore[misc]
            )
        assert values.accepted > 3_000


def test_every_accepted_base64url_is_that_of_the_standard_library() -> None:
    rules = {
        "has characters outside": "RFC 7515 2: no padding, no white space",
        "is not the canonical": "RFC 4648 3.5: unused bits are zero",
    }
    with Comparison("base64url", stricter=rules) as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(20_000):
            data = chance.randbytes(chance.randrange(12))
            text = base64.urlsafe_b64encode(data).decode().rstrip("=")
            place = chance.randrange(len(text) + 1)
            put = chance.choice(["", "", "A", "-", "+", "=", "\n", "é"])
            text = text[:place] + put + text[place + chance.choice([0, 0, 1]) :]
            comparison.compare(
                text,
                attempt(lambda text=text: decode_base64url(text), NotStrict),  # type: ignore[misc]
                attempt(
                    lambda text=text: base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)),  # type: ignore[misc]
                    ValueError,
                ),
            )
        assert comparison.accepted > 5_000


def count_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count_values, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(count_values, value))
    return 1


def test_count_of_values_is_that_of_the_parsed_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty container counts as two values, and the first value is free."""
    monkeypatch.setattr(strict, "MAXIMUM_VALUES", 8)
    with Comparison("count of values") as comparison:
        for _ in comparison.rounds(10_000):
            data = json.dumps(random_value(comparison.chance)).encode()
            number = count_values(json.loads(data))
            refused = strict.has_too_many_values(data)
            in_doubt = 4 < number <= 9
            comparison.compare(data, Outcome(refused), Outcome(refused if in_doubt else number > 8))
