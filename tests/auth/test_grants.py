"""Scopes from claims of other names, and from roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctl.auth.tokens.claims import ClaimRules, check_claims
from agentctl.auth.tokens.grants import (
    ScopeOrigin,
    ScopeRules,
    collect_scopes,
    find_claim,
    trace_scopes,
)
from agentctl.config.settings import Authorization
from agentctl.records.authorization import KNOWN_SCOPES
from tests.kit.forged_tokens import NOW, compact

ADMIN = "agent_os:admin"
ROLES: dict[str, tuple[str, ...]] = {
    "viewer": ("agents:read",),
    "Platform Admins": ("agents:read", "agents:run"),
    "/office/ops": ("audit:read",),
}


def rules(**options: Any) -> ScopeRules:
    if "roles_claim" in options:
        options.setdefault("roles", ROLES)
    return ScopeRules.from_settings(Authorization(**options))


def granted(claims: dict[str, Any], **options: Any) -> set[str]:
    return set(check_claims(compact(claims), ClaimRules(scopes=rules(**options)), NOW).scopes)


SCOPES: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "text of words": (
        {"scopes_claim": ("scope",)},
        {"scope": "openid agents:read teams:read"},
        {"agents:read", "teams:read"},
    ),
    "array": ({"scopes_claim": ("scp",)}, {"scp": ["agents:read"]}, {"agents:read"}),
    "namespaced name": (
        {"scopes_claim": ("https://example.org/scopes",)},
        {"https://example.org/scopes": ["agents:read"]},
        {"agents:read"},
    ),
    "path": (
        {"scopes_claim": ("a.b.c",)},
        {"a": {"b": {"c": "agents:read"}}},
        {"agents:read"},
    ),
    "exact name before a path": (
        {"scopes_claim": ("a.b",)},
        {"a.b": ["agents:read"], "a": {"b": ["teams:read"]}},
        {"agents:read"},
    ),
    "exact name of another form": (
        {"scopes_claim": ("a.b",)},
        {"a.b": None, "a": {"b": ["teams:read"]}},
        set(),
    ),
    "part with a dot": (
        {"scopes_claim": ("resource_access.my.api.roles",)},
        {"resource_access": {"my.api": {"roles": ["agents:read"]}, "my": {"api": {}}}},
        {"agents:read"},
    ),
    "several claims": (
        {"scopes_claim": ("scopes", "scp")},
        {"scopes": ["agents:read"], "scp": "teams:read"},
        {"agents:read", "teams:read"},
    ),
    "text in scopes": (
        {"scopes_claim": ("scopes", "scp")}, {"scopes": "agents:read"}, set(),
    ),
    "scopes if it is not named": (
        {"scopes_claim": ("scope",)}, {"scopes": ["agents:read"], "scope": "teams:read"},
        {"teams:read"},
    ),
    "only the named case": ({"scopes_claim": ("scope",)}, {"Scope": "agents:read"}, set()),
    "separators other than one space": (
        {"scopes_claim": ("scope",)},
        {"scope": "agents:read\tteams:read,usage:read\u00a0audit:read  config:read\n"},
        set(),
    ),
    "two spaces": (
        {"scopes_claim": ("scope",)}, {"scope": " agents:read  teams:read "},
        {"agents:read", "teams:read"},
    ),
    "prefix": (
        {"scopes_claim": ("scope",), "scope_prefix": "api://x/"},
        {"scope": "api://x/agents:read teams:read api://y/usage:read api://x/api://x/audit:read"},
        {"agents:read", "teams:read"},
    ),
    "256 words": (
        {"scopes_claim": ("scope",)}, {"scope": " ".join(["agents:read"] * 256)}, {"agents:read"},
    ),
    "257 words": ({"scopes_claim": ("scope",)}, {"scope": " ".join(["agents:read"] * 257)}, set()),
    "admin scope": ({"scopes_claim": ("scope",)}, {"scope": f"x {ADMIN}"}, {ADMIN}),
    "no claim": ({"scopes_claim": ()}, {"scopes": [ADMIN]}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", SCOPES)
def test_scopes_are_read_from_the_named_claims(name: str) -> None:
    options, claims, expected = SCOPES[name]
    assert granted(claims, **options) == expected


ROLE_CLAIMS: dict[str, tuple[Any, set[str]]] = {
    "one role": (["viewer"], {"agents:read"}),
    "several roles": (["viewer", "/office/ops"], {"agents:read", "audit:read"}),
    "a text is one role": ("viewer", {"agents:read"}),
    "a text with a space": ("Platform Admins", {"agents:read", "agents:run"}),
    "words of a text are no roles": ("viewer /office/ops", set()),
    "unknown": (["editor", "agents:run", ADMIN, "admin", "*", ""], set()),
    "duplicates": (["viewer"] * 256, {"agents:read"}),
    "257 roles": (["viewer"] * 257, set()),
    "other types": ([None, 1, 1.5, True, ["viewer"], {"viewer": True}], set()),
    "look-alikes": (
        ["Viewer", "VIEWER", " viewer", "viewer ", "viewer\u200b", "v\u0456ewer",
         "\uff56\uff49\uff45\uff57\uff45\uff52", "viewer\0", "vi\u00adewer"],
        set(),
    ),
    "names of Python and JavaScript": (
        ["__proto__", "constructor", "__class__", "get", "keys", "toString"], set()
    ),
    "object": ({"viewer": True}, set()),
    "number": (7, set()),
    "true": (True, set()),
    "null": (None, set()),
    "nested": ([[[[["viewer"]]]]], set()),
}  # fmt: skip


@pytest.mark.parametrize("name", ROLE_CLAIMS)
def test_roles_give_their_scopes_and_no_other(name: str) -> None:
    value, expected = ROLE_CLAIMS[name]
    assert granted({"groups": value}, roles_claim=("groups",)) == expected
    nested = {"realm_access": {"roles": value}}
    assert granted(nested, roles_claim=("realm_access.roles",)) == expected


def test_roles_add_to_the_scopes() -> None:
    claims = {"scopes": ["teams:read"], "groups": ["viewer"]}
    assert granted(claims, roles_claim=("groups",)) == {"teams:read", "agents:read"}
    assert granted(claims, scopes_claim=(), roles_claim=("groups",)) == {"agents:read"}


def test_roles_grant_the_admin_scope_with_a_second_setting_only() -> None:
    roles = {"boss": (ADMIN, "agents:read")}
    claims = {"groups": ["boss"]}
    assert granted(claims, roles_claim=("groups",), roles=roles) == {"agents:read"}
    allowed = {"roles_claim": ("groups",), "roles": roles, "roles_may_grant_admin": True}
    assert granted(claims, **allowed) == {"agents:read", ADMIN}


def test_scopes_have_their_origins() -> None:
    given = rules(scopes_claim=("scope",), roles_claim=("groups",))
    claims = {"scope": "agents:read", "groups": ["viewer", "/office/ops"]}
    assert list(trace_scopes(claims, given)) == [
        ScopeOrigin("agents:read", "scope"),
        ScopeOrigin("agents:read", "groups", "viewer"),
        ScopeOrigin("audit:read", "groups", "/office/ops"),
    ]


class UnreadList(list[Any]):
    """A list whose entries must not be read."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the entries of a huge claim are read")


