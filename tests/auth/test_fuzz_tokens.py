"""Tokens with random changes at every layer; a million of them with AGENTCTL_TEST_LONG=1.

A header of `hostile.CASES` or a valid one is changed in its text, in the bytes of its base64url, in
its JSON, or with parts of another one, and signed again or not. `is_valid` checks each accepted
token without the code of the verifier.
"""

from __future__ import annotations

import base64
import hmac
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from agentctl.auth.principal import Principal
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidToken
from tests.auth.hostile import CASES
from tests.auth.verifiers import JWT_CHECK_NAMES
from tests.kit.forged_tokens import NOW, SECRET, b64, compact, hs, token

TOKENS = 1_000_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 20_000
HEADER = {"alg": "HS256", "typ": "JWT"}
PAYLOAD = {"sub": "me", "scopes": ["agents:read"], "exp": NOW + 9, "iat": NOW, "session_id": "s"}

_TEXT = (
    "".join(map(chr, range(128)))
    + "\x85\u00a0\u00e9\u0661\u200b\u2028\ud800\udfff\ufeff\uff33\U0001f600"
)
_VALUES: list[Any] = [
    None, True, False, 0, -1, 1e308, 1e999, -0.0, math.nan, 10**70, NOW, NOW + 9, "", "me", "sa:x",
    "__x", "HS256", "none", "RS256", "JWT", [], ["HS256"], {}, {"alg": "none"}, [[[[[[[[[1]]]]]]]]],
    "\ud800", "\0", "x" * 300, ["agent_os:admin"], ["a"] * 300,
]  # fmt: skip
_NAMES = [
    "alg", "typ", "kid", "crit", "b64", "cty", "jwk", "zip", "enc", "sub", "exp", "nbf", "iat",
    "aud", "iss", "scopes", "session_id", "x",
]  # fmt: skip
_SEEDS = [case.header for case in CASES.values() if len(case.header) < 9_000]

Change = Callable[[random.Random, str], str]


def changed_text(chance: random.Random, text: str) -> str:
    """Characters replaced, put in, taken out, doubled."""
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text) + 1)
        size = chance.choice((0, 1, 1, 2, 20))
        new = "".join(chance.choices(_TEXT, k=chance.choice((0, 1, 1, 2))))
        text = text[:place] + new + text[place + size :]
        if chance.random() < 0.1:
            text = text[:place] + text
    return text


def spliced(chance: random.Random, text: str) -> str:
    """Segments of several tokens put together."""
    pool = [*text.split("."), *chance.choice(_SEEDS).split("."), ""]
    return "Bearer " + ".".join(chance.choices(pool, k=chance.choice((1, 2, 3, 3, 3, 5))))


def changed_bytes(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    new = bytes(chance.choices(range(256), k=chance.choice((0, 1, 1, 3))))
    return data[:place] + new + data[place + chance.choice((0, 1, 1, 5)) :]


def changed_members(chance: random.Random, members: dict[str, Any]) -> bytes:
    """JSON with members added, dropped, or named twice."""
    members = {name: value for name, value in members.items() if chance.random() > 0.1}
    for _ in range(chance.choice((0, 1, 1, 2))):
        members[chance.choice(_NAMES)] = chance.choice(_VALUES)
    text = json.dumps(members, separators=chance.choice(((",", ":"), (", ", ": ")))).encode()
    if chance.random() < 0.05:
        text = text.replace(b"{", b'{"alg":"HS256",', 1)
    return text


def random_token(chance: random.Random) -> str:
    """A token of changed parts, mostly signed rightly."""
    header, payload = (
        changed_members(chance, part) if chance.random() < 0.7 else compact(part)
        for part in (HEADER, PAYLOAD)
    )
    if chance.random() < 0.3:
        header = changed_bytes(chance, header)
    if chance.random() < 0.3:
        payload = changed_bytes(chance, payload)
    bits = chance.choice((256,) * 8 + (384, 512))
    sign = hs(SECRET if chance.random() < 0.9 else b"x" * 32, bits)
    return "Bearer " + token(header, payload, sign)


def any_header(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.5:
        text = random_token(chance)
    elif kind < 0.7:
        text = "Bearer " + token(HEADER, PAYLOAD, hs(SECRET))
    else:
        text = chance.choice(_SEEDS)
    kind = chance.random()
    if kind < 0.4:
        return text
    return changed_text(chance, text) if kind < 0.8 else spliced(chance, text)


def is_valid(header: str, principal: Principal) -> bool:
    """Return True if an accepted header is valid, by independent code."""
    scheme, text = header.split(" ")
    first, second, third = text.split(".")
    padded = (part + "=" * (-len(part) % 4) for part in (first, second, third))
    raw = [base64.b64decode(part, b"-_", validate=True) for part in padded]
    if [b64(part) for part in raw] != [first, second, third] or scheme.lower() != "bearer":
        return False
    good = hmac.digest(SECRET, f"{first}.{second}".encode(), "sha256")
    said = json.loads(raw[0])
    claims = json.loads(raw[1])
    scopes = claims.get("scopes")
    times = [claims.get("exp", NOW + 1) > NOW, claims.get("iat", 0) <= NOW + 10]
    return (
        hmac.compare_digest(good, raw[2])
        and said["alg"] == "HS256"
        and not {"crit", "b64", "enc", "zip", "cty"} & said.keys()
        and all(times)
        and principal.subject == claims.get("sub")
        and principal.admin == (isinstance(scopes, list) and "agent_os:admin" in scopes)
    )


def outcome(one: Verifier, header: str) -> str:
    """The step that a header fails, or `passed`; any other exception is a failure of the test."""
    try:
        principal = one.identify_jwt(header)
    except InvalidToken as refusal:
        return refusal.check if len(refusal.reason) < 100 else refusal.reason
    return "passed" if is_valid(header, principal) else f"wrongly passed: {header}"


def test_fuzzed_tokens_give_a_principal_or_invalid_token() -> None:
    chance = random.Random(20)
    given = Authorization(algorithm="HS256", verification_keys=(SECRET.decode(),))
    one = Verifier(Settings(authorization=given), clock=lambda: NOW)
    ends = Counter(outcome(one, any_header(chance)) for _ in range(TOKENS))
    assert ends.keys() <= {*JWT_CHECK_NAMES, "passed"}
    assert ends["passed"] > TOKENS // 100
    # With one secret there is always a key, no issuer is set, and no scope is an error.
    missed = set(JWT_CHECK_NAMES) - ends.keys() - {"key", "claims.iss", "claims.scopes"}
    assert not missed, "the fuzz has to come to every step"
