"""The forms of scopes, and what each of them allows."""

from __future__ import annotations

import pytest

from agentctl.auth.policy import POLICY, NeedsScope
from agentctl.auth.scopes import (
    KNOWN_SCOPES,
    ids_in_scopes,
    is_action_allowed,
    is_known_scope,
    is_well_formed,
    sufficient_scopes,
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
def test_well_formed(scope: str) -> None:
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
def test_not_well_formed(scope: str) -> None:
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
def test_what_a_scope_allows(held: set[str], identifier: str | None, allowed: bool) -> None:
    assert is_action_allowed(held, "agents", "run", identifier) is allowed


def test_system_is_another_name_of_config() -> None:
    assert is_action_allowed({"system:read"}, "config", "read")
    assert is_action_allowed({"config:read"}, "config", "read")
    assert not is_action_allowed({"config:*:read"}, "config", "read"), "configuration has no ids"


def test_the_most_specific_alternative_comes_first() -> None:
    assert sufficient_scopes("agents", "run", "echo") == (
        "agents:echo:run",
        "agents:*:run",
        "agents:run",
    )
    assert sufficient_scopes("agents", "read") == ("agents:*:read", "agents:read")
    assert sufficient_scopes("config", "read") == ("config:read", "system:read")


@pytest.mark.parametrize("identifier", ['x"y', "a\r\nSet-Cookie: x", "a b", "é", "a:b", "*", ""])
def test_no_path_parameter_reaches_a_header_as_it_came(identifier: str) -> None:
    assert sufficient_scopes("agents", "run", identifier) == ("agents:*:run", "agents:run")


def test_ids_that_are_held_one_by_one() -> None:
    held = {"agents:a1:read", "agents:a2:read", "agents:a3:run", "agents:*:read", "teams:t:read"}
    assert ids_in_scopes(held, "agents", "read") == {"a1", "a2"}


def test_known_scopes_are_those_that_operations_ask_for() -> None:
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
def test_known(scope: str, expected: bool) -> None:
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
def test_nearest(scope: str, expected: str | None) -> None:
    assert suggest_scope(scope) == expected
