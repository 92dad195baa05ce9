"""Claims, with the clock at a fixed second."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.auth.claims import ClaimRules, check
from agentctl.config.settings import Authorization, Server, Settings
from agentctl.errors import InvalidToken
from tests.auth.forge import NOW, compact

PLAIN = ClaimRules()
AUDIENCE = ClaimRules(audience="agentctl")
ISSUER = ClaimRules(issuer="https://issuer.example")
EXP, SUB = ClaimRules(require_exp=True), ClaimRules(require_sub=True)


def passes(claims: Any, rules: ClaimRules = PLAIN, now: float = NOW) -> bool:
    payload = claims if isinstance(claims, bytes) else compact(claims)
    try:
        check(payload, rules, now)
    except InvalidToken:
        return False
    return True


GOOD: dict[str, tuple[Any, ClaimRules]] = {
    "nothing": ({}, PLAIN),
    "exp ahead": ({"exp": NOW + 1}, PLAIN),
    "exp a fraction ahead": ({"exp": NOW + 0.5}, PLAIN),
    "exp in 9999": ({"exp": 253_402_300_799}, PLAIN),
    "iat within leeway": ({"iat": NOW + 10}, PLAIN),
    "nbf within leeway": ({"nbf": NOW + 10}, PLAIN),
    "iat long ago": ({"iat": 0}, PLAIN),
    "sub": ({"sub": "me"}, SUB),
    "sub inner space": ({"sub": "Jane Doe"}, PLAIN),
    "sub not ASCII": ({"sub": "Zoë"}, PLAIN),
    "sub 255": ({"sub": "x" * 255}, PLAIN),
    "sub sa": ({"sub": "sa"}, PLAIN),
    "sub one underscore": ({"sub": "_me"}, PLAIN),
    "aud string": ({"aud": "agentctl"}, AUDIENCE),
    "aud in array": ({"aud": ["x", "agentctl"]}, AUDIENCE),
    "aud of another, not compared": ({"aud": "x"}, PLAIN),
    "iss": ({"iss": "https://issuer.example"}, ISSUER),
    "iss not read": ({"iss": 5}, PLAIN),
    "scopes malformed": ({"scopes": 5}, PLAIN),
    "session": ({"session_id": "s1"}, PLAIN),
    "unknown claims": ({"x": {"y": [1, "z" * 4000]}, "scope": "agent_os:admin"}, PLAIN),
}

BAD: dict[str, tuple[Any, ClaimRules]] = {
    **{
        f"D01 exp {value!r}": ({"exp": value}, PLAIN)
        for value in (
            None, "", str(NOW + 99), " 99 ", "9_9", "\u0661", "0x7fffffff", [NOW + 99], {},
            True, False, -1, 0, 1e308, 10**20, 253_402_300_800, NOW, NOW - 1, NOW - 0.001,
        )
    },
    **{
        f"D01 exp {text[:8]!r}": (b'{"exp":' + text + b"}", PLAIN)
        for text in (b"NaN", b"Infinity", b"1e999", b"1" + b"0" * 4_000, b"01", b"+1", b".5")
    },
    **{
        f"D03 {name} {value!r}": ({name: value}, PLAIN)
        for name in ("nbf", "iat")
        for value in (NOW + 11, str(NOW), True, False, None, [], -1, 1e300)
    },
    "exp required": ({"sub": "me"}, EXP),
    "sub required": ({"exp": NOW + 9}, SUB),
    **{
        f"D10 sub {value!r}"[:60]: ({"sub": value}, PLAIN)
        for value in (
            None, 1, True, ["me"], {"a": 1}, "", " me", "me ", "\u00a0me", "m\0e", "m\ne", "m\x7fe",
            "m\x85e", "\ud800", "m\u202ee", "m\u200be", "\ufeffme", "m\u00ade", "x" * 256,
        )
    },
    **{
        f"D11 sub {value!r}": ({"sub": value}, PLAIN)
        for value in (
            "sa:x", "SA:x", "Sa:", "sa:", "__scheduler__", "__x", "\uff53\uff41:x", "sa\uff1ax",
            "\u017fa:x", "\uff3f\uff3fx", "_\uff3fx", "__", "\uff33\uff21\uff1a\uff58",
        )
    },
    **{
        f"D06 aud {value!r}"[:60]: ({"aud": value}, AUDIENCE)
        for value in (
            5, True, "", [], None, {}, [["agentctl"]], ["agentctl", 5], "agentct", "agentctlx",
            "AgentCTL", "xagentctl", " agentctl", ["x"] * 16 + ["agentctl"],
        )
    },
    "aud absent": ({}, AUDIENCE),
    "aud mixed, not compared": ({"aud": ["x", 5]}, PLAIN),
    "aud number, not compared": ({"aud": 5}, PLAIN),
    **{
        f"D09 iss {value!r}": ({"iss": value}, ISSUER)
        for value in (
            "https://issuer.exampl", "https://issuer.example/", "HTTPS://issuer.example",
            ["https://issuer.example"], 5, None, "",
        )
    },
    "iss absent": ({}, ISSUER),
    **{
        f"session {value!r}"[:60]: ({"session_id": value}, PLAIN)
        for value in (None, 5, ["s"], "", "a b", "a/b", "s\0", "x" * 129)
    },
    "D12 sub twice": (b'{"sub":"a","sub":"b"}', PLAIN),
    "J12 sub escaped": (rb'{"sub":"a","\u0073ub":"b"}', PLAIN),
    "J12 exp twice": (b'{"exp":1900000000,"exp":1}', PLAIN),
    "J12 scopes twice": (b'{"scopes":[],"scopes":["agent_os:admin"]}', PLAIN),
    "J12 nested twice": (b'{"x":{"a":1,"a":2}}', PLAIN),
    **{f"J16 {text!r}": (text, PLAIN) for text in (b"", b"[]", b'"x"', b"1", b"null", b"{}x")},
    "J13 nesting": (b'{"x":' + b"[" * 8 + b"]" * 8 + b"}", PLAIN),
    "J11 UTF-16": ("{}".encode("utf-16"), PLAIN),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_claims(name: str) -> None:
    assert passes(*GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad_claims(name: str) -> None:
    assert not passes(*BAD[name])


def test_exp_has_no_leeway_and_the_boundary_is_exact() -> None:
    assert passes({"exp": NOW}, now=NOW - 0.001)
    assert not passes({"exp": NOW}, now=NOW)
    assert not passes({"exp": NOW}, ClaimRules(leeway=300), now=NOW)


@pytest.mark.parametrize("name", ["iat", "nbf"])
def test_leeway_is_for_times_that_lie_ahead(name: str) -> None:
    rules = ClaimRules(leeway=30)
    assert passes({name: NOW + 30}, rules)
    assert not passes({name: NOW + 30.5}, rules)


def test_nesting_within_strings_does_not_count() -> None:
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
def test_scopes_are_never_an_error(scopes: Any, granted: tuple[str, ...]) -> None:
    assert check(compact({"scopes": scopes}), PLAIN, NOW).scopes == frozenset(granted)


def test_the_admin_scope_counts_whatever_its_form() -> None:
    rules = ClaimRules(admin_scope="superuser")
    assert check(compact({"scopes": ["superuser", "user"]}), rules, NOW).scopes == {"superuser"}


def test_what_comes_out() -> None:
    claims = check(
        compact({"sub": "me", "session_id": "s1", "exp": NOW + 60, "iat": NOW - 1}), PLAIN, NOW
    )
    assert (claims.subject, claims.session_id) == ("me", "s1")
    assert (claims.expires_at, claims.issued_at) == (NOW + 60, NOW - 1)


def test_rules_from_settings() -> None:
    given = Authorization(issuer="i", require_sub=True, leeway_seconds=5)
    assert ClaimRules.from_settings(Settings(authorization=given)) == ClaimRules(
        audience=None, issuer="i", require_sub=True, leeway=5
    )
    server = Server(id="here")
    for audience, expected in (("", "here"), ("there", "there")):
        given = Authorization(verify_audience=True, audience=audience)
        assert ClaimRules.from_settings(Settings(server, given)).audience == expected
