"""Valid and invalid shared secrets (docs/internals/security-cases.md A05, A10, A13)."""

from __future__ import annotations

import base64
import json
import random
from itertools import count

import pytest
from cryptography.hazmat.primitives import serialization

from agentctl.auth.tokens.jws import verify_token
from agentctl.errors import InvalidKey
from tests.auth.test_keys import EC_JWK, explicit
from tests.auth.verifiers import load_texts
from tests.kit.forged_tokens import b64, compact, ec_pair, hs, rsa_pair, token

DER = serialization.Encoding.DER


def refusal(text: str) -> str:
    """Return the error of a secret, or an empty text if it is valid."""
    try:
        load_texts([text], "HS256")
    except InvalidKey as failure:
        return failure.detail
    return ""


def random_bytes_like(alphabet: str, length: int = 40) -> str:
    """The same text every time, of all of the alphabet."""
    chance = random.Random(7)
    rest = chance.choices(alphabet, k=length - len(alphabet))
    return alphabet + "".join(rest)


def random_bytes(size: int) -> bytes:
    """Return the same bytes in every run: one in some thousand random secrets looks like a key."""
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize(
    "text",
    [
        "A" * 40 + b64(random_bytes(32)),
        random_bytes(64).hex(),
        base64.b64encode(random_bytes(64)).decode(),
        "-----" + b64(random_bytes(32)),
        '{"' + b64(random_bytes(32)),
        "correct horse battery staple, and a comma that nobody expects",
        "0" + b64(random_bytes(40)),
        "\u00e9" * 3 + b64(random_bytes(40)),
        "sk-" + b64(random_bytes(40)),
        "ssh-" + b64(random_bytes(40)),
        b64(b"sk-" + random_bytes(40)),
        b64(b"\x04" + random_bytes(64)),
        b64(b"\x30" + random_bytes(64)),
        b64(b"\xff" + random_bytes(254) + b"\xfe"),
        b64(b"\xff" + (3**1280).to_bytes(254, "big") + b"\xff"),
        b64(b"\x7f" + random_bytes(254) + b"\xff"),
        b64(random_bytes(257)),
    ],
    ids=range(17),
)
def test_random_secrets_are_accepted(text: str) -> None:
    assert load_texts([text], "HS256")


def test_secret_needs_five_different_bytes() -> None:
    assert refusal(random_bytes_like("abcd")) == "Key 1 is a secret that is easy to guess"
    assert refusal(random_bytes_like("abcde")) == ""


@pytest.mark.parametrize("piece", ["abcdefgh" * 2, "abcdefghijk", "correct horse battery staple"])
def test_repeated_piece_is_rejected(piece: str) -> None:
    for times in (2, 3, 4, 7):
        if len(piece) * times >= 32:
            assert refusal(piece * times) == "Key 1 is a secret that is easy to guess"
            assert refusal(piece * times + "!") == ""
            assert refusal("!" + piece * times) == ""


@pytest.mark.parametrize(
    "sample",
    [
        "a-string-secret-at-least-256-bits-long",
        "a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
        "09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
        "404E635266556A586E3272357538782F413F4428472B4B6250645367566B5970",
    ],
)
def test_secrets_of_tutorials_are_rejected(sample: str) -> None:
    assert refusal(sample) == "Key 1 is a secret that is easy to guess"
    assert refusal(sample[:-1] + "_") == ""


KEY = "Key 1 is a key, not a shared secret"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("extra", range(4))
def test_base64_key_of_any_length_is_rejected(extra: int, mark: str) -> None:
    data = compact({**EC_JWK, "kid": "k" * extra})
    for text in (data.hex(), b64(data), base64.b64encode(data).decode(), json.dumps(EC_JWK)):
        assert refusal(mark + text) == KEY


@pytest.mark.parametrize("curve", ["P-256", "P-384", "P-521"])
def test_point_of_every_curve_is_rejected(curve: str) -> None:
    x962 = serialization.Encoding.X962
    form = serialization.PublicFormat
    point = ec_pair(curve).public.public_bytes(x962, form.UncompressedPoint)
    for data in (point, ec_pair(curve).public.public_bytes(x962, form.CompressedPoint)):
        assert refusal(b64(data)) == KEY
        assert refusal(data.hex()) == KEY
    moved = point[:-1] + bytes([point[-1] ^ 1])
    assert refusal(b64(moved)) == ""


def number(size: int, first: int, *, factor: int = 1) -> bytes:
    """An odd number of `size` bytes that begins with `first` and has no other small factor."""
    rest = random.Random(size).randbytes(size - 1)
    start = int.from_bytes(bytes([first]) + rest, "big") // factor * factor
    for step in count(1):
        value = start + step * factor
        if value % 2 and all((value // factor) % n for n in range(3, 2_500, 2)):
            return value.to_bytes(size, "big")
    raise AssertionError


@pytest.mark.parametrize("size", [256, 384, 512, 1024])
def test_bytes_like_a_modulus_are_rejected(size: int) -> None:
    assert refusal(b64(number(size, 0x80))) == KEY
    assert refusal(number(size, 0xC1).hex()) == KEY
    assert refusal(b64(b"\0" + number(size, 0x80))) == KEY


def test_bytes_unlike_a_modulus_are_accepted() -> None:
    others = {
        "a top bit of zero": number(256, 0x7F),
        "a byte more": number(257, 0x80),
        "a byte fewer": number(255, 0x80),
        "divided by 3": number(256, 0x90, factor=3),
        "divided by 5": number(256, 0x90, factor=5),
        "divided by 1999": number(256, 0x90, factor=1_999),
        "even": (int.from_bytes(number(256, 0x80), "big") + 1).to_bytes(256, "big"),
    }
    even = int.from_bytes(others["even"], "big")
    while not all(even % n for n in range(3, 2_500, 2)):
        even += 2
    others["even, and no other small factor"] = even.to_bytes(256, "big")
    assert {name: refusal(b64(data)) for name, data in others.items()} == dict.fromkeys(others, "")


def test_unsupported_keys_are_rejected_as_secrets() -> None:
    encrypted = ec_pair().private.private_bytes(
        DER, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    assert refusal(b64(encrypted)) == KEY
    assert refusal(b64(explicit(ec_pair().spki(DER)))) == KEY


def test_deeply_nested_text_is_accepted() -> None:
    text = "".join(f"[{number}," for number in range(5_000))
    assert refusal(text) == ""
    assert refusal(b64(text.encode())) == ""


@pytest.mark.parametrize("end", ["X", "=", " ", "\t", "\u00a0", "\0"])
def test_only_line_breaks_are_removed(end: str) -> None:
    secret = b64(random_bytes(40)) + end
    keys = load_texts([secret + "\r\n\n"], "HS256")
    assert verify_token(token({"alg": "HS256"}, {}, hs(secret.encode())), keys)


def test_public_key_in_any_encoding_is_rejected() -> None:
    pair = rsa_pair()
    for text in (pair.pem, pair.private_pem, b64(pair.spki(DER)), pair.spki(DER).hex(":")):
        assert refusal(text) == KEY
