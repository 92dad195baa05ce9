"""Any input gives a result or InvalidToken."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentctl.auth.principal import is_action_allowed, sufficient_scopes
from agentctl.auth.tokens.claims import ClaimRules, check_claims
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.auth.tokens.mint import inspect_token
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidKey, InvalidToken
from agentctl.records.authorization import is_known_scope, is_well_formed, suggest_scope
from agentctl.records.strict import NotStrict, decode_base64url, encode_base64url, parse_object
from tests.auth.verifiers import load_texts
from tests.kit.forged_tokens import NOW, SECRET, hs, token

KEYS = load_texts([SECRET.decode()], "HS256")
STRICT = ClaimRules("aud", "iss", require_exp=True, require_sub=True)
bounded = settings(max_examples=150, derandomize=True)

sample = settings(max_examples=40, derandomize=True)
"""For tests of the layer `check`, and of `doors` in other files."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["JWT"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=6,
)
names = st.sampled_from(["alg", "kid", "typ", "crit", "b64", "cty", "jwk", "x"])
claim_names = st.sampled_from(
    ["exp", "nbf", "iat", "sub", "aud", "iss", "scopes", "session_id", "jti"]
)
segments = st.text(st.characters(codec=None)) | st.binary(max_size=60).map(encode_base64url)


def signed_bytes(header: Any, payload: Any) -> str:
    return token(header, payload, hs(SECRET))


def check_outcome(text: str) -> None:
    with suppress(InvalidToken):
        verify_token(text, KEYS)
    with suppress(InvalidToken):
        inspect_token(text)


@bounded
@given(st.text(st.characters(codec=None)))
@example("\ud800.\ud800.\ud800")
def test_any_text_is_rejected(text: str) -> None:
    check_outcome(text)


@sample
@given(st.lists(segments, min_size=3, max_size=3))
def test_any_three_segments_are_rejected(parts: list[str]) -> None:
    check_outcome(".".join(parts))


@bounded
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_signed_bytes_give_claims_or_a_rejection(header: bytes, payload: bytes) -> None:
    check_outcome(signed_bytes(header, payload))
    with suppress(InvalidToken):
        check_claims(payload, ClaimRules(), NOW)


@sample
@given(st.dictionaries(names | st.text(), values))
def test_any_signed_header_is_accepted_or_rejected(header: dict[str, Any]) -> None:
    check_outcome(signed_bytes(header, {}))
    check_outcome(signed_bytes({**header, "alg": "HS256"}, {}))


@sample
@given(st.dictionaries(claim_names | st.text(), values))
def test_any_claims_are_accepted_or_rejected(claims: dict[str, Any]) -> None:
    payload = json.dumps(claims).encode()
    for rules in (ClaimRules(), STRICT):
        with suppress(InvalidToken):
            found = check_claims(payload, rules, NOW)
            assert all(is_well_formed(scope) for scope in found.scopes)
            assert found.expires_at is None or found.expires_at > NOW
    check_outcome(signed_bytes({"alg": "HS256"}, payload))


@sample
@given(st.integers(min_value=0), st.integers(0, 255))
def test_any_change_of_a_valid_token_is_rejected(position: int, value: int) -> None:
    good = signed_bytes({"alg": "HS256"}, {"sub": "me"})
    index = position % len(good)
    changed = good[:index] + chr(value) + good[index + 1 :]
    if changed == good:
        return
    try:
        verify_token(changed, KEYS)
    except InvalidToken:
        return
    raise AssertionError("a changed token passed")


@bounded
@given(st.text(st.characters(codec=None)))
def test_any_authorization_header_is_accepted_or_rejected(text: str) -> None:
    one = Verifier(
        Settings(
            authorization=Authorization(algorithm="HS256", verification_keys=(SECRET.decode(),))
        )
    )
    for header in (text, f"Bearer {text}"):
        with suppress(InvalidToken):
            one.identify_jwt(header)


@bounded
@given(values)
def test_any_key_set_is_accepted_or_rejected(document: Any) -> None:
    for mapping in (document, {"keys": document}, {"keys": [document]}):
        for algorithm in (None, "RS256", "HS256"):
            with suppress(InvalidKey):
                KeySet.from_jwks(mapping, algorithm=algorithm)


key_members = st.sampled_from(
    ["kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y", "k"]
)
key_values = (
    st.sampled_from(["RSA", "EC", "OKP", "oct", "sig", "RS256", "P-256", "Ed25519", "AQAB"])
    | values
)


@bounded
@given(st.lists(st.dictionaries(key_members, key_values), max_size=3))
def test_any_jwk_members_are_accepted_or_rejected(entries: list[dict[str, Any]]) -> None:
    for algorithm in (None, "RS256", "ES256", "EdDSA", "HS256"):
        with suppress(InvalidKey):
            KeySet.from_jwks({"keys": entries}, algorithm=algorithm)


@bounded
@given(st.text(st.characters(codec=None)), st.sampled_from(["RS256", "ES256", "HS256"]))
def test_any_key_text_is_accepted_or_rejected(text: str, algorithm: str) -> None:
    for form in (text, f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----"):
        with suppress(InvalidKey):
            load_texts([form], algorithm)


@bounded
@given(st.binary())
def test_base64url_has_one_text_for_the_same_bytes(data: bytes) -> None:
    assert decode_base64url(encode_base64url(data)) == data


@bounded
@given(st.text())
def test_decoded_base64url_was_canonical(text: str) -> None:
    with suppress(NotStrict):
        assert encode_base64url(decode_base64url(text)) == text


@bounded
@given(st.dictionaries(st.text(), scalars))
def test_json_round_trip_is_exact(members: dict[str, Any]) -> None:
    with suppress(NotStrict):
        assert parse_object(json.dumps(members).encode()) == members


@bounded
@given(st.text(st.characters(codec=None)), st.sets(st.text()))
def test_any_scope_text_is_checked(text: str, held: set[str]) -> None:
    if is_known_scope(text):
        assert is_well_formed(text)
    near = suggest_scope(text)
    assert near is None or is_known_scope(near)
    assert all(scope.isascii() for scope in sufficient_scopes("agents", "run", text))
    assert not is_action_allowed(held - {"agents:run", "agents:*:run"}, "agents", "run", None)
