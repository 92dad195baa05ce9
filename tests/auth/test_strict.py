"""Strict base64url and JSON: each value has one text."""

from __future__ import annotations

import itertools

import pytest

from agentctl.records.strict import (
    NotStrict,
    decode_base64url,
    encode_base64url,
    parse_json,
    parse_object,
)

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

FIRST_CHARACTERS = "AZaz09-_"
"""First characters of texts of three: with all of them, the test takes half a second."""


def test_each_short_value_has_one_base64url_text() -> None:
    """Each text of no, two or three characters decodes to different bytes."""
    characters_of_texts = itertools.chain(
        [()],
        itertools.product(ALPHABET, repeat=2),
        itertools.product(FIRST_CHARACTERS, ALPHABET, ALPHABET),
    )

    found: dict[bytes, str] = {}
    for characters in characters_of_texts:
        text = "".join(characters)
        try:
            data = decode_base64url(text)
        except NotStrict:
            continue
        assert found.setdefault(data, text) == text
        assert encode_base64url(data) == text

    # The second character of two has 2 bits that count, the third one of three has 4.
    assert len(found) == 1 + 64 * 2**2 + len(FIRST_CHARACTERS) * 64 * 2**4


@pytest.mark.parametrize(
    "text", ["A", "AAAAA", "A=", "AA==", "AA=", "AAA=", "AA\n", " AA", "A+/A", ""]
)
def test_lax_base64url_is_rejected(text: str) -> None:
    if not text:
        assert decode_base64url(text) == b""
        return
    with pytest.raises(NotStrict):
        decode_base64url(text)


def test_json_numbers_keep_their_type() -> None:
    members = parse_object(b'{"a":1,"b":1.0,"c":1e2,"d":-0,"e":true}')
    assert [type(value) for value in members.values()] == [int, float, float, int, bool]


def test_errors_never_repeat_the_input() -> None:
    for data in (
        b'{"secret":NaN}',
        b'{"secret":1,"secret":2}',
        b"secret",
        b"\xffsecret",
        b'["secret"]',
    ):
        with pytest.raises(NotStrict) as refusal:
            parse_object(data)
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"\\u0061":2}', "names a member twice"),
        ('[{"a":[NaN]}]', "has a number that JSON does not know"),
        ("[-Infinity]", "has a number that JSON does not know"),
        ("[1e999]", "has a number that is too large"),
        ("[" * 100_000, "is not JSON"),
        ("9" * 5_000, "is not JSON"),
        ("\ufeff{}", "is not JSON"),
        ("{} {}", "is not JSON"),
        ("", "is not JSON"),
    ],
    ids=lambda text: text[:20],
)
def test_lax_json_is_rejected_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(NotStrict) as refusal:
        parse_json(text)
    assert str(refusal.value) == reason


def test_only_tokens_have_a_bound_of_levels_and_digits() -> None:
    deep = '{"a":' * 9 + "1" + "}" * 9
    long = '{"a":' + "1" * 65 + "}"
    assert parse_json(long) == {"a": int("1" * 65)}
    assert parse_json(deep)["a"]
    for text in (deep, long):
        with pytest.raises(NotStrict):
            parse_object(text.encode())
