"""Signatures, claims and the cache of verified tokens, against PyJWT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import jwt
import pytest
from jwt.api_jws import PyJWS

from agentctl.auth.keys.signing import SigningKey, build_jws
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.algorithms import ALGORITHMS
from agentctl.auth.tokens.claims import ClaimRules, check_claims
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidToken
from tests.auth.test_fuzz_tokens import changed_bytes, changed_members, changed_text
from tests.differential.comparison import Comparison, Outcome, attempt
from tests.kit import forged_tokens as forge
from tests.kit.forged_tokens import NOW, SECRET, Pair, Signer, compact, hs, token


class _Clock(jwt.api_jwt.datetime):  # type: ignore[name-defined, misc]
    """The clock of PyJWT, stopped at the time of the tests."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(NOW, tz)


JWS = PyJWS(options={"enforce_minimum_key_length": True})

HEADER_RULES = {
    "the token is longer than": "docs/limits.md: auth.tokens.algorithms.MAXIMUM_TOKEN",
    "the header names a member twice": "RFC 7515 4",
    "the header is not UTF-8": "RFC 7515 5.2, 3",
    "the header is not JSON": "RFC 8259 8.1: no byte order mark, UTF-8 only",
    "the header has a number": "RFC 8259 6: no NaN, no Infinity; security case J13",
    "the header is nested deeper": "docs/internals/security-cases.md J13",
    "the header has b64": "RFC 7797 6: a verifier without support refuses it",
    "the header has enc": "RFC 8725 3.11: no token of another kind",
    "the header has zip": "RFC 8725 3.6: no compression",
    "the header has cty": "RFC 7519 5.2: no token in a token",
    "the header's typ": "RFC 8725 3.11: explicit types",
    "the header has characters": "RFC 7515 2: no padding",
    "the payload has characters": "RFC 7515 2: no padding",
    "the signature has characters": "RFC 7515 2: no padding",
    "no key of the set has the token's kid": "RFC 7515 4.1.4, docs/contract.md",
}

CLAIM_RULES = {
    "the payload names a member twice": "RFC 7519 4",
    "the payload is not UTF-8": "RFC 7519 7.2, 10",
    "the payload has a number": "RFC 8259 6: no NaN, no Infinity; security case J13",
    "the payload is nested deeper": "docs/internals/security-cases.md J13",
    "the token's exp is not": "RFC 7519 2: a NumericDate is a number",
    "the token's nbf is not": "RFC 7519 2: a NumericDate is a number",
    "the token's iat is not": "RFC 7519 2: a NumericDate is a number",
    "the token's nbf is in the future": "RFC 7519 4.1.5: fractions of a second count",
    "the token's iat is in the future": "RFC 7519 4.1.6: fractions of a second count",
    "the token's aud is not a string": "RFC 7519 4.1.3: also if no audience is configured",
    "the token's aud has more": "docs/internals/security-cases.md D06",
    "the token's sub": 'docs/contract.md "Claims": reserved and invisible subjects',
    "the token's session_id": 'docs/contract.md "Claims"',
}

WIDER_CLAIMS = {"Signature has expired": "RFC 7519 2: an exp with a fraction is a NumericDate"}


class Issuer(NamedTuple):
    """An algorithm, its signer, the trusted keys, and those of the library."""

    name: str
    sign: Signer
    own: KeySet
    library: Mapping[str | None, Any]


def build_issuers() -> list[Issuer]:
    """Return an issuer for each algorithm: with one key without `kid`, and with a set of two."""
    found = []
    for name, spec in ALGORITHMS.items():
        bits = spec.hash_bits
        curves = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
        pair: Pair | None = None
        sign: Signer = hs(SECRET, bits)
        if spec.family == "RSA":
            pair = forge.rsa_pair(1)
            sign = forge.rs(pair, bits) if name.startswith("RS") else forge.ps(pair, bits)
        elif spec.family != "oct":
            pair = forge.ec_pair(curves[name]) if spec.family == "EC" else forge.ed_pair()
            sign = forge.es(pair, bits) if spec.family == "EC" else forge.ed(pair)
        texts = (SECRET.decode() if pair is None else pair.pem,)
        rules = Authorization(algorithm=name, verification_keys=texts)  # type: ignore[arg-type]
        own = Verifier(Settings(authorization=rules)).keys
        assert own is not None
        (key,) = own.keys
        found.append(Issuer(name, sign, own, {None: key.material}))
        named = KeySet(own.spec, {"a": key, "b": key})
        found.append(Issuer(name, sign, named, {"a": key.material, "b": key.material}))
    return found


ISSUERS = build_issuers()


