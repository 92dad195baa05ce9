"""Hostile credentials give InvalidToken, fast and without network access."""

from __future__ import annotations

import hashlib
import math
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from agentctl.auth.keys.material import VerificationKey
from agentctl.auth.tokens.algorithms import ALGORITHMS, MAXIMUM_TOKEN
from agentctl.auth.tokens.jwk import public_jwk
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Settings
from agentctl.errors import InvalidToken
from tests.auth.hostile import CASES, CLAIMS, OURS, RS, SERVERS, THEIRS, padded, signed
from tests.auth.hostile_signatures import (
    JWKS,
    SIGNERS,
    build_signatures,
    correct_block,
    high_s,
    server,
    sets,
)
from tests.auth.verifiers import JWT_CHECK_NAMES, load_texts
from tests.kit.forged_tokens import NOW, compact, ec_pair, ed_pair, es, rs, rsa_pair, token
from tests.kit.tables import every_row


@cache
def verifier(name: str) -> Verifier:
    given = SERVERS[name] if name in SERVERS else server(name)
    return Verifier(Settings(authorization=given), clock=lambda: NOW)


def keys() -> KeySet:
    return load_texts([OURS.pem], "RS256")


def catch_invalid_token(act: Callable[[], object], text: str) -> InvalidToken:
    """Return the InvalidToken of `act`, whose short reason never repeats the token."""
    with pytest.raises(InvalidToken) as caught:
        act()
    error = caught.value
    assert type(error) is InvalidToken
    assert error.check in JWT_CHECK_NAMES
    assert 0 < len(error.reason) < 100
    assert error.reason.isprintable()
    told = f"{error} {error.reason} {error.detail} {error.cause} {error.hint}"
    pieces = [piece for piece in text.split(".") if len(piece) > 11]
    assert not any(piece in told for piece in pieces), "the token is never repeated"
    return error


def test_table_has_all_groups_of_cases() -> None:
    names = [*CASES, *build_signatures(), *dict(sets())]
    assert len(names) == len(set(names))
    assert len(names) >= 1_000
    ids = {name.split()[0] for name in names}
    assert ids >= {f"J{number:02}" for number in range(1, 17)}
    assert ids >= {f"A{number:02}" for number in range(1, 9)}
    assert ids >= {"C01", "C02", "C03", "C04", "C05", "D01", "D02", "D03", "D06", "D09", "D10"}
    assert ids >= {"D11", "D15", "K04", "K11", "T02", "T03", "T04", "T07"}


@every_row("name", CASES)
def test_hostile_credentials_are_rejected(name: str) -> None:
    case = CASES[name]
    error = catch_invalid_token(
        lambda: verifier(case.server).identify_jwt(case.header), case.header
    )
    assert error.check == case.check


@every_row("name", build_signatures)
def test_hostile_signatures_are_rejected(name: str) -> None:
    algorithm, text, check = build_signatures()[name]
    error = catch_invalid_token(lambda: verifier(algorithm).identify_jwt(f"Bearer {text}"), text)
    assert error.check == check


@every_row("name", dict(sets()))
def test_hostile_key_ids_are_rejected(name: str) -> None:
    header, signer, check = dict(sets())[name]
    text = token({**RS, **header}, CLAIMS, rs(rsa_pair(signer)))
    trust = KeySet.from_jwks(JWKS)
    assert catch_invalid_token(lambda: verify_token(text, trust), text).check == check


@pytest.mark.parametrize("algorithm", SIGNERS)
def test_servers_of_the_table_accept_valid_tokens(algorithm: str) -> None:
    text = token({"alg": algorithm, "typ": "JWT"}, {**CLAIMS, "exp": NOW + 60}, SIGNERS[algorithm])
    assert verifier(algorithm).identify_jwt(f"Bearer {text}").subject == "me"


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512"])
def test_correct_padding_is_accepted(algorithm: str) -> None:
    text = correct_block(algorithm)
    assert verifier(algorithm).identify_jwt(f"Bearer {text}").subject == "me"


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_types_of_access_tokens_are_accepted(typ: str) -> None:
    assert verify_token(signed({**RS, "typ": typ}), keys()).header["typ"] == typ


def test_both_texts_of_a_token_give_the_same_principal() -> None:
    """C05: a text is never an identity; both verify, and both die with the key."""
    for curve, algorithm in (("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512")):
        bits = int(algorithm[2:])
        one = token({"alg": algorithm}, CLAIMS, es(ec_pair(curve), bits))
        other = high_s(one, curve)
        assert one != other
        ours = verifier(algorithm)
        assert ours.identify_jwt(f"Bearer {one}") == ours.identify_jwt(f"Bearer {other}")


