"""Verification keys in JWK and PEM, shared secrets and key sets by URL, against libraries."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jwt.algorithms import HMACAlgorithm
from jwt.exceptions import InvalidKeyError

from agentctl.auth.keys.material import parse_keys
from agentctl.auth.keys.rotation import PemFile
from agentctl.auth.keys.shared_secret import check_secret
from agentctl.auth.keys.signing import SigningKey, key_thumbprint
from agentctl.auth.tokens.algorithms import ALGORITHMS
from agentctl.auth.tokens.jwk import public_jwk
from agentctl.auth.tokens.jws import KeySet
from agentctl.errors import InvalidKey
from tests.differential.comparison import Comparison, Outcome, attempt
from tests.kit.forged_tokens import SECRET, Pair, b64, ec_pair, ed_pair, rsa_pair

PAIRS: dict[str, Pair] = {
    "RS256": rsa_pair(1),
    "PS512": rsa_pair(2),
    "ES256": ec_pair("P-256"),
    "ES384": ec_pair("P-384"),
    "ES512": ec_pair("P-521"),
    "EdDSA": ed_pair(),
}

JWK_RULES = {
    "The JWKS has no usable key": "RFC 7517 4.2, 4.3, 4.4: another use, operation or algorithm",
    "JWKS key 1 is a private key": "RFC 7517 9.2: a key set of a verifier has no private key",
    "JWKS key 1 is an RSA key of": "RFC 7518 3.3: 2048 bits or more, docs/limits.md",
    "JWKS key 1 is an RSA key with an unsound exponent": "decision 138",
    "JWKS key 1 is not a valid RSA key": "decision 138: the modulus is odd",
    "JWKS key 1 has numbers in another form": "RFC 7518 2, 6.2.1.2, 6.3.1: one form of a number",
    "JWKS key 1 has a member k": "RFC 7515 2: no padding",
    "JWKS key 1 is a secret": "RFC 7518 3.2: as long as the hash",
    "JWKS key 1 has a": "RFC 7517 4: members about the purpose are strings",
    "JWKS key 1 has key_ops": "RFC 7517 4.3: an array of strings",
    "JWKS key 1 names an operation twice": "RFC 7517 4.3",
}


def numbers_of(key: Any) -> Any:
    """Return a comparable form of a public key or a secret."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, Ed25519PublicKey):
        return key.public_bytes_raw()
    numbers = key.public_numbers()
    return repr(numbers), getattr(numbers, "n", 0)


def random_jwk(chance: Random, name: str) -> dict[str, Any]:
    """Return a JWK for an algorithm, mostly changed in a member."""
    spec = ALGORITHMS[name]
    entry: dict[str, Any] = (
        {"kty": "oct", "k": b64(SECRET)} if spec.family == "oct" else public_jwk(PAIRS[name].public)
    )
    material = [member for member in ("n", "e", "x", "y", "k") if member in entry]
    changes: list[Callable[[], Any]] = [
        lambda: entry.update(alg=chance.choice([name, "RS256", "ES256", "none", 1])),
        lambda: entry.update(use=chance.choice(["sig", "enc", "", None])),
        lambda: entry.update(
            key_ops=chance.choice([["verify"], ["sign"], [], ["verify"] * 2, "x"])
        ),
        lambda: entry.update(kid=chance.choice(["a", "", 1, "\0"])),
        lambda: entry.update(crv=chance.choice(["P-256", "P-384", "Ed25519", "Ed448", 1])),
        lambda: entry.update(kty=chance.choice(["RSA", "EC", "OKP", "oct", "rsa"])),
        lambda: entry.pop(chance.choice(list(entry))),
        lambda: entry.update(d=b64(ed_pair().private.private_bytes_raw())),
        lambda: entry.update(
            {chance.choice(material): chance.choice(["", 1, None, "A", "AQAB", "Aw"])}
        ),
    ]
    for _ in range(chance.choice([0, 1, 1, 2])):
        chance.choice(changes)()
    member = chance.choice(material)
    if isinstance(entry.get(member), str) and chance.random() < 0.5:
        entry[member] = changed_number(chance, entry[member])
    return entry


