"""Almost valid signatures of RSA, ECDSA, EdDSA and HMAC, built with the real keys.

They try the same as public collections: paddings with one mistake, salts of other lengths, values
of r and s out of range, other encodings of the same value (security cases C01 to C05).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from agentctl.auth.tokens.algorithms import ALGORITHMS, CURVES
from agentctl.auth.tokens.jwk import public_jwk
from agentctl.config.settings import Authorization
from tests.kit.forged_tokens import (
    SECRET,
    Pair,
    Signer,
    b64,
    compact,
    ec_pair,
    ed,
    ed_pair,
    es,
    es_der,
    fixed,
    hs,
    ps,
    rs,
    rsa_pair,
    token,
)

__all__ = [
    "JWKS",
    "SIGNERS",
    "Signature",
    "build_signatures",
    "correct_block",
    "high_s",
    "server",
    "sets",
]

RSA = rsa_pair(1)
CLAIMS = {"sub": "me"}
JWKS = {
    "keys": [
        {**public_jwk(rsa_pair(number).public), "kid": kid}
        for number, kid in ((1, "one"), (2, "two"))
    ]
}
"""Two keys with a `kid`."""

Signature = tuple[str, str, str]
"""The algorithm of a server, a token for it, and the check that must fail."""


def _bits(alg: str) -> int:
    return ALGORITHMS[alg].hash_bits


def _pair(alg: str) -> Pair:
    spec = ALGORITHMS[alg]
    if spec.family == "EC":
        return ec_pair(str(spec.curve))
    return ed_pair() if spec.family == "OKP" else RSA


def _signer(alg: str) -> Signer:
    make: dict[str, Callable[[], Signer]] = {
        "RS": lambda: rs(RSA, _bits(alg)),
        "PS": lambda: ps(RSA, _bits(alg)),
        "ES": lambda: es(_pair(alg), _bits(alg)),
        "Ed": lambda: ed(ed_pair()),
        "HS": lambda: hs(SECRET, _bits(alg)),
    }
    return make[alg[:2]]()


SIGNERS: dict[str, Signer] = {alg: _signer(alg) for alg in ALGORITHMS}
"""Signers of valid signatures, by algorithm."""


def server(alg: Any) -> Authorization:
    """Return a configuration that trusts the key of `SIGNERS`."""
    text = SECRET.decode() if alg.startswith("HS") else _pair(alg).pem
    return Authorization(algorithm=alg, verification_keys=(text,))


def _input(alg: str) -> bytes:
    return f"{b64(compact({'alg': alg}))}.{b64(compact(CLAIMS))}".encode()


def _cases_of(alg: str, edits: dict[str, bytes], rule: str) -> Iterator[tuple[str, Signature]]:
    for name, signature in edits.items():
        text = token({"alg": alg}, CLAIMS, fixed(signature))
        yield f"{rule} {alg} {name}", (alg, text, "signature")


def crossed_algorithms() -> Iterator[tuple[str, Signature]]:
    """A06, A07: the token of every algorithm at the server of every other one."""
    for alg in ALGORITHMS:
        for other in ALGORITHMS:
            if other != alg:
                text = token({"alg": other}, CLAIMS, SIGNERS[other])
                yield f"A06 {other} at {alg}", (alg, text, "header")
                text = token({"alg": alg}, CLAIMS, SIGNERS[other])
                yield f"A06 {other} named {alg}", (alg, text, "signature")


_DIGEST_INFO = {
    256: bytes.fromhex("3031300d060960864801650304020105000420"),
    384: bytes.fromhex("3041300d060960864801650304020205000430"),
    512: bytes.fromhex("3051300d060960864801650304020305000440"),
}
"""RFC 8017 9.2, note 1."""


def _raw_rsa(block: bytes) -> bytes:
    """Apply the private key to an unchanged block."""
    numbers = RSA.private.private_numbers()
    value = int.from_bytes(block, "big")
    # By the Chinese remainder theorem (RFC 8017 5.1.2), which takes a third of the time.
    first = pow(value, numbers.dmp1, numbers.p)
    second = pow(value, numbers.dmq1, numbers.q)
    signed = second + numbers.q * ((first - second) * numbers.iqmp % numbers.p)
    return signed.to_bytes(256, "big")


def _block(info: bytes, digest: bytes, *, kind: int = 1, fill: bytes = b"\xff") -> bytes:
    rest = b"\0" + info + digest
    room = 254 - len(rest)
    return bytes([0, kind]) + (fill * room)[:room] + rest


def correct_block(alg: str) -> str:
    """Return a valid token that is built like the paddings below."""
    data = _input(alg)
    digest = hashlib.new(f"sha{_bits(alg)}", data).digest()
    return f"{data.decode()}.{b64(_raw_rsa(_block(_DIGEST_INFO[_bits(alg)], digest)))}"


def paddings() -> Iterator[tuple[str, Signature]]:
    """C03: PKCS #1 v1.5 paddings with one mistake."""
    for alg in ("RS256", "RS384", "RS512"):
        bits = _bits(alg)
        info = _DIGEST_INFO[bits]
        digest = hashlib.new(f"sha{bits}", _input(alg)).digest()
        bare = info.replace(b"\x05\0", b"")
        short = b"\0\1" + b"\xff" * 8 + b"\0" + info + digest
        # Without NULL parameters both lengths around them shrink by two.
        no_null = bytes([info[0], info[1] - 2, info[2], info[3] - 2]) + bare[4:]
        blocks = {
            "no NULL": _block(no_null, digest),
            "NULL taken out, lengths as they were": _block(bare, digest),
            "no digest info": _block(b"", digest),
            "other digest info": _block(_DIGEST_INFO[256 if bits != 256 else 512], digest),
            "long form length": _block(b"\x30\x81" + info[1:], digest),
            "indefinite length": _block(b"\x30\x80" + info[2:], digest + b"\0\0"),
            "block type 0": _block(info, digest, kind=0),
            "block type 2": _block(info, digest, kind=2),
            "fill of zeros": _block(info, digest, fill=b"\0"),
            "fill that changes": _block(info, digest, fill=b"\xff\xfe"),
            "rubbish behind": short + b"\xff" * (256 - len(short)),
            "zeros behind": short + bytes(256 - len(short)),
            "rubbish in the parameters": _block(info.replace(b"\x05\0", b"\x05\2ab"), digest),
            "digest cut": _block(info, digest[:-1]),
            "digest and a byte": _block(info, digest + b"\0"),
            "digest off by a bit": _block(info, bytes([digest[0] ^ 1]) + digest[1:]),
            "digest of zeros": _block(info, bytes(len(digest))),
            "no separator": bytes([0, 1]) + b"\xff" * (254 - len(info + digest)) + info + digest,
            "first byte not zero": b"\1" + _block(info, digest)[1:],
            "only the digest": bytes(256 - len(digest)) + digest,
        }
        yield from _cases_of(alg, {name: _raw_rsa(block) for name, block in blocks.items()}, "C03")