def random_jws(chance: Random, issuer: Issuer) -> str:
    """Return a token of this issuer, mostly changed in its header, its payload or its text."""
    header: dict[str, Any] = {"alg": issuer.name, "typ": "JWT"}
    if chance.random() < 0.6:
        header["kid"] = chance.choice(["a", "b", "c", ""])
    changed = changed_members(chance, header) if chance.random() < 0.5 else compact(header)
    if chance.random() < 0.15:
        changed = changed_bytes(chance, changed)
    if chance.random() < 0.03:
        changed = changed.decode("utf-8", "replace").encode(chance.choice(["utf-16", "utf-8-sig"]))
    payload = changed_bytes(chance, b'{"sub":"me"}') if chance.random() < 0.3 else b'{"sub":"me"}'
    sign = (
        issuer.sign
        if chance.random() < 0.9
        else forge.fixed(chance.randbytes(chance.choice([0, 64])))
    )
    if chance.random() < 0.01:
        changed = compact({**header, "x": "x" * 6_200})
    if chance.random() < 0.03:
        changed = compact({**header, "crit": ["b64"], "b64": True})
    if chance.random() < 0.05:
        padded = (
            part + "=" * (-len(part) % 4) for part in (forge.b64(changed), forge.b64(payload))
        )
        return forge.seal(".".join(padded), sign)
    text = token(changed, payload, sign)
    kind = chance.random()
    if kind < 0.15:
        return changed_text(chance, text)
    if kind < 0.2:
        return ".".join(part + "=" * (-len(part) % 4) for part in text.split("."))
    if kind < 0.3:
        place = chance.randrange(len(text))
        return text[:place] + chance.choice("AB-_9z.=") + text[place + 1 :]
    return text


def decode(text: str, issuer: Issuer) -> tuple[Any, Any]:
    """Verify with PyJWT and the key of the `kid`, else with any key."""
    error: Exception = jwt.InvalidTokenError("no key")
    for key in issuer.library.values():
        try:
            decoded = JWS.decode_complete(text, key, algorithms=[issuer.name])
        except (jwt.InvalidTokenError, jwt.InvalidKeyError, ValueError, TypeError) as failure:
            error = failure
        else:
            return decoded["header"], decoded["payload"]
    raise jwt.InvalidTokenError(str(error))


def verify(text: str, issuer: Issuer) -> tuple[Any, Any]:
    verified = verify_token(text, issuer.own)
    assert verified.key in issuer.own.keys
    return verified.header, verified.payload


def test_every_accepted_signature_is_accepted_by_pyjwt() -> None:
    with Comparison("signatures of tokens", stricter=HEADER_RULES) as comparison:
        for number in comparison.rounds(4_000):
            issuer = ISSUERS[number % len(ISSUERS)]
            text = random_jws(comparison.chance, issuer)
            comparison.compare(
                (issuer.name, text),
                attempt(lambda text=text, issuer=issuer: verify(text, issuer), InvalidToken),  # type: ignore[misc]
                attempt(lambda text=text, issuer=issuer: decode(text, issuer), jwt.PyJWTError),  # type: ignore[misc]
            )
        assert comparison.accepted > 100


CLAIMS: dict[str, list[Any]] = {
    "exp": [NOW + 1, NOW, NOW - 1, NOW + 0.5, NOW - 0.5, NOW + 9e9, -1, 1e300, 10**70],
    "nbf": [NOW, NOW + 1, NOW + 0.5, NOW - 0.5, NOW - 9, -1, 0],
    "iat": [NOW, NOW + 1, NOW + 0.5, NOW - 0.5, NOW - 9, -1, 0],
    "aud": ["here", "there", "HERE", ["here"], ["there", "here"], ["there"], [], ["here"] * 20],
    "iss": ["us", "them", "US", "us ", ["us"]],
    "sub": ["me", "", "x" * 300, "sa:x", "me\u200b", "__x"],
    "session_id": ["s", "a/b", ""],
    "scopes": [["agents:read"], [], "agents:read", [1]],
}
ODD: list[Any] = [None, True, "", "1", str(NOW + 9), [], {}, [NOW], {"a": [[[[[[[[1]]]]]]]]}]


def random_payload(chance: Random) -> bytes:
    members = {
        name: chance.choice((*values[:1] * 3, *values, chance.choice(ODD)))
        for name, values in CLAIMS.items()
        if chance.random() < 0.5
    }
    payload = compact(members)
    if chance.random() < 0.05:
        payload = payload.replace(b"{", b'{"sub":"me",', 1)
    if chance.random() < 0.05:
        payload = payload.replace(b"1", chance.choice([b"NaN", b"1e999", b"-Infinity"]), 1)
    if chance.random() < 0.03:
        payload = payload.decode().encode("utf-16")
    return changed_bytes(chance, payload) if chance.random() < 0.15 else payload


def random_rules(chance: Random) -> ClaimRules:
    """Return rules without leeway, because that of PyJWT counts for `exp` too."""
    return ClaimRules(
        audience=chance.choice([None, "here"]),
        issuer=chance.choice([None, "us"]),
        require_exp=chance.random() < 0.3,
        require_sub=chance.random() < 0.3,
        leeway=0,
    )


def read_claims(payload: bytes, rules: ClaimRules) -> Any:
    claims = check_claims(payload, rules, NOW)
    return claims.subject, claims.session_id, claims.expires_at


