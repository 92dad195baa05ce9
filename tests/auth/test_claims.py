"""Checks of claims, with a fixed clock."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.auth.tokens.claims import (
    ClaimRules,
    Claims,
    check_aud,
    check_claims,
    check_iat,
    check_nbf,
)
from agentctl.auth.tokens.grants import ScopeRules
from agentctl.config.settings import Authorization, Server, Settings
from agentctl.errors import InvalidToken
from tests.auth.bad_claims import BAD, FINE, RULES
from tests.auth.verifiers import JWT_CHECK_NAMES
from tests.kit.forged_tokens import NOW, compact
from tests.kit.tables import every_row

PLAIN = ClaimRules()


def rules_of(name: str) -> ClaimRules:
    return ClaimRules.from_settings(Settings(authorization=Authorization(**RULES[name])))


def check_members(claims: Any, rules: ClaimRules, now: float = NOW) -> Claims:
    return check_claims(claims if isinstance(claims, bytes) else compact(claims), rules, now)


def passes(claims: Any, rules: ClaimRules = PLAIN, now: float = NOW) -> bool:
    try:
        check_members(claims, rules, now)
    except InvalidToken:
        return False
    return True


@every_row("name", FINE)
def test_valid_claims_are_accepted(name: str) -> None:
    claims, rules = FINE[name]
    assert check_members(claims, rules_of(rules))


@every_row("name", BAD)
def test_invalid_claims_are_rejected(name: str) -> None:
    claims, rules, step = BAD[name]
    with pytest.raises(InvalidToken) as refusal:
        check_members(claims, rules_of(rules))
    assert refusal.value.check == step
    assert step in JWT_CHECK_NAMES


def test_exp_has_no_leeway_and_an_exact_limit() -> None:
    assert passes({"exp": NOW}, now=NOW - 0.001)
    assert not passes({"exp": NOW}, now=NOW)
    assert not passes({"exp": NOW}, ClaimRules(leeway=300), now=NOW)


@pytest.mark.parametrize("name", ["iat", "nbf"])
def test_leeway_applies_to_nbf_and_iat(name: str) -> None:
    rules = ClaimRules(leeway=30)
    assert passes({name: NOW + 30}, rules)
    assert not passes({name: NOW + 30.5}, rules)


def test_brackets_in_strings_are_not_nesting() -> None:
    assert passes({"x": '\\"[[[[[[[[[[{{{{{{{{{{', "y": ["[", "]", "{", "}"] * 5})


@pytest.mark.parametrize(
    ("scopes", "granted"),
    [
        (None, ()),
        ("agents:read teams:read", ()),
        ("agents:read", ()),
        ({"agents:read": True}, ()),
        (5, ()),
        ([], ()),
        (["agents:read"], ("agents:read",)),
        (["agents:read", 5, None, ["teams:read"], {"a": 1}], ("agents:read",)),
        (["agents:read ", "agents::run", "a:b:c:d", "*:*", "agents:*"], ()),
        (["agent_os:ADMIN", "agent_os:admin ", "agent_os:*"], ("agent_os:ADMIN",)),
        (["agents:read", "agents:read"], ("agents:read",)),
        (["agents:read"] * 256, ("agents:read",)),
        (["agents:read"] * 257, ()),
        (["\u0430gents:read", "teams:read"], ("teams:read",)),
    ],
)
def test_malformed_scopes_are_no_error(scopes: Any, granted: tuple[str, ...]) -> None:
    assert check_claims(compact({"scopes": scopes}), PLAIN, NOW).scopes == frozenset(granted)


def test_malformed_admin_scope_counts() -> None:
    rules = ClaimRules(scopes=ScopeRules("superuser"))
    assert check_claims(compact({"scopes": ["superuser", "user"]}), rules, NOW).scopes == {
        "superuser"
    }


def test_valid_claims_are_returned() -> None:
    claims = check_claims(
        compact({"sub": "me", "session_id": "s1", "exp": NOW + 60, "iat": NOW - 1}), PLAIN, NOW
    )
    assert (claims.subject, claims.session_id) == ("me", "s1")
    assert claims.expires_at == NOW + 60


def test_rules_come_from_the_settings() -> None:
    given = Authorization(issuer="i", require_sub=True, admin_scope="root")
    assert ClaimRules.from_settings(Settings(authorization=given)) == ClaimRules(
        audience=None, issuer="i", require_sub=True, leeway=10, scopes=ScopeRules("root")
    )
    server = Server(id="here")
    for audience, expected in (("", "here"), ("there", "there")):
        given = Authorization(verify_audience=True, audience=audience)
        assert ClaimRules.from_settings(Settings(server, given)).audience == expected


@pytest.mark.parametrize("typ", ["ID", "Refresh", "Offline", "Logout", "bearer", "", None, 1])
def test_other_tokens_of_keycloak_are_no_access_tokens(typ: object) -> None:
    """The audience of an ID token is a client, which can have the name of the server."""
    given = Authorization(provider="keycloak", verify_audience=True, audience="agentctl")
    rules = ClaimRules.from_settings(Settings(authorization=given))
    members = {"sub": "ada", "aud": "agentctl", "scopes": ["agents:run"]}
    assert check_members(members, rules).subject == "ada"
    assert check_members({**members, "typ": "Bearer"}, rules).subject == "ada"
    with pytest.raises(InvalidToken) as rejected:
        check_members({**members, "typ": typ}, rules)
    assert rejected.value.check == "claims.aud"
    assert check_members({**members, "typ": typ}, PLAIN).subject == "ada"


def test_absent_claims_are_none() -> None:
    claims = check_members({}, PLAIN)
    assert claims == Claims(None, frozenset(), None, None)


def test_checks_return_their_values() -> None:
    for value, found in (("x", ["x"]), (["x", "y"], ["x", "y"]), ([], [])):
        assert check_aud({"aud": value}, PLAIN, NOW) == found
    assert check_aud({}, PLAIN, NOW) == []
    assert check_nbf({"nbf": 5}, PLAIN, NOW) == 5
    assert check_iat({"iat": 5}, PLAIN, NOW) == 5
    assert check_nbf({}, PLAIN, NOW) is None
