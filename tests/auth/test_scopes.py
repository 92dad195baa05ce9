"""The forms of scopes, and the actions that they allow."""

from __future__ import annotations

import pytest

from agentctl.auth.policy import POLICY, NeedsScope
from agentctl.auth.principal import ids_in_scopes, is_action_allowed, sufficient_scopes
from agentctl.records.authorization import (
    KNOWN_SCOPES,
    is_known_scope,
    is_well_formed,
    suggest_scope,
)


@pytest.mark.parametrize(
    "scope",
    [
        "agents:read",
        "agents:echo:run",
        "agents:*:run",
        "sessions:0198a1b2-c3d4:read",
        "sessions:a.b_c~d@e-f:read",
        "agent_os:admin",
        "made:up",
        "agents:" + "x" * 128 + ":read",
    ],
)
def test_valid_scopes_are_well_formed(scope: str) -> None:
    assert is_well_formed(scope)


@pytest.mark.parametrize(
    "scope",
    [
        "",
        ":",
        "::",
        "agents",
        "agents:",
        ":read",
        "agents::run",
        "agents:a:b:run",
        "agents: read",
        " agents:read",
        "agents:read ",
        "agents:read\n",
        "agents:*",
        "*:read",
        "*:*",
        "*",
        "*:x:read",
        "agents:**:run",
        "agents:a*:run",
        "agents:a/b:run",
        "agents:a\0:run",
        "\u0430gents:read",
        "agents:r\u0435ad",
        "agents:\u0435cho:run",
        "agents:" + "x" * 129 + ":read",
        "1gents:read",
    ],
)
def test_malformed_scopes_are_not_well_formed(scope: str) -> None:
    assert not is_well_formed(scope)


@pytest.mark.parametrize(
    ("held", "identifier", "allowed"),
    [
        ({"agents:run"}, "a1", True),
        ({"agents:*:run"}, "a1", True),
        ({"agents:a1:run"}, "a1", True),
        ({"agents:a1:run"}, "a2", False),
        ({"agents:a1:run"}, None, False),
        ({"agents:*:run"}, None, True),
        ({"agents:read"}, "a1", False),
        ({"teams:run"}, "a1", False),
        ({"teams:*:run"}, "a1", False),
        ({"teams:a1:run"}, "a1", False),
        ({"agents:A1:run"}, "a1", False),
        ({"AGENTS:run"}, "a1", False),
        ({"agents:a:run"}, "a1", False),
        ({"agents:a1:b:run"}, "a1:b", False),
        ({"agents:*:run"}, "*", True),
        ({"agents:a1:run"}, "*", False),
        (set(), "a1", False),
    ],
)
def test_scope_allows_its_action(held: set[str], identifier: str | None, allowed: bool) -> None:
    assert is_action_allowed(held, "agents", "run", identifier) is allowed


def test_system_is_an_alias_of_config() -> None:
    assert is_action_allowed({"system:read"}, "config", "read")
    assert is_action_allowed({"config:read"}, "config", "read")
    assert not is_action_allowed({"config:*:read"}, "config", "read"), "configuration has no ids"


def test_most_specific_scope_comes_first() -> None:
    assert sufficient_scopes("agents", "run", "echo") == (
        "agents:echo:run",
        "agents:*:run",
        "agents:run",
    )
    assert sufficient_scopes("agents", "read") == ("agents:*:read", "agents:read")
    assert sufficient_scopes("config", "read") == ("config:read", "system:read")


@pytest.mark.parametrize("identifier", ['x"y', "a\r\nSet-Cookie: x", "a b", "é", "a:b", "*", ""])
def test_unsafe_path_parameter_reaches_no_header(identifier: str) -> None:
    assert sufficient_scopes("agents", "run", identifier) == ("agents:*:run", "agents:run")


def test_ids_of_scopes_are_collected() -> None:
    held = {"agents:a1:read", "agents:a2:read", "agents:a3:run", "agents:*:read", "teams:t:read"}
    assert ids_in_scopes(held, "agents", "read") == {"a1", "a2"}


def test_known_scopes_are_those_of_operations() -> None:
    asked = {
        f"{rule.resource}:{rule.action}" for rule in POLICY.values() if isinstance(rule, NeedsScope)
    }
    assert {*KNOWN_SCOPES} - {"system:read"} == asked
    assert list(KNOWN_SCOPES) == sorted(KNOWN_SCOPES)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("agents:run", True),
        ("agents:echo:run", True),
        ("sessions:*:delete", True),
        ("system:read", True),
        ("agents:write", False),
        ("config:x:read", False),
        ("agents::run", False),
        ("agent_os:admin", False),
    ],
)
def test_scopes_of_operations_are_known(scope: str, expected: bool) -> None:
    assert is_known_scope(scope) is expected


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("agent:run", "agents:run"),
        ("agents:runs", "agents:run"),
        ("session:read", "sessions:read"),
        ("Sessions:Read", "sessions:read"),
        ("agent:echo:run", "agents:echo:run"),
        ("teams:*:reed", "teams:*:read"),
        ("agents:bad id:run", "agents:run"),
        ("zzzz", None),
    ],
)
def test_similar_scope_is_suggested(scope: str, expected: str | None) -> None:
    assert suggest_scope(scope) == expected