def changed_number(chance: Random, text: str) -> str:
    """Return the base64url of another number, or another text of the same one."""
    place = chance.randrange(len(text) + 1)
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""
    return chance.choice(
        [
            text + "=" * (-len(text) % 4),
            b64(b"\0" + data),
            b64(data[1:]),
            b64(data[: len(data) // 4]),
            text[:place] + chance.choice("AQ_-+/ \n!é") + text[place + 1 :],
            text[:-1] + chance.choice("ABQgw"),
        ]
    )


def test_every_accepted_jwk_is_the_key_of_pyjwt() -> None:
    names = [*PAIRS, "HS256", "HS512"]
    with Comparison("JSON Web Keys", stricter=JWK_RULES) as comparison:
        for number in comparison.rounds(6_000):
            name = names[number % len(names)]
            entry = random_jwk(comparison.chance, name)

            def own(entry: Any = entry, name: str = name) -> Any:
                (key,) = KeySet.from_jwks({"keys": [entry]}, algorithm=name).keys
                assert key.kid == entry.get("kid")
                return numbers_of(key.material)

            def library(entry: Any = entry, name: str = name) -> Any:
                key = jwt.PyJWK(entry, name).key
                return numbers_of(key.public_key() if hasattr(key, "private_bytes") else key)

            refusals = (jwt.PyJWTError, KeyError, ValueError, TypeError, UnsupportedAlgorithm)
            comparison.compare((name, entry), attempt(own, InvalidKey), attempt(library, *refusals))
        assert comparison.accepted > 500


PEM_RULES = {
    "K is not a key for": "RFC 8725 3.1: a key has one algorithm",
    "K is not on the curve": "RFC 7518 3.4: an algorithm has one curve",
    "K is not a PEM public key": "RFC 7468 13, 3: labels, and no block that is cut off",
}
TEXTS = [pair.pem for pair in PAIRS.values()]
DAMAGED = ("-{}", "a key:\n-----{}", "{}-----BEGIN", "{}\n-----BEGIN----- PUBLIC KEY-----\nMF")
"""Keys with a damaged boundary next to them, which random changes seldom make."""


def random_pem(chance: Random) -> str:
    """Return PEM blocks with texts around them, mostly changed."""
    blocks = chance.choices(
        TEXTS[:3] if chance.random() < 0.8 else TEXTS, k=chance.choice([1, 1, 2])
    )
    text = chance.choice(["", "\n", "a key:\n"]).join(["", *blocks])
    for _ in range(chance.choice([0, 0, 1, 2])):
        place = chance.randrange(len(text) + 1)
        text = chance.choice(
            [
                text.replace("\n", "\r\n"),
                text.replace("PUBLIC KEY", chance.choice(["RSA PUBLIC KEY", "CERTIFICATE"]), 2),
                text[:place],
                text[:place]
                + chance.choice(["A", " ", "\n", "-", "=", "é", "-----"])
                + text[place:],
                text[:place] + text[place + 1 :],
                text.replace("\n", "\\n"),
                text.replace("\n", ""),
                PAIRS["RS256"].private_pem + text,
            ]
        )
    return text


def load_each(text: str) -> list[Any]:
    """Load the keys of a text with cryptography: the first block, then the text after it."""
    found = []
    while "-----BEGIN" in text:
        block, end, text = text.partition("-----END ")
        label, close, rest = text.partition("-----")
        found.append(serialization.load_pem_public_key((block + end + label + close).encode()))
        text = rest
    if not found:
        raise ValueError("no PEM block")
    return [numbers_of(key) for key in found]


def test_every_accepted_pem_is_the_key_of_cryptography() -> None:
    with Comparison("verification keys in PEM", stricter=PEM_RULES) as comparison:
        for number in comparison.rounds(3_000):
            name = list(PAIRS)[number % 3]
            text = random_pem(comparison.chance)
            if number < len(DAMAGED):
                text = DAMAGED[number].format(TEXTS[number % 3])

            def own(text: str = text, name: str = name) -> Any:
                return [numbers_of(key.material) for key in parse_keys(text, ALGORITHMS[name], "K")]

            comparison.compare(
                (name, text),
                attempt(own, InvalidKey),
                attempt(
                    # Two characters \\n are a line break here, as files of variables write it.
                    lambda text=text: load_each(text.replace("\\n", "\n")),
                    ValueError,
                    UnsupportedAlgorithm,
                ),  # type: ignore[misc]
            )
        assert comparison.accepted > 300


def test_files_of_keys_have_the_keys_that_a_list_has() -> None:
    """Marks, additions and removals in a PEM file, compared with the same on a list."""
    spec = ALGORITHMS["RS256"]
    pairs = [rsa_pair(number) for number in (1, 2, 3)]
    keys = [SigningKey(spec, pair.private) for pair in pairs]
    texts = {key_thumbprint(key): pair.pem for key, pair in zip(keys, pairs, strict=True)}
    with Comparison("files of verification keys") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(60):
            expected: list[tuple[str, int | None]] = [(next(iter(texts)), None)]
            data = chance.choice(["", "of us:\n"]) + texts[expected[0][0]]
            content = (data.replace("\n", "\r\n") if chance.random() < 0.3 else data).encode()
            for moment in range(chance.randrange(1, 5)):
                if chance.random() < 0.7:
                    old = chance.choice(expected)[0]
                    new = chance.choice(keys)
                    content = PemFile(content, spec).with_new_key(old, new, moment * 10**6)
                    expected = [
                        (name, moment * 10**6 if name == old else time) for name, time in expected
                    ]
                    if key_thumbprint(new) not in dict(expected):
                        expected.insert(0, (key_thumbprint(new), None))
                elif len(expected) > 1:
                    gone = chance.choice(expected)[0]
                    content = PemFile(content, spec).without_keys({gone})
                    expected = [item for item in expected if item[0] != gone]
                times = PemFile(content, spec).removal_times()
                comparison.compare(content, Outcome(list(times.items())), Outcome(expected))
                library = [
                    numbers_of(pairs[list(texts).index(name)].public) for name, _ in expected
                ]
                comparison.compare(content, Outcome(load_each(content.decode())), Outcome(library))


SECRET_RULES = {
    "S is a secret that is easy to guess": "RFC 8725 3.5: entropy of a key",
    "S is a key, not a shared secret": "RFC 8725 2.1: a public key in any encoding",
}


KEY_TEXTS = [
    *(pair.pem.encode() for pair in PAIRS.values()),
    *(pair.private_pem.encode() for pair in PAIRS.values()),
    *(pair.spki(serialization.Encoding.DER) for pair in PAIRS.values()),
    *(json.dumps(public_jwk(pair.public)).encode() for pair in PAIRS.values()),
    b"ssh-ed25519 " + base64.b64encode(SECRET * 2),
]
"""Keys of other algorithms, which somebody may take for a shared secret."""

ENCODINGS: list[Callable[[bytes], bytes]] = [
    bytes,
    bytes,
    bytes,
    base64.b64encode,
    bytes.strip,
    lambda data: data.hex().encode(),
    lambda data: b" " + data,
    lambda data: data + b"\n",
    lambda data: data[:-1],
]


def random_secret(chance: Random) -> bytes:
    """Return random bytes, bytes that are easy to guess, or a key, in some encoding."""
    data = chance.randbytes(chance.choice([8, 31, 32, 48, 64]))
    plain = chance.choice([data, bytes(40), b"ab" * 20, b"{}" + data, *KEY_TEXTS])
    return chance.choice(ENCODINGS)(plain)


def accept(secret: bytes) -> bytes:
    check_secret(secret, ALGORITHMS["HS256"], "S")
    return secret


def accept_with_pyjwt(secret: bytes) -> bytes:
    algorithm = HMACAlgorithm(HMACAlgorithm.SHA256)
    key = algorithm.prepare_key(secret)
    if message := algorithm.check_key_length(key):
        raise InvalidKeyError(message)
    return key


def test_every_accepted_secret_is_accepted_by_pyjwt() -> None:
    with Comparison("shared secrets", stricter=SECRET_RULES) as comparison:
        for _ in comparison.rounds(3_000):
            secret = random_secret(comparison.chance)
            comparison.compare(
                secret,
                attempt(partial(accept, secret), InvalidKey),
                attempt(partial(accept_with_pyjwt, secret), InvalidKeyError),
            )
        assert comparison.accepted > 300
