"""The verifier: parsing of headers, and the cache of verified tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidKey, InvalidToken, Unauthenticated
from tests.auth.verifiers import OLD, Clock, bearer, jwks, pem_only, verifier
from tests.kit.forged_tokens import NOW, SECRET, hs, token


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(jwks(("old", OLD)))
    return path


def test_claims_become_a_principal(clock: Clock) -> None:
    claims = {"sub": "me", "scopes": ["agents:read", "x y"], "session_id": "s1"}
    principal = verifier(clock, pem_only()).identify_jwt(bearer(claims))
    assert (principal.subject, principal.session_id) == ("me", "s1")
    assert principal.scopes == {"agents:read"}
    assert (principal.admin, principal.sees_all_users, principal.via) == (False, False, "http")


def test_admin_scope_and_user_isolation_set_the_visibility(clock: Clock) -> None:
    admin = bearer({"sub": "root", "scopes": ["agent_os:admin"]})
    plain = bearer({"sub": "me", "scopes": ["agents:read"]})
    principal = verifier(clock, pem_only()).identify_jwt(admin)
    assert (principal.admin, principal.sees_all_users) == (True, True)
    principal = verifier(clock, pem_only(user_isolation=False)).identify_jwt(plain)
    assert (principal.admin, principal.sees_all_users) == (False, True)
    principal = verifier(clock, pem_only(admin_scope="agents:read")).identify_jwt(plain)
    assert principal.admin
    assert not verifier(clock, pem_only(admin_scope="other:admin")).identify_jwt(admin).admin


def test_missing_header_differs_from_an_invalid_one(clock: Clock) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        verifier(clock, pem_only()).identify_jwt(None)
    assert not isinstance(refusal.value, InvalidToken)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("Bearer", "bearer"),
        lambda text: text.replace("Bearer", "BEARER"),
    ],
)
def test_scheme_is_case_insensitive(clock: Clock, change: Callable[[str], str]) -> None:
    assert verifier(clock, pem_only()).identify_jwt(change(bearer({"sub": "me"}))).subject == "me"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "Bearer",
        lambda text: "Bearer ",
        lambda text: text.removeprefix("Bearer "),
        lambda text: text.replace(" ", "  "),
        lambda text: text.replace(" ", "\t"),
        lambda text: text.replace("Bearer", "Basic"),
        lambda text: text.replace("Bearer", "Bearer:"),
        lambda text: " " + text,
        lambda text: text + " ",
        lambda text: text + "\0",
        lambda text: text + "\r",
        lambda text: text + "\xe9",
        lambda text: f"{text}, {text}",
        lambda text: "Bearer agentctl_pat_" + "x" * 49,
        lambda text: text + "a" * 9_000,
        lambda text: "Bearer " + "é" * 9_000,
    ],
)
def test_malformed_headers_are_rejected(clock: Clock, change: Callable[[str], str]) -> None:
    with pytest.raises(InvalidToken):
        verifier(clock, pem_only()).identify_jwt(change(bearer({"sub": "me"})))


def test_authorization_off_gives_an_anonymous_admin(clock: Clock) -> None:
    off = verifier(clock, Authorization(enabled=False))
    off.reload_keys()
    assert (off.mode, off.keys, off.problem) == ("none", None, None)
    for header in (None, "", "Bearer x", bearer({"sub": "me"})):
        principal = off.identify_jwt(header)
        assert (principal.subject, principal.admin, principal.sees_all_users) == (None, True, True)


def test_authorization_without_a_key_is_rejected(clock: Clock) -> None:
    with pytest.raises(InvalidKey) as refusal:
        verifier(clock, Authorization())
    assert "JWT_VERIFICATION_KEY" in str(refusal.value.hint)


def test_cached_token_expires_at_exp(clock: Clock) -> None:
    one = verifier(clock, pem_only())
    header = bearer({"sub": "me", "exp": NOW + 20})
    assert one.identify_jwt(header) is one.identify_jwt(header), "remembered"
    clock.move(19.9)
    assert one.identify_jwt(header)
    clock.move(0.1)
    with pytest.raises(InvalidToken):
        one.identify_jwt(header)


def test_token_is_verified_again_after_30_seconds(clock: Clock) -> None:
    one = verifier(clock, pem_only())
    header = bearer({"sub": "me"})
    first = one.identify_jwt(header)
    clock.move(29.9)
    assert one.identify_jwt(header) is first
    clock.move(0.2)
    assert one.identify_jwt(header) is not first


def test_clock_jump_does_not_extend_the_cache(clock: Clock) -> None:
    one = verifier(clock, pem_only())
    header = bearer({"sub": "me", "exp": NOW + 5})
    first = one.identify_jwt(header)
    clock.steady += 31
    assert one.identify_jwt(header) is not first


def test_cache_is_bounded() -> None:
    settings = Settings(
        authorization=Authorization(algorithm="HS256", verification_keys=(SECRET.decode(),))
    )
    one = Verifier(settings)
    headers = [
        "Bearer " + token({"alg": "HS256"}, {"sub": f"u{n}"}, hs(SECRET)) for n in range(4_200)
    ]
    first = one.identify_jwt(headers[0])
    for header in headers:
        one.identify_jwt(header)
    assert one.identify_jwt(headers[-1]) is one.identify_jwt(headers[-1])
    assert one.identify_jwt(headers[0]) is not first, "the oldest made room"


def test_cached_token_takes_microseconds() -> None:
    one = Verifier(Settings(authorization=pem_only()))
    header = bearer({"sub": "me", "scopes": ["agents:run", "sessions:read", "teams:read"]})

    def a_hundred() -> float:
        started = time.perf_counter()
        for _ in range(100):
            one.identify_jwt(header)
        return time.perf_counter() - started

    assert min(a_hundred() for _ in range(50)) < 0.004, "40 us each, also while it is traced"


@pytest.mark.parametrize(
    "broken", [{"algorithm": "HS256"}, {"algorithm": "ES256"}, {"algorithm": "none"}]
)
def test_invalid_keys_stop_the_start(clock: Clock, file: Path, broken: dict[str, Any]) -> None:
    for given in (pem_only(), Authorization(jwks_file=(file,))):
        with pytest.raises(InvalidKey):
            verifier(clock, replace(given, **broken))


def test_missing_key_file_stops_the_start(clock: Clock, tmp_path: Path) -> None:
    with pytest.raises(InvalidKey):
        verifier(clock, Authorization(jwks_file=(tmp_path / "none.json",)))


def test_keys_of_two_types_are_rejected_with_their_source(clock: Clock) -> None:
    """A14: the environment's key is the last of the list."""
    mixed = Authorization(verification_keys=(OLD.pem, SECRET.decode()))
    with pytest.raises(InvalidKey) as refusal:
        verifier(clock, mixed)
    told = "authorization.verification_keys entry 2 (JWT_VERIFICATION_KEY, when set)"
    assert refusal.value.detail.startswith(told)
    with pytest.raises(InvalidKey) as refusal:
        verifier(clock, replace(mixed, verification_keys=(SECRET.decode(), OLD.pem)))
    assert refusal.value.detail.startswith("authorization.verification_keys entry 1 is not")