def salts() -> Iterator[tuple[str, Signature]]:
    """C04: PSS with other salts, hashes and masks than RFC 7518 3.5 has."""
    for alg in ("PS256", "PS384", "PS512"):
        bits = _bits(alg)
        data = _input(alg)
        size = bits // 8
        lengths = [0, 1, 8, 20, size - 1, size + 1, 2 * size, 256 - size - 2]
        made = {f"salt {salt}": ps(RSA, bits, salt)(data) for salt in lengths}
        for other in (256, 384, 512):
            if other != bits:
                made[f"SHA-{other}"] = ps(RSA, other)(data)
                made[f"mask of SHA-{other}"] = _masked(data, bits, other)
        made["SHA-1 mask"] = _masked(data, bits, 1)
        made["PKCS #1 v1.5"] = rs(RSA, bits)(data)
        made["digest of the digest"] = RSA.private.sign(
            hashlib.new(f"sha{bits}", hashlib.new(f"sha{bits}", data).digest()).digest(),
            padding.PSS(padding.MGF1(_hash(bits)), salt_length=size),
            Prehashed(_hash(bits)),
        )
        right = SIGNERS[alg](data)
        number = int.from_bytes(right, "big")
        modulus = RSA.public.public_numbers().n
        made |= {
            "plus n": (number + modulus).to_bytes(257, "big"),
            "leading zero": b"\0" + right,
            "cut": right[:-1],
            "zero": bytes(256),
            "n - 1": (modulus - 1).to_bytes(256, "big"),
        }
        yield from _cases_of(alg, made, "C04")