def read_claims_with_pyjwt(text: str, rules: ClaimRules) -> Any:
    options: Any = {
        "require": [name for name in ("exp", "sub") if getattr(rules, f"require_{name}")],
        "verify_aud": rules.audience is not None,
    }
    claims = jwt.decode(
        text,
        key=SECRET,
        algorithms=["HS256"],
        audience=rules.audience,
        issuer=rules.issuer,
        options=options,
    )
    return claims.get("sub"), claims.get("session_id"), claims.get("exp")


@mock.patch("jwt.api_jwt.datetime", _Clock)
def test_every_accepted_claim_is_accepted_by_pyjwt() -> None:
    refusals = (jwt.PyJWTError, OverflowError, ValueError, TypeError)
    with Comparison("claims of tokens", stricter=CLAIM_RULES, wider=WIDER_CLAIMS) as comparison:
        for _ in comparison.rounds(4_000):
            payload = random_payload(comparison.chance)
            rules = random_rules(comparison.chance)
            text = token({"alg": "HS256"}, payload, hs(SECRET))
            comparison.compare(
                (payload, rules),
                attempt(partial(read_claims, payload, rules), InvalidToken),
                attempt(partial(read_claims_with_pyjwt, text, rules), *refusals),
            )
        assert comparison.accepted > 100


@pytest.mark.parametrize("name", ALGORITHMS)
def test_minted_tokens_are_those_of_pyjwt(name: str) -> None:
    """Deterministic signatures are equal byte by byte, the others are verified by PyJWT."""
    spec = ALGORITHMS[name]
    pairs = {"RSA": forge.rsa_pair(1), "OKP": forge.ed_pair()}
    if spec.family == "EC":
        pairs["EC"] = forge.ec_pair(str(spec.curve))
    private = SECRET if spec.family == "oct" else pairs[spec.family].private
    public = SECRET if spec.family == "oct" else pairs[spec.family].public
    with Comparison(f"minted tokens, {name}") as comparison:
        for _ in comparison.rounds(5):
            payload = comparison.chance.randbytes(40)
            kid = comparison.chance.randbytes(4).hex()
            own = build_jws(payload, SigningKey(spec, private), "JWT", kid)
            other = JWS.encode(payload, private, name, {"kid": kid}, sort_headers=True)
            if name.startswith(("PS", "ES")):
                (own_input, _, _), (other_input, _, _) = (x.rpartition(".") for x in (own, other))
                decoded = JWS.decode_complete(own, public, algorithms=[name])
                assert decoded["payload"] == payload
                own = own_input
                other = other_input
            comparison.compare((name, payload), Outcome(own), Outcome(other))


def identify(verifier: Verifier, header: str) -> Outcome:
    return attempt(lambda: verifier.identify_jwt(header), InvalidToken)


CONFIGURED = [
    Settings(authorization=Authorization(algorithm="HS256", **rules))  # type: ignore[arg-type]
    for rules in (
        {"verification_keys": (SECRET.decode(),)},
        {"verification_keys": (SECRET.decode()[::-1],)},
        {"verification_keys": (SECRET.decode(),), "issuer": "us"},
    )
]
"""The settings of three verifiers."""


def build_headers() -> list[str]:
    """Return headers with tokens of several keys and users, which expire at different times."""
    return [
        f"Bearer {token({'alg': 'HS256'}, claims, hs(secret))}"
        for secret in (SECRET, SECRET[::-1])
        for user in ("ann", "bob")
        for claims in (
            {"sub": user},
            {"sub": user, "iss": "us", "exp": NOW + 40},
            {"sub": user, "exp": NOW + 5.5, "scopes": ["agents:read"]},
            {"sub": user, "nbf": NOW + 20, "iss": "us"},
        )
    ]


class Moment:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = float(NOW)

    def open_verifier(self, settings: Settings) -> Verifier:
        return Verifier(settings, clock=lambda: self.now, monotonic=lambda: self.now - NOW)


def test_cached_verifications_are_those_of_a_new_verifier() -> None:
    """Three verifiers work in turn; each answer is compared with that of one without a cache.

    Now and then the time goes back to its begin, and all verifiers are new.
    """
    moment = Moment()
    headers = build_headers()
    kept = [moment.open_verifier(settings) for settings in CONFIGURED]
    with Comparison("cache of verified tokens") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(1_500):
            moment.now += chance.choice([0, 0, 0, 0.1, 0.4])
            if chance.random() < 0.002:
                moment.now = NOW
                kept = [moment.open_verifier(settings) for settings in CONFIGURED]
            place = chance.randrange(len(kept))
            header = chance.choice(headers)
            if chance.random() < 0.1:
                header = header[:-2] + chance.choice(["AA", "BA", "", "=="])

            own = identify(kept[place], header)
            fresh = identify(moment.open_verifier(CONFIGURED[place]), header)
            if own.value is not None:
                assert isinstance(own.value, Principal)
                assert json.loads(own.value.claims)["sub"] == own.value.subject
            comparison.compare((place, header, moment.now), own, fresh)
        assert comparison.accepted > 100
