"""Hostile credentials, each with the id of a security case and the check that must fail.

`CASES` maps a name to the sent header, the configuration of the server, and the failed check. Every
token is signed with the real key, except where the case is about the signature.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from cryptography.hazmat.primitives import serialization

from agentctl.auth.tokens.jwk import public_jwk
from agentctl.config.settings import Authorization
from tests.auth.bad_claims import BAD, RULES
from tests.kit.forged_tokens import Signer, b64, compact, fixed, hs, ps, rs, rsa_pair, seal, token

__all__ = ["CASES", "CLAIMS", "GOOD", "OURS", "RS", "SERVERS", "THEIRS", "Case", "padded", "signed"]

PEM = serialization.Encoding.PEM
DER = serialization.Encoding.DER
OURS = rsa_pair(1)
THEIRS = rsa_pair(2)
CLAIMS = {"sub": "me", "scopes": ["agents:read"]}
RS = {"alg": "RS256"}
GOOD = rs(OURS)


class Case(NamedTuple):
    """A header, the server that receives it, and the check that must fail."""

    header: str
    server: str
    check: str


def signed(header: Any, payload: Any = CLAIMS, sign: Signer = GOOD) -> str:
    """Build a token of any shape, by default signed with the trusted key."""
    return token(header, payload, sign)


SERVERS: dict[str, Authorization] = {
    "RS256": Authorization(verification_keys=(OURS.pem,)),
    **{
        f"RS256 {name}": Authorization(verification_keys=(OURS.pem,), **given)
        for name, given in RULES.items()
    },
}
"""Configurations by name; those of other algorithms are added by `hostile_signatures`."""

Texts = Iterator[tuple[str, str]]


def algorithms() -> Texts:
    """A01 to A04, A06, A07: another algorithm than the configured one."""
    for name in ("none", "None", "NONE", "nOnE", ""):
        yield f"A01 {name!r} unsigned", signed({"alg": name}, sign=fixed(b""))
        yield f"A02 {name!r} signed", signed({"alg": name})
    yield "A03 absent", signed({})
    for value in (None, 1, True, ["RS256"], {"RS256": 1}):
        yield f"A03 {value!r}", signed({"alg": value})
    for name in (
        "rs256",
        "RS256 ",
        " RS256",
        "RS256\0",
        "RS256,HS256",
        "\uff32S256",
        "RS256\u200b",
    ):
        yield f"A04 {name!r}", signed({"alg": name})
    for name in (
        "RS1",
        "ES256",
        "EdDSA",
        "Ed25519",
        "ES256K",
        "ES521",
        "dir",
        "RSA-OAEP",
        "ML-DSA-44",
    ):
        yield f"A04 {name}", signed({"alg": name})
    yield "A06 PS256", signed({"alg": "PS256"}, sign=ps(OURS))
    for bits in (384, 512):
        yield f"A06 RS{bits}", signed({"alg": f"RS{bits}"}, sign=rs(OURS, bits))
    yield "A07 HS256", signed({"alg": "HS256"}, sign=hs(b"x" * 32))
    for name, secret in confusions():
        yield f"A05 {name}", signed({"alg": "HS256"}, sign=hs(secret))


def confusions() -> Iterator[tuple[str, bytes]]:
    """A05: the public key in every encoding, for use as the secret of an HMAC."""
    pem = OURS.spki(PEM)
    der = OURS.spki(DER)
    jwk = public_jwk(OURS.public)
    pkcs1 = serialization.PublicFormat.PKCS1
    modulus = OURS.public.public_numbers().n.to_bytes(256, "big")
    yield from {
        "PEM": pem,
        "PEM stripped": pem.strip(),
        "PEM CRLF": pem.replace(b"\n", b"\r\n"),
        "PEM BOM": b"\xef\xbb\xbf" + pem,
        "PEM body": b"".join(pem.splitlines()[1:-1]),
        "DER": der,
        "hex DER": der.hex().encode(),
        "PKCS1 PEM": OURS.public.public_bytes(PEM, pkcs1),
        "PKCS1 DER": OURS.public.public_bytes(DER, pkcs1),
        "SSH": OURS.public.public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        ),
        "JWK": compact(jwk),
        "JWKS": compact({"keys": [jwk]}),
        "n": modulus,
        "n base64url": jwk["n"].encode(),
        "n hex": modulus.hex().encode(),
        "empty": b"",
    }.items()


def other_keys() -> Texts:
    """A05, A06, A08: the right algorithm named, another key or arithmetic used."""
    for name, secret in confusions():
        yield f"A05 {name} under RS256", signed(RS, sign=hs(secret))
    yield "A06 PS256 under RS256", signed(RS, sign=ps(OURS))
    for bits in (384, 512):
        yield f"A06 RS{bits} under RS256", signed(RS, sign=rs(OURS, bits))
    attacker = public_jwk(THEIRS.public)
    yield "A08 own jwk", signed({**RS, "jwk": attacker}, sign=rs(THEIRS))
    yield "A08 own jwk and kid", signed({**RS, "jwk": attacker, "kid": "a"}, sign=rs(THEIRS))
    yield "A08 own jku", signed({**RS, "jku": "http://127.0.0.1:9/jwks"}, sign=rs(THEIRS))
    yield "A08 own x5u", signed({**RS, "x5u": "http://127.0.0.1:9/pem"}, sign=rs(THEIRS))
    chain = b64(THEIRS.spki(DER))
    yield "A08 own x5c", signed({**RS, "x5c": [chain]}, sign=rs(THEIRS))
    yield "A08 another's key", signed(RS, sign=rs(THEIRS))


def padded(length: int) -> str:
    """A good token of `length` bytes, or up to two fewer."""
    room = length - len(signed(RS, {**CLAIMS, "x": ""}))
    return signed(RS, {**CLAIMS, "x": "y" * (room * 3 // 4)})


def lengths() -> Texts:
    """J15."""
    for length in (8_196, 16_384, 1_000_000):
        yield f"J15 {length}", padded(length)
    for name in ("a", ".", "=", "\0", "{", "\u00e9"):
        yield f"J15 1 MB of {name!r}", name * 1_000_000
    yield "J15 long header", f"{'a' * 8_000}.{'b' * 190}.c"


def shapes() -> Texts:
    """J01 to J03, J08 to J10, J15, K04: texts that are not a compact JWS in canonical base64url."""
    good = signed(RS)
    first, second, third = good.split(".")
    for text in (".", "...", "....", first, f"{first}.{second}", f"{good}.", f".{good}"):
        yield f"J01 {text[:8]!r} {text.count('.')}", text
    yield "J01 four", f"{good}.{third}"
    plain = b64(compact({**RS, "crit": ["b64"], "b64": False})) + ".{}"
    yield "J05 payload not encoded, signed over", seal(plain, GOOD)
    yield "J02 five", f"{good}.{third}.{third}"
    jwe = b64(compact({"alg": "RSA-OAEP", "enc": "A256GCM"}))
    yield "J02 JWE", f"{jwe}.{third}.AAAA.{second}.AAAA"
    yield "J02 JWE dir", f"{b64(compact({'alg': 'dir', 'enc': 'A128GCM'}))}..AAAA.{second}.AAAA"
    flat = {"protected": first, "payload": second, "signature": third}
    yield "J03 flattened", json.dumps(flat, separators=(",", ":"))
    yield (
        "J03 general",
        json.dumps({"payload": second, "signatures": [flat]}, separators=(",", ":")),
    )
    for index, name in enumerate(("header", "payload", "signature")):
        yield from _segment_edits(good, index, name)
    for space in ("\n", "\t", "\r", "\0", "\x7f", "\x0b"):
        yield f"J09 before {space!r}", space + good
        yield f"T07 after {space!r}", good + space
    yield from signed_over()
    for prefix in ("agentctl_pat_", "other_pat_"):
        yield f"K04 {prefix}", f"{prefix}{'x' * 43}000000"
    yield "K04 a token behind the prefix", "agentctl_pat_" + second
    yield "T04 two in one", f"{good},{good}"
    yield "T07 quoted", f'"{good}"'


def _segment_edits(good: str, index: int, name: str) -> Texts:
    segments = good.split(".")

    def put(text: str) -> str:
        return ".".join([*segments[:index], text, *segments[index + 1 :]])

    text = segments[index]
    for pad in ("=", "==", "==="):
        yield f"J08 {name} {pad}", put(text + pad)
    for strange in ("+", "/", "\n", "?", "%2e", "\0", "~", ","):
        yield f"J09 {name} {strange!r}", put(text[:4] + strange + text[5:])
    if len(text) % 4:
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        last = alphabet[alphabet.index(text[-1]) ^ 1]
        yield f"J10 {name}", put(text[:-1] + last)
    yield f"J01 {name} cut", put(text[: len(text) // 4 * 4 - 3])


def signed_over() -> Texts:
    """J08 to J10 again, with a signature that is right for the strange text."""
    first = b64(compact(RS))
    second = b64(compact(CLAIMS))
    for one, two in ((1, 0), (0, 1), (1, 1)):
        texts = (
            text + "=" * (-len(text) % 4 or 4) * wanted
            for text, wanted in ((first, one), (second, two))
        )
        yield f"J08 padded {one}{two}, signed over", seal(".".join(texts), GOOD)
    yield "J09 newline, signed over", seal(f"{first[:5]}\n{first[5:]}.{second}", GOOD)
    yield (
        "J09 standard alphabet, signed over",
        seal(f"{first}.{b64(b'>>>???')}".replace("-", "+").replace("_", "/"), GOOD),
    )
    yield "J10 header bits, signed over", seal(f"{b64(b'{}')[:-1]}1.{second}", GOOD)


def strange() -> Texts:
    """T07, J09: what no header that keeps to ASCII can hold."""
    good = signed(RS)
    first, second, third = good.split(".")
    for character in ("\u00e9", "\u0661", "\ud800", "\uff21", "\u00a0", "\x80"):
        for index in range(3):
            parts = [first, second, third]
            parts[index] = parts[index][:4] + character + parts[index][5:]
            yield f"J09 segment {index} {character!r}", ".".join(parts)
        yield f"T07 behind {character!r}", good + character
    for text in (good + " ", " " + good, f"{good} {good}"):
        yield f"T02 {len(text)} {text[:1]!r}", text
    yield "T04 two in a list", f"{good}, Bearer {good}"


def headers() -> Texts:
    """J01, J04 to J07, J11 to J14, J16, K11: malformed and foreign headers."""
    _, second, third = signed(RS).split(".")
    yield "J01 dots only", ".."
    yield "J01 no header", f".{second}.{third}"
    for crit in ([], ["exp"], ["b64"], "b64", ["b64", "b64"], ["unknown"], None, 1, {}):
        yield f"J04 crit {crit!r}", signed({**RS, "crit": crit, "unknown": 1})
    for value in (False, True, 0, None):
        yield f"J05 b64 {value!r}", signed({**RS, "b64": value})
        yield f"J05 crit b64 {value!r}", signed({**RS, "crit": ["b64"], "b64": value})
    types = ("dpop+jwt", "logout+jwt", "JOSE", 1, None, "", ["JWT"], "JWT ", "\uff4awt", "id+jwt",
             "JOSE+JSON", "secevent+jwt", "application/jwt", True, {})  # fmt: skip
    for typ in types:
        yield f"J06 typ {typ!r}", signed({**RS, "typ": typ})
    yield "J07 nested", signed({**RS, "cty": "JWT"}, signed(RS).encode())
    for cty in ("jwt", "application/json", None, ""):
        yield f"J07 cty {cty!r}", signed({**RS, "cty": cty})
    yield "J07 zip", signed({**RS, "zip": "DEF"})
    yield "J07 enc", signed({**RS, "enc": "A256GCM"})
    for kid in (1, None, ["a"], {"a": 1}, True, 1.5):
        yield f"K11 kid {kid!r}", signed({**RS, "kid": kid})
    for name, data in json_texts(b'"alg":"RS256"'):
        yield name, signed(data)
    yield "J12 alg twice", signed(b'{"alg":"RS256","alg":"RS256"}')
    yield "J12 none first", signed(b'{"alg":"none","alg":"RS256"}')
    yield "J12 none last", signed(b'{"alg":"RS256","alg":"none"}')
    yield "J12 alg escaped", signed(rb'{"alg":"RS256","\u0061lg":"RS256"}')
    yield "J12 kid twice", signed(b'{"alg":"RS256","kid":"a","kid":"b"}')
    yield "J12 typ twice", signed(b'{"alg":"RS256","typ":"JWT","typ":"JWT"}')


def json_texts(member: bytes) -> Iterator[tuple[str, bytes]]:
    """J11, J13, J14, J16: texts with this member that are no strict JSON object."""
    plain = b"{" + member + b"}"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig"):
        yield f"J11 {encoding}", plain.decode().encode(encoding)
    more = b"{" + member + b',"x":'
    bad_bytes = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80")
    for data in bad_bytes:
        yield f"J11 invalid UTF-8 {data!r}", more + b'"' + data + b'"}'
    numbers = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 5_000, b"01", b"0x1",
               b"1.", b".5", b"+1", b"1e", b"0." + b"1" * 5_000, b"1_0", b"\xd9\xa1")  # fmt: skip
    for number in numbers:
        yield f"J14 {number[:9]!r}", more + number + b"}"
    for depth in (9, 900, 2_500):
        yield f"J13 {depth}", more + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
        yield f"J13 {depth} open", more + b'{"a":' * (min(depth, 1_100))
    for value in ([], ["RS256"], "RS256", 1, None, True):
        yield f"J16 {value!r}", compact(value)
    for rest in (b"x", b"{}", b",", b"\0", b'"', b"//", b"\xc2\xa0"):
        yield f"J16 trailing {rest!r}", plain + rest
    for before in (b"\0", b"\x0b", b"\xc2\xa0", b"/**/", b"'"):
        yield f"J16 before {before!r}", before + plain
    yield "J16 empty", b""
    yield "J16 blank", b" "
    yield "J16 control character", more + b'"\n"}'
    yield "J16 single quotes", plain.replace(b'"', b"'")
    yield "J16 no quotes", plain.replace(b'"', b"")
    yield "J16 trailing comma", b"{" + member + b",}"
    yield "J16 comment", b"{" + member + b"/**/}"
    yield "J16 bad escape", more + rb'"\x41"}'
    yield "J16 half an escape", more + rb'"\u12"}'
    yield "J12 nested twice", more + b'{"a":1,"a":2}}'


def payloads() -> Texts:
    """J11 to J16 in the payload."""
    for name, data in json_texts(b'"sub":"me"'):
        yield f"{name} in the payload", signed(RS, data)


def signatures() -> Texts:
    """C01, C03."""
    modulus = OURS.public.public_numbers().n
    right = GOOD(f"{b64(compact(RS))}.{b64(compact(CLAIMS))}".encode())
    number = int.from_bytes(right, "big")
    edits = {
        "zeros": bytes(256),
        "empty": b"",
        "one byte": b"\0",
        "1025 bytes": b"\1" * 1025,
        "one": (1).to_bytes(256, "big"),
        "n - 1": (modulus - 1).to_bytes(256, "big"),
        "n": modulus.to_bytes(256, "big"),
        "n + 1": (modulus + 1).to_bytes(256, "big"),
        "minus": (modulus - number).to_bytes(256, "big"),
        "plus n": (number + modulus).to_bytes(257, "big"),
        "leading zero": b"\0" + right,
        "trailing zero": right + b"\0",
        "first byte off": bytes([right[0] ^ 1]) + right[1:],
        "last byte off": right[:-1] + bytes([right[-1] ^ 1]),
        "cut": right[:-1],
        "cut in front": right[1:],
        "twice": right + right,
        "backwards": right[::-1],
        "DER octet string": b"\x04\x82\x01\x00" + right,
        "hex": right.hex().encode(),
    }
    for name, signature in edits.items():
        yield f"C03 {name}", signed(RS, sign=fixed(signature))
    first, second, third = signed(RS).split(".")
    yield "J01 no signature", f"{first}.{second}."
    yield "J01 no payload", f"{first}..{third}"
    yield "C03 another payload's", signed(RS, {"sub": "other"}, sign=fixed(right))
    yield "C03 another header's", signed({**RS, "kid": "x"}, sign=fixed(right))


def transports() -> Iterator[tuple[str, str]]:
    """T02, T03: headers that are not the word Bearer, one space and one token."""
    good = signed(RS)
    for before in (
        "",
        " ",
        "Bearer",
        "Bearer:",
        "Bearer  ",
        "Bearer\t",
        " Bearer ",
        "Basic ",
        "Token ",
        "JWT ",
        "Bear er ",
        "Bearer\n",
        "Bearer\u00a0",
        "bearer=",
        "B\u0435arer ",
        "Digest ",
        "Bearer Bearer ",
    ):
        yield f"T02 {before!r}", before + good
    for text in ("", " ", "Bearer", "Bearer ", "bearer  ", "Basic dXNlcjpwYXNz", "Bearer\t"):
        yield f"T03 {text!r}", text


def _all() -> Iterator[tuple[str, Case]]:
    for name, header in transports():
        yield name, Case(header, "RS256", "transport")
    groups = {
        "length": [lengths()],
        "form": [shapes()],
        "header": [algorithms(), headers()],
        "signature": [other_keys(), signatures()],
        "claims.form": [payloads()],
    }
    for check, texts in groups.items():
        for name, text in itertools.chain(*texts):
            yield name, Case(f"Bearer {text}", "RS256", check)
    for name, text in strange():
        yield name, Case(f"Bearer {text}", "RS256", "transport")
    for name, (claims, rules, check) in BAD.items():
        yield name, Case(f"Bearer {signed(RS, claims)}", f"RS256 {rules}", check)


def _once() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name, case in _all():
        assert name not in cases, name
        cases[name] = case
    return cases


CASES = _once()