@pytest.mark.parametrize("name", ["jku", "x5u", "x5c", "x5t", "x5t#S256", "jwk", "unknown"])
def test_urls_in_a_header_are_never_fetched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A09."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    value = public_jwk(THEIRS.public) if name == "jwk" else "http://127.0.0.1:9/keys"
    assert verify_token(signed({**RS, name: value}), keys()).payload == compact(CLAIMS)


def test_token_length_limit_is_exact() -> None:
    """J15."""
    text = padded(8_190)
    assert 8_185 < len(text) <= 8_192
    assert verifier("RS256").identify_jwt(f"Bearer {text}")
    assert verify_token(text, keys())
    longer = text + "a" * (MAXIMUM_TOKEN + 1 - len(text))
    assert catch_invalid_token(lambda: verify_token(longer, keys()), longer).check == "length"


def test_signature_of_the_largest_key_verifies() -> None:
    """8,192 bits of eight primes, which are found sooner than two."""
    private = [rsa_pair(number).private.private_numbers() for number in (1, 2, 3, 4)]
    primes = [prime for numbers in private for prime in (numbers.p, numbers.q)]
    modulus = math.prod(primes)
    assert 8_184 < modulus.bit_length() <= 8_192
    exponent = pow(65_537, -1, math.lcm(*(prime - 1 for prime in primes)))
    key = rsa.RSAPublicNumbers(65_537, modulus).public_key()

    def sign(data: bytes) -> bytes:
        info = bytes.fromhex("3031300d060960864801650304020105000420")
        end = b"\0" + info + hashlib.sha256(data).digest()
        block = b"\0\1" + b"\xff" * (1_022 - len(end)) + end
        number = int.from_bytes(block, "big")
        parts = (
            pow(number, exponent % (prime - 1), prime) * rest * pow(rest, -1, prime)
            for prime in primes
            for rest in [modulus // prime]
        )
        return (sum(parts) % modulus).to_bytes(1_024, "big")

    trust = KeySet.from_jwks({"keys": [public_jwk(key)]})
    assert verify_token(token(RS, CLAIMS, sign), trust).payload == compact(CLAIMS)


def fastest_time(act: Callable[[], object], rounds: int = 30) -> float:
    """Return the seconds of the fastest of several rounds, to ignore other load."""
    fastest = 1.0
    for _ in range(rounds):
        started = time.perf_counter()
        with pytest.raises(InvalidToken):
            act()
        fastest = min(fastest, time.perf_counter() - started)
    return fastest


@pytest.mark.parametrize("character", [".", "a", "{", "\u00e9"])
def test_rejecting_a_long_token_is_cheap(character: str) -> None:
    """J15: refused before anything is read."""
    junk = character * 1_000_000
    trust = keys()
    assert fastest_time(lambda: verify_token(junk, trust)) < 50e-6
    header = f"Bearer {junk}"
    assert fastest_time(lambda: verifier("RS256").identify_jwt(header)) < 50e-6


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":"' + b'\\"' * 2_900 + b"[" * 20,
        b'[[[[[[[[["' + b'\\"' * 2_900,
        b"[" * 6_000,
        b'{"a":' * 1_100,
        b'"' * 5_990 + b"[" * 10,
        b"[" + b"1," * 2_990,
        b"{" + b",".join(b'"%d":1' % n for n in range(700)) + b"}",
        b"[" * 10 + b"9" * 5_900,
        b'{"x":' + b"9" * 5_900 + b"}",
        b'{"x":"' + b"\\u0041" * 900 + b'","y":[[[[[[[[[',
        b"]" * 3_000 + b"[" * 3_000,
    ],
    ids=range(11),
)
def test_rejecting_any_long_header_is_cheap(header: bytes) -> None:
    """J13: parsers that go over the text once more for each character would take a second."""
    text = signed(header)
    trust = keys()
    assert len(text) <= 8_192 + 400
    assert fastest_time(lambda: verify_token(text, trust), 10) < 0.02


@pytest.mark.parametrize("value", [None, 1, b"a.b.c", ["a"], {}])
def test_token_that_is_not_a_string_is_rejected(value: Any) -> None:
    assert catch_invalid_token(lambda: verify_token(value, keys()), "").check == "form"


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA", "HS256"])
def test_key_of_another_type_verifies_nothing(algorithm: str) -> None:
    """A07: no loader makes such a set; if one did, the arithmetic's TypeError is no pass."""
    spec = ALGORITHMS[algorithm]
    for material in (OURS.public, ec_pair().public, ed_pair().public, b"x" * 64):
        key = VerificationKey(spec, material)
        text = token({"alg": algorithm}, CLAIMS, SIGNERS["RS512"])
        error = catch_invalid_token(lambda: verify_token(text, KeySet(spec, {}, (key,))), text)  # noqa: B023
        assert error.check == "signature"