class UnsplitText(str):
    """A text that must not be split into words."""

    def split(self, *_: Any) -> list[str]:  # type: ignore[override]
        raise AssertionError("a huge claim is split")


def test_huge_claims_are_not_read() -> None:
    """Also without the bound of a token, 8 KB."""
    million = UnreadList(["viewer"] * 1_000_000)
    given = rules(scopes_claim=("scope", "a" + ".a" * 127), roles_claim=("groups", "roles"))
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    words = UnsplitText("agents:read " * 1_000_000)
    claims = {"scope": words, "groups": million, "roles": "x" * 1_000_000}
    assert collect_scopes({**claims, **deep}, given) == frozenset()


names = st.sampled_from(["scopes", "scope", "groups", "a", "b", "a.b", "viewer", ""])
texts = st.sampled_from(["viewer", "viewer ", "agents:read", "agents:read teams:read", ADMIN, "x"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, derandomize=True)
@given(st.dictionaries(names, values, max_size=6))
def test_any_claims_give_configured_scopes_only(claims: dict[str, Any]) -> None:
    """Without scopes, roles are the only source, and those of [roles] the only scopes."""
    given_roles = rules(scopes_claim=(), roles_claim=("groups", "a.b", "scopes"))
    found = collect_scopes(claims, given_roles)
    assert found <= {scope for scopes in ROLES.values() for scope in scopes}
    either = rules(scopes_claim=("scope", "a.b"), roles_claim=("groups",))
    assert {origin.scope for origin in trace_scopes(claims, either)} == collect_scopes(
        claims, either
    )
    for origin in trace_scopes(claims, either):
        value = find_claim(claims, origin.claim)
        if origin.role is None:
            assert origin.scope in (value.split(" ") if isinstance(value, str) else value)
        else:
            assert origin.scope in ROLES[origin.role]
            assert origin.role in ([value] if isinstance(value, str) else value)


def test_known_scopes_pass_through_every_form() -> None:
    text = {"scope": " ".join(KNOWN_SCOPES)}
    assert granted(text, scopes_claim=("scope",)) == set(KNOWN_SCOPES)
