"""Single checks: for any input each returns a value or raises InvalidToken with its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.auth.tokens import claims, jws
from agentctl.auth.tokens.claims import ClaimRules
from agentctl.auth.verifier import parse_bearer
from agentctl.config.settings import Settings
from agentctl.errors import InvalidToken
from tests.auth.hostile import CASES, OURS, RS, SERVERS, THEIRS, signed
from tests.auth.test_fuzz import claim_names, names, sample, values
from tests.auth.verifiers import JWT_CHECK_NAMES, load_texts
from tests.kit.forged_tokens import NOW, SECRET

any_text = st.text(st.characters(codec=None))
STRICT = ClaimRules("aud", "iss", require_exp=True, require_sub=True)
HMAC = load_texts([SECRET.decode()], "HS256")

CLAIM_STEPS: dict[str, Callable[[dict[str, Any], ClaimRules, float], object]] = {
    "exp": claims.check_exp,
    "nbf": claims.check_nbf,
    "iat": claims.check_iat,
    "iss": claims.check_iss,
    "aud": claims.check_aud,
    "sub": claims.check_sub,
    "scopes": claims.check_scopes,
    "session_id": claims.check_session_id,
}


def check_outcome(act: Callable[[], object], *checks: str) -> None:
    """Assert that `act` returns a value or fails one of these checks."""
    try:
        act()
    except InvalidToken as refusal:
        found = refusal.check
    else:
        return
    assert found in checks


@sample
@given(any_text)
def test_transport_check_accepts_or_rejects_any_text(text: str) -> None:
    for header in (text, f"Bearer {text}"):
        check_outcome(lambda header=header: parse_bearer(header), "transport", "length")
    with suppress(InvalidToken):
        assert parse_bearer(f"Bearer {text}") == text


@sample
@given(any_text, st.integers(0, 10_000))
def test_length_check_accepts_or_rejects_any_text(text: str, repeats: int) -> None:
    check_outcome(lambda: jws.check_length(text * repeats), "length")


@sample
@given(any_text)
def test_form_check_accepts_or_rejects_any_text(text: str) -> None:
    check_outcome(lambda: jws.split_segments(text), "form")
    check_outcome(lambda: jws.parse_token(text), "form", "header")


@sample
@given(st.binary())
def test_header_parser_accepts_or_rejects_any_bytes(data: bytes) -> None:
    check_outcome(lambda: jws.parse_header(data), "header")
    check_outcome(lambda: claims.parse_claims(data), "claims.form")


@sample
@given(st.dictionaries(names | st.text(), values))
def test_header_and_key_checks_take_any_members(header: dict[str, Any]) -> None:
    for members in (header, {**header, "alg": "HS256"}):
        check_outcome(lambda members=members: jws.check_header(members, HMAC.spec), "header")
    if isinstance(header.get("kid", ""), str):
        check_outcome(lambda: jws.find_candidate_keys(header, HMAC), "key")


@sample
@given(st.binary(), st.binary(max_size=1_100), st.sampled_from(["RS256", "HS256"]))
def test_signature_check_rejects_any_bytes(
    signing_input: bytes, signature: bytes, algorithm: str
) -> None:
    text = OURS.pem if algorithm == "RS256" else SECRET.decode()
    keys = load_texts([text], algorithm)
    parts = jws.TokenParts(signing_input, {}, b"{}", signature)
    with pytest.raises(InvalidToken) as refusal:
        jws.check_signature(parts, keys.keys)
    assert refusal.value.check == "signature"


@sample
@given(st.dictionaries(claim_names, values), st.floats(0, 1e12))
def test_claim_checks_accept_or_reject_any_value(members: dict[str, Any], now: float) -> None:
    for name, step in CLAIM_STEPS.items():
        for rules in (ClaimRules(), STRICT):
            check_outcome(
                lambda step=step, rules=rules: step(members, rules, now), f"claims.{name}"
            )


def test_malformed_scopes_are_never_rejected() -> None:
    for value in (None, 1, "x", {}, [None], ["x"] * 999):
        assert claims.check_scopes({"scopes": value}, STRICT, NOW) == frozenset()


def each_check(header: str, server: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the checks in order, as an explanation runs them."""
    given_settings = Settings(authorization=SERVERS[server])
    rules = ClaimRules.from_settings(given_settings)
    keys = load_texts([OURS.pem], "RS256")
    found: dict[str, Any] = {}

    def keep(name: str, act: Callable[[], Any]) -> tuple[str, Callable[[], Any]]:
        def run() -> Any:
            found[name] = act()

        return name, run

    yield keep("length", lambda: jws.check_length(header.removeprefix("Bearer ")))
    yield keep("transport", lambda: parse_bearer(header))
    yield keep("form", lambda: jws.parse_token(found["transport"]))
    yield keep("header", lambda: jws.check_header(found["form"].header, keys.spec))
    yield keep("key", lambda: jws.find_candidate_keys(found["form"].header, keys))
    yield keep("signature", lambda: jws.check_signature(found["form"], found["key"]))
    yield keep("claims.form", lambda: claims.parse_claims(found["form"].payload))
    for name, step in CLAIM_STEPS.items():
        yield keep(f"claims.{name}", lambda step=step: step(found["claims.form"], rules, NOW))


def failed_check(header: str, server: str) -> str | None:
    for _, run in each_check(header, server):
        try:
            run()
        except InvalidToken as refusal:
            return refusal.check
    return None


def test_single_checks_agree_with_the_verifier() -> None:
    ends = {name: failed_check(case.header, case.server) for name, case in CASES.items()}
    assert ends == {name: case.check for name, case in CASES.items()}


def test_checks_run_in_the_order_of_the_table() -> None:
    assert [name for name, _ in each_check("Bearer x", "RS256")] == list(JWT_CHECK_NAMES)


def test_verified_token_has_its_key() -> None:
    keys = load_texts([THEIRS.pem, OURS.pem], "RS256")
    assert jws.verify_token(signed(RS), keys).key is keys.keys[1]
