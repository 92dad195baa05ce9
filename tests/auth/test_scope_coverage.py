"""Scopes that cover other scopes, and the scope forms of each operation."""

from __future__ import annotations

from itertools import product

import pytest

from agentctl.auth.policy import (
    POLICY,
    Admin,
    NeedsScope,
    allowed_ids,
    authorize,
    operations_granted_by,
    required_scopes,
    scope_forms,
)
from agentctl.auth.principal import Principal, find_covering_scope, is_covered
from agentctl.errors import Forbidden
from agentctl.records.authorization import KNOWN_SCOPES, RESOURCES_WITH_IDS, suggest_scope

COVERED = {
    ("agents:read", "agents:read"): True,
    ("agents:read", "agents:*:read"): True,
    ("agents:*:read", "agents:read"): True,
    ("agents:read", "agents:a:read"): True,
    ("agents:*:read", "agents:a:read"): True,
    ("agents:a:read", "agents:a:read"): True,
    ("agents:a:read", "agents:b:read"): False,
    ("agents:a:read", "agents:read"): False,
    ("agents:a:read", "agents:*:read"): False,
    ("agents:read:read", "agents:read"): False,
    ("agents:read:read", "agents:*:read"): False,
    ("agents:read", "agents:run"): False,
    ("agents:read", "agents:a:run"): False,
    ("agents:read", "teams:read"): False,
    ("config:read", "system:read"): True,
    ("system:read", "config:read"): True,
    ("system:read", "system:read"): True,
    ("system:read", "audit:read"): False,
    ("sessions:write", "sessions:x:write"): True,
    ("sessions:x:write", "sessions:x:delete"): False,
}


@pytest.mark.parametrize(("held", "scope"), COVERED)
def test_scope_covers_equal_and_narrower_scopes(held: str, scope: str) -> None:
    covered = COVERED[held, scope]
    assert is_covered({held}, scope) is covered
    assert find_covering_scope({held}, scope) == (held if covered else None)
    assert is_covered({"made:up", held}, scope) is covered
    assert not is_covered(set(), scope)


def test_covering_scope_grants_at_least_as_much() -> None:
    forms = [
        *KNOWN_SCOPES,
        *(
            f"{resource}:{identifier}:{scope.split(':')[1]}"
            for scope in KNOWN_SCOPES
            for identifier in ("*", "a", "b")
            if (resource := scope.split(":")[0]) in RESOURCES_WITH_IDS
        ),
    ]
    for held, scope in product(forms, forms):
        if is_covered({held}, scope):
            assert set(operations_granted_by(scope)) <= set(operations_granted_by(held)), (
                held,
                scope,
            )


def test_operations_list_their_scope_forms() -> None:
    forms = {
        "get_agent": ("agents:<agent_id>:read", "agents:*:read", "agents:read"),
        "get_agents": ("agents:*:read", "agents:read"),
        "create_team_run": ("teams:<team_id>:run", "teams:*:run", "teams:run"),
        "delete_session": ("sessions:<session_id>:delete", "sessions:*:delete", "sessions:delete"),
        "get_config": ("config:read", "system:read"),
        "get_me": (),
        "get_health": (),
    }
    assert {name: scope_forms(name) for name in forms} == forms


def test_scope_forms_match_the_requirements() -> None:
    for name, rule in POLICY.items():
        if isinstance(rule, NeedsScope) and rule.id_param is not None:
            given = required_scopes(name, {rule.id_param: "x"})
            assert scope_forms(name) == tuple(
                scope.replace(":x:", f":<{rule.id_param}>:") for scope in given
            )
        else:
            assert scope_forms(name) == required_scopes(name, {})


def test_admin_operations_have_no_scope() -> None:
    everything = Principal("me", frozenset(KNOWN_SCOPES))
    admin = Principal("root", admin=True)
    names = [name for name, rule in POLICY.items() if isinstance(rule, Admin)]
    assert names == [
        "get_deployment", "explain_auth", "hold_session", "release_session", "get_idle_sessions",
        "prune_sessions", "get_user_data", "get_user_rows", "erase_user_data",
    ]  # fmt: skip
    for name in names:
        authorize(admin, name, {})
        assert allowed_ids(admin, name) is None
        for refuse in (
            lambda name=name: authorize(everything, name, {}),
            lambda name=name: allowed_ids(everything, name),
        ):
            with pytest.raises(Forbidden) as refusal:
                refuse()
            assert refusal.value.required_scopes == ()


def test_scopes_for_single_ids_filter_lists() -> None:
    one = Principal("me", frozenset({"agents:a:read", "sessions:s:read"}))
    assert allowed_ids(one, "get_agents") == {"a"}
    assert allowed_ids(one, "get_me") is None
    for name in ("get_teams", "get_sessions", "get_config"):
        with pytest.raises(Forbidden):
            allowed_ids(one, name)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("agent:read", "agents:read"),
        ("agents:a:reed", "agents:a:read"),
        ("agents:*:reed", "agents:*:read"),
        ("config:a:reed", "config:read"),
        ("AGENTS:READ", "agents:read"),
        ("agent_os:admim", "agent_os:admin"),
        ("agent_os:x:admim", "agent_os:admin"),
        ("zzz", None),
        ("zzz:x:qqq", None),
        ("", None),
        ("super:x:user", "superuser"),
    ],
)
def test_most_similar_scope_is_suggested(scope: str, expected: str | None) -> None:
    assert suggest_scope(scope, "agent_os:admin", "superuser") == expected


def test_scope_with_an_id_grants_its_operations() -> None:
    assert {"get_agents", "get_agent"} <= set(operations_granted_by("agents:x:read"))
    assert "get_session_by_id" in set(operations_granted_by("sessions:x:read"))
    assert not {"get_sessions", "get_runs", "get_run"} & set(
        operations_granted_by("sessions:x:read")
    )
