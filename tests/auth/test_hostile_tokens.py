"""Whatever is thrown at `verify`: refused with InvalidToken, in little time, without a network."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from agentctl.auth.jwk import public_jwk
from agentctl.auth.jws import KeySet, verify
from agentctl.errors import InvalidToken
from tests.auth.forge import (
    Pair,
    Signer,
    b64,
    compact,
    ec_pair,
    ed_pair,
    es,
    es_der,
    fixed,
    hs,
    ps,
    rs,
    rsa_pair,
    seal,
    token,
)

PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
OURS, THEIRS = rsa_pair(1), rsa_pair(2)
CLAIMS = {"sub": "me", "scopes": ["agents:read"]}
RS = {"alg": "RS256"}
GOOD = rs(OURS)


def keys() -> KeySet:
    return KeySet.from_pems([OURS.pem], "RS256")


def signed(header: Any, payload: Any = CLAIMS, sign: Signer = GOOD) -> str:
    return token(header, payload, sign)


def algorithms() -> Iterator[tuple[str, str]]:
    """A01 to A04, A06 to A08."""
    for name in ("none", "None", "NONE", "nOnE", ""):
        yield f"A01 {name!r} unsigned", signed({"alg": name}, sign=fixed(b""))
        yield f"A02 {name!r} signed", signed({"alg": name})
    yield "A03 absent", signed({})
    for value in (None, 1, True, ["RS256"], {"RS256": 1}):
        yield f"A03 {value!r}", signed({"alg": value})
    for name in ("rs256", "RS256 ", " RS256", "RS256\0", "RS256,HS256", "\uff32S256"):
        yield f"A04 {name!r}", signed({"alg": name})
    yield "A06 PS256", signed({"alg": "PS256"}, sign=ps(OURS))
    yield "A06 PS256 under RS256", signed(RS, sign=ps(OURS))
    for bits in (384, 512):
        yield f"A06 RS{bits}", signed({"alg": f"RS{bits}"}, sign=rs(OURS, bits))
        yield f"A06 RS{bits} under RS256", signed(RS, sign=rs(OURS, bits))
    yield "A07 HS256", signed({"alg": "HS256"}, sign=hs(b"x" * 32))
    attacker = public_jwk(THEIRS.public)
    yield "A08 own jwk", signed({**RS, "jwk": attacker}, sign=rs(THEIRS))
    yield "A08 own jku", signed({**RS, "jku": "http://127.0.0.1:9/jwks"}, sign=rs(THEIRS))
    yield "A08 another's key", signed(RS, sign=rs(THEIRS))
    for name in ("RS1", "ES256", "EdDSA", "ES256K", "ES521", "dir", "RSA-OAEP"):
        yield f"A04 {name}", signed({"alg": name})


def confusions() -> Iterator[tuple[str, str]]:
    """A05: the public key, in every encoding, as the secret of an HMAC."""
    pem, der = OURS.spki(PEM), OURS.spki(DER)
    jwk = public_jwk(OURS.public)
    pkcs1 = serialization.PublicFormat.PKCS1
    ssh = OURS.public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    secrets = {
        "PEM": pem,
        "PEM stripped": pem.strip(),
        "PEM CRLF": pem.replace(b"\n", b"\r\n"),
        "PEM BOM": b"\xef\xbb\xbf" + pem,
        "PEM body": b"".join(pem.splitlines()[1:-1]),
        "DER": der,
        "hex DER": der.hex().encode(),
        "PKCS1 PEM": OURS.public.public_bytes(PEM, pkcs1),
        "PKCS1 DER": OURS.public.public_bytes(DER, pkcs1),
        "SSH": ssh,
        "JWK": compact(jwk),
        "JWKS": compact({"keys": [jwk]}),
        "n": OURS.public.public_numbers().n.to_bytes(256, "big"),
        "n base64url": jwk["n"].encode(),
    }
    for name, secret in secrets.items():
        yield f"A05 {name}", signed({"alg": "HS256"}, sign=hs(secret))
        yield f"A05 {name} under RS256", signed(RS, sign=hs(secret))


def shapes() -> Iterator[tuple[str, str]]:
    """J01 to J03, J08 to J11, J15."""
    good = signed(RS)
    first, second, third = good.split(".")
    for text in ("", ".", "..", "...", "....", first, f"{first}.{second}", f"{good}.", f".{good}"):
        yield f"J01 {text[:8]!r} {text.count('.')}", text
    yield "J01 four", f"{good}.{third}"
    yield "J02 five", f"{good}.{third}.{third}"
    yield "J01 no signature", f"{first}.{second}."
    yield "J01 no payload", f"{first}..{third}"
    yield "J01 no header", f".{second}.{third}"
    flat = {"protected": first, "payload": second, "signature": third}
    yield "J03 flattened", json.dumps(flat)
    yield "J03 general", json.dumps({"payload": second, "signatures": [flat]})
    for index, name in enumerate(("header", "payload", "signature")):
        yield from _segment_edits(good, index, name)
    for space in (" ", "\n", "\t", "\r", "\0"):
        yield f"J09 before {space!r}", space + good
        yield f"J09 after {space!r}", good + space
    yield "J15 8193", _padded(8_193)
    yield "J15 1 MB", _padded(1_000_000)


def _segment_edits(good: str, index: int, name: str) -> Iterator[tuple[str, str]]:
    segments = good.split(".")

    def put(text: str) -> str:
        return ".".join([*segments[:index], text, *segments[index + 1 :]])

    text = segments[index]
    for pad in ("=", "==", "==="):
        yield f"J08 {name} {pad}", put(text + pad)
    for strange in ("+", "/", " ", "\n", "?", "%2e", "é", "\u0661", "\ud800", "\0"):
        yield f"J09 {name} {strange!r}", put(text[:4] + strange + text[5:])
    if len(text) % 4:
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        last = alphabet[alphabet.index(text[-1]) ^ 1]
        yield f"J10 {name}", put(text[:-1] + last)
    yield f"J01 {name} cut", put(text[: len(text) // 4 * 4 - 3])


def _padded(length: int) -> str:
    """A good token of about `length` bytes and at least as many."""
    return signed(RS, {**CLAIMS, "x": "y" * (length * 3 // 4)})


def signed_over() -> Iterator[tuple[str, str]]:
    """J08 and J09 again, with a signature that is right for the strange text."""
    first, second = b64(compact(RS)), b64(compact(CLAIMS))
    padded = f"{first}{'=' * (-len(first) % 4)}.{second}{'=' * (-len(second) % 4)}"
    yield "J08 both padded, signed over", seal(padded, GOOD)
    yield "J09 newline, signed over", seal(f"{first[:5]}\n{first[5:]}.{second}", GOOD)
    yield "J10 header bits, signed over", seal(f"{b64(b'{}')[:-1]}1.{second}", GOOD)


def headers() -> Iterator[tuple[str, str]]:
    """J04 to J07, J11 to J14, J16, K11."""
    for crit in ([], ["exp"], ["b64"], "b64", ["b64", "b64"], ["unknown"], None, 1, {}):
        yield f"J04 crit {crit!r}", signed({**RS, "crit": crit, "unknown": 1})
    for b64_value in (False, True, 0, None):
        yield f"J05 b64 {b64_value!r}", signed({**RS, "b64": b64_value})
        yield f"J05 crit b64 {b64_value!r}", signed({**RS, "crit": ["b64"], "b64": b64_value})
    for typ in ("dpop+jwt", "logout+jwt", "JOSE", 1, None, "", ["JWT"], "JWT ", "\uff4awt"):
        yield f"J06 typ {typ!r}", signed({**RS, "typ": typ})
    yield "J07 nested", signed({**RS, "cty": "JWT"}, signed(RS).encode())
    yield "J07 zip", signed({**RS, "zip": "DEF"})
    yield "J07 enc", signed({**RS, "enc": "A256GCM"})
    text = '{"alg":"RS256"}'
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"):
        yield f"J11 {encoding}", signed(text.encode(encoding))
    yield "J11 invalid UTF-8", signed(b'{"alg":"RS256","x":"\xff"}')
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5_000, b"01", b"0x1"):
        yield f"J14 {number[:9]!r}", signed(b'{"alg":"RS256","x":' + number + b"}")
    yield "J12 alg twice", signed(b'{"alg":"RS256","alg":"RS256"}')
    yield "J12 none first", signed(b'{"alg":"none","alg":"RS256"}')
    yield "J12 escaped", signed(rb'{"alg":"RS256","\u0061lg":"RS256"}')
    yield "J12 kid twice", signed(b'{"alg":"RS256","kid":"a","kid":"b"}')
    for depth in (9, 900, 2_500):
        nested = b"[" * (depth - 1) + b"]" * (depth - 1)
        yield f"J13 {depth}", signed(b'{"alg":"RS256","x":' + nested + b"}")
        yield f"J13 {depth} open", signed(b'{"alg":"RS256","x":' + b'{"a":' * depth)
    for value in ([], ["RS256"], "RS256", 1, None, True):
        yield f"J16 {value!r}", signed(compact(value))
    for rest in (b"x", b"{}", b",", b"\0", b'"'):
        yield f"J16 trailing {rest!r}", signed(b'{"alg":"RS256"}' + rest)
    yield "J16 empty", signed(b"")
    yield "J16 control character", signed(b'{"alg":"RS256","x":"\n"}')
    for kid in (1, None, ["a"], {"a": 1}, True):
        yield f"K11 kid {kid!r}", signed({**RS, "kid": kid})


def signatures() -> Iterator[tuple[str, str]]:
    """C01, C03."""
    modulus = OURS.public.public_numbers().n
    right = GOOD(f"{b64(compact(RS))}.{b64(compact(CLAIMS))}".encode())
    edits = {
        "zeros": bytes(256),
        "empty": b"",
        "one byte": b"\0",
        "1025 bytes": b"\1" * 1025,
        "one": (1).to_bytes(256, "big"),
        "n - 1": (modulus - 1).to_bytes(256, "big"),
        "n": modulus.to_bytes(256, "big"),
        "plus n": (int.from_bytes(right, "big") + modulus).to_bytes(257, "big"),
        "leading zero": b"\0" + right,
        "trailing zero": right + b"\0",
        "first byte off": bytes([right[0] ^ 1]) + right[1:],
        "last byte off": right[:-1] + bytes([right[-1] ^ 1]),
        "cut": right[:-1],
        "twice": right + right,
    }
    for name, signature in edits.items():
        yield f"C03 {name}", signed(RS, sign=fixed(signature))
    yield "C03 another payload's", signed(RS, {"sub": "other"}, sign=fixed(right))


HOSTILE = dict(
    case
    for group in (algorithms, confusions, shapes, signed_over, headers, signatures)
    for case in group()
)


def test_the_table_is_long_and_has_a_good_counterpart() -> None:
    assert len(HOSTILE) > 200
    assert verify(signed(RS), keys()).payload == compact(CLAIMS)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokens_are_refused(name: str) -> None:
    with pytest.raises(InvalidToken) as refusal:
        verify(HOSTILE[name], keys())
    assert refusal.value.reason
    assert len(refusal.value.reason) < 100, "the reason never repeats the token"


EC = ec_pair()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def _raw(r: int, s: int) -> bytes:
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


@pytest.mark.parametrize(
    "signature",
    [_raw(r, s) for r in (0, 1, _ORDER - 1, _ORDER, _ORDER + 1) for s in (0, 1, _ORDER, 2**256 - 1)]
    + [bytes(63), bytes(65), bytes(64)],
    ids=lambda data: data.hex()[-70:],
)
def test_ecdsa_edges_are_refused(signature: bytes) -> None:
    with pytest.raises(InvalidToken):
        verify(
            token({"alg": "ES256"}, CLAIMS, fixed(signature)),
            KeySet.from_pems([EC.pem], "ES256"),
        )


def _others() -> Iterator[tuple[str, str, Pair, Signer]]:
    yield "C02 DER form", "ES256", EC, es_der(EC)
    yield "C04 salt 0", "PS256", OURS, ps(OURS, salt=0)
    yield "C04 salt 20", "PS256", OURS, ps(OURS, salt=20)
    yield "C04 other hash", "PS256", OURS, ps(OURS, 384)
    yield "A07 EC", "HS256", EC, hs(EC.spki(PEM))
    yield "A07 Ed", "HS256", ed_pair(), hs(ed_pair().spki(PEM))
    yield "P-256 key under ES384", "ES384", EC, es(EC, 384)


@pytest.mark.parametrize(
    ("alg", "pair", "sign"), [pytest.param(*rest, id=name) for name, *rest in _others()]
)
def test_other_families_are_as_strict(alg: str, pair: Pair, sign: Signer) -> None:
    own = {EC: "ES256", ed_pair(): "EdDSA", OURS: "PS256"}[pair]
    with pytest.raises(InvalidToken):
        verify(token({"alg": alg}, CLAIMS, sign), KeySet.from_pems([pair.pem], own))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"])
def test_types_of_access_tokens_pass(typ: str) -> None:
    assert verify(signed({**RS, "typ": typ}), keys()).header["typ"] == typ


@pytest.mark.parametrize("name", ["jku", "x5u", "x5c", "x5t", "jwk", "unknown"])
def test_what_a_header_points_at_is_never_followed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    value = public_jwk(THEIRS.public) if name == "jwk" else "http://127.0.0.1:9/keys"
    assert verify(signed({**RS, name: value}), keys()).payload == compact(CLAIMS)


def test_the_longest_token_passes_and_one_byte_more_does_not() -> None:
    text = _padded(4_000)
    assert verify(text, keys(), maximum=len(text))
    with pytest.raises(InvalidToken):
        verify(text, keys(), maximum=len(text) - 1)


def test_what_is_too_long_costs_next_to_nothing() -> None:
    junk, trust = "." * 1_000_000, keys()
    started = time.perf_counter()
    for _ in range(1_000):
        with pytest.raises(InvalidToken):
            verify(junk, trust)
    assert time.perf_counter() - started < 0.5, "microseconds each"


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
    ],
    ids=range(8),
)
def test_no_header_of_the_longest_kind_costs_much(header: bytes) -> None:
    """J13: parsers that go over the text once more for each character would take a second."""
    text, trust = signed(header), keys()
    assert len(text) <= 8_192 + 400
    best = 1.0
    for _ in range(5):
        started = time.perf_counter()
        with pytest.raises(InvalidToken):
            verify(text, trust, maximum=16_384)
        best = min(best, time.perf_counter() - started)
    assert best < 0.02


@pytest.mark.parametrize("value", [None, 1, b"a.b.c", ["a"], {}])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(InvalidToken):
        verify(value, keys())