def _hash(bits: int) -> Any:
    return {1: hashes.SHA1, 256: hashes.SHA256, 384: hashes.SHA384, 512: hashes.SHA512}[bits]()


def _masked(data: bytes, bits: int, mask: int) -> bytes:
    pss = padding.PSS(padding.MGF1(_hash(mask)), salt_length=bits // 8)
    signature: bytes = RSA.private.sign(data, pss, _hash(bits))
    return signature


_ORDERS = {
    "P-256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "P-384": 2**384 - 0x389CB27E0BC8D220A7E5F24DB74F58851313E695333AD68D,
    "P-521": 2**521 - 0x5AE79787C40D069948033FEB708F65A2FC44A36477663B851449048E16EC79BF7,
}
"""Of the base points, FIPS 186 D.1.2."""


def curves() -> Iterator[tuple[str, Signature]]:
    """C02: r and s at and beyond the ends of their range, other lengths, DER forms."""
    for curve, order in _ORDERS.items():
        alg = CURVES[curve].algorithm
        size = CURVES[curve].size
        bits = _bits(alg)
        pair = _pair(alg)
        data = _input(alg)
        ends = {
            "0": 0,
            "1": 1,
            "n - 1": order - 1,
            "n": order,
            "n + 1": order + 1,
            "all ones": 2 ** (8 * size) - 1,
        }
        made = {
            f"r = {one}, s = {two}": r.to_bytes(size, "big") + s.to_bytes(size, "big")
            for one, r in ends.items()
            for two, s in ends.items()
        }
        right = es(pair, bits)(data)
        r = int.from_bytes(right[:size], "big")
        s = int.from_bytes(right[size:], "big")
        der = es_der(pair, bits)(data)
        made |= {
            "DER": der,
            "DER of the right one": _der(r, s),
            "cut": right[:-1],
            "a byte more": right + b"\0",
            "a byte in front": b"\0" + right,
            "r and s a byte wider": b"\0" + right[:size] + b"\0" + right[size:],
            "swapped": right[size:] + right[:size],
            "little endian": right[:size][::-1] + right[size:][::-1],
            "only r": right[:size],
            "r negated": (order - r).to_bytes(size, "big") + right[size:],
            "hash of another": es(pair, 512 if bits != 512 else 256)(data),
            "empty": b"",
        }
        if 2 ** (8 * size) > 2 * order:
            made["r + n"] = (r + order).to_bytes(size, "big") + right[size:]
            made["s + n"] = right[:size] + (s + order).to_bytes(size, "big")
        yield from _cases_of(alg, made, "C02")


def _der(r: int, s: int) -> bytes:
    def integer(value: int) -> bytes:
        data = value.to_bytes(value.bit_length() // 8 + 1, "big")
        return b"\x02" + bytes([len(data)]) + data

    body = integer(r) + integer(s)
    head = bytes([len(body)]) if len(body) < 128 else b"\x81" + bytes([len(body)])
    return b"\x30" + head + body


ED_ORDER = 2**252 + 27742317777372353535851937790883648493


def edwards() -> Iterator[tuple[str, Signature]]:
    """C01, C05: S beyond the order, R of small order or not canonical (RFC 8032 5.1.7)."""
    right = SIGNERS["EdDSA"](_input("EdDSA"))
    r = right[:32]
    s = int.from_bytes(right[32:], "little")
    neutral = (1).to_bytes(32, "little")
    minus_one = (2**255 - 20).to_bytes(32, "little")
    made = {
        f"S + {times} L": r + (s + times * ED_ORDER).to_bytes(32, "little")
        for times in (1, 2, 8, 14)
    }
    made |= {
        "S = 0": r + bytes(32),
        "S = L": r + ED_ORDER.to_bytes(32, "little"),
        "S = 0, R neutral": neutral + bytes(32),
        "S = 0, R of order 2": minus_one + bytes(32),
        "S = 0, R of order 4": bytes(64),
        "S all ones": r + b"\xff" * 32,
        "R all ones": b"\xff" * 32 + right[32:],
        "R beyond p": (2**255 - 18).to_bytes(32, "little") + right[32:],
        "R negated": r[:31] + bytes([r[31] ^ 0x80]) + right[32:],
        "S negated": r + (ED_ORDER - s).to_bytes(32, "little"),
        "S with its top bit": right[:63] + bytes([right[63] | 0x80]),
        "big endian": r[::-1] + right[32:][::-1],
        "cut": right[:-1],
        "a byte more": right + b"\0",
        "swapped": right[32:] + r,
        "twice": right + right,
        "zeros": bytes(64),
        "empty": b"",
        "prehashed": ed_pair().private.sign(hashlib.sha512(_input("EdDSA")).digest()),
    }
    yield from _cases_of("EdDSA", made, "C05")


def macs() -> Iterator[tuple[str, Signature]]:
    """C01: HMAC values that are cut, padded, of other keys or other hashes."""
    for alg in ("HS256", "HS384", "HS512"):
        bits = _bits(alg)
        data = _input(alg)
        right = hs(SECRET, bits)(data)
        made = {
            "empty": b"",
            "cut": right[:-1],
            "half": right[: len(right) // 2],
            "one byte": right[:1],
            "a byte more": right + b"\0",
            "zeros": bytes(bits // 8),
            "first bit off": bytes([right[0] ^ 0x80]) + right[1:],
            "hex": right.hex().encode(),
            "backwards": right[::-1],
            "empty key": hs(b"", bits)(data),
            "key with a line end": hs(SECRET + b"\n", bits)(data),
            "key cut": hs(SECRET[:-1], bits)(data),
            "key in base64url": hs(b64(SECRET).encode(), bits)(data),
            "MD5": hmac.new(SECRET, data, "md5").digest(),
            "SHA-1": hmac.new(SECRET, data, "sha1").digest(),
            "SHA-3": hmac.new(SECRET, data, f"sha3_{bits}").digest(),
            "no HMAC": hashlib.new(f"sha{bits}", SECRET + data).digest(),
        }
        yield from _cases_of(alg, made, "C01")


def sets() -> Iterator[tuple[str, tuple[dict[str, Any], int, str]]]:
    """K11: headers at a server that has the two keys of `JWKS`, and which of them signed."""
    kids = ("three", "", "ONE", "one ", " one", "one\0", "../../dev/null", "' OR 1=1", "\ud800",
            "file:///dev/null", "http://127.0.0.1:9/", "x" * 4_000, "None", "null", "0", "\uff4fne",
            "one\n", "*", "one,two")  # fmt: skip
    for kid in kids:
        yield f"K11 kid {kid[:20]!r}", ({"kid": kid}, 1, "key")
    yield "K11 absent with 2 keys", ({}, 1, "key")
    yield "K11 the other key's", ({"kid": "two"}, 1, "signature")
    yield "K11 the other key's, turned", ({"kid": "one"}, 2, "signature")
    for value in (1, None, ["one"], {"one": 1}, True):
        yield f"K11 two keys, kid {value!r}", ({"kid": value}, 1, "header")


@functools.cache
def build_signatures() -> dict[str, Signature]:
    """Return all cases by name. To sign them takes half a second."""
    groups = (crossed_algorithms, paddings, salts, curves, edwards, macs)
    return {name: case for group in groups for name, case in group()}


def high_s(text: str, curve: str) -> str:
    """The other text of an ECDSA token: s and n - s are both right (RFC 7515 does not choose)."""
    signing_input, _, signature = text.rpartition(".")
    size = CURVES[curve].size
    order = _ORDERS[curve]
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    s = order - int.from_bytes(raw[size:], "big")
    return f"{signing_input}.{b64(raw[:size] + s.to_bytes(size, 'big'))}"
