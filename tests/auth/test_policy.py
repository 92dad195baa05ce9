"""Decisions of the policy for all kinds of callers."""

from __future__ import annotations

import pytest

from agentctl.auth.policy import (
    POLICY,
    Admin,
    Authenticated,
    NeedsScope,
    Public,
    allowed_ids,
    authorize,
    authorize_call,
    authorize_request,
    authorize_scope,
    build_scope_table,
    check_path_params,
    describe_grant,
    find_operation,
    list_open_operations,
    operations_granted_by,
    required_scopes,
)
from agentctl.auth.principal import Principal, anonymous_principal, local_principal
from agentctl.errors import (
    Forbidden,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
    Unavailable,
    ValidationFailed,
)
from agentctl.interface.operations import ROUTES
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import RouteMatch, RouteTable, operation_ids
from tests.kit.tables import every_row

# docs/contract.md "Routes", written out: the required scope, "-" for public operations, "+" for
# any identified caller, "!" for administrators.
CONTRACT = {
    "get_api": "-",
    "get_health": "-",
    "get_info": "-",
    "get_console": "-",
    "get_chat": "-",
    "get_console_asset": "-",
    "start_console_sign_in": "-",
    "finish_console_sign_in": "-",
    "create_sign_in_link": "+",
    "use_sign_in_link": "-",
    "keep_console_token": "+",
    "restore_console_token": "-",
    "forget_console_token": "-",
    "get_docs": "-",
    "get_redoc": "-",
    "get_openapi": "-",
    "get_oauth2_redirect": "-",
    "get_docs_asset": "-",
    "get_readiness": "-",
    "get_me": "+",
    "explain_auth": "!",
    "get_config": "config:read",
    "get_models": "config:read",
    "get_agents": "agents:read",
    "get_agent": "agents:<id>:read",
    "create_agent_run": "agents:<id>:run",
    "list_agent_runs": "agents:<id>:read",
    "get_agent_run": "agents:<id>:read",
    "cancel_agent_run": "agents:<id>:run",
    "resume_agent_run_stream": "agents:<id>:run",
    "get_agent_run_events": "agents:<id>:read",
    "get_agent_run_tool_call": "agents:<id>:read",
    "continue_agent_run": "agents:<id>:run",
    "retry_agent_run": "agents:<id>:run",
    "fork_agent_run": "agents:<id>:read",
    "get_agent_approval": "approvals:<id>:read",
    "get_agent_approval_receipt": "approvals:<id>:read",
    "decide_agent_approval": "approvals:<id>:write",
    "get_agent_versions": "agents:<id>:read",
    "get_agent_version_diff": "agents:<id>:read",
    "get_teams": "teams:read",
    "get_team": "teams:<id>:read",
    "create_team_run": "teams:<id>:run",
    "list_team_runs": "teams:<id>:read",
    "get_team_run": "teams:<id>:read",
    "cancel_team_run": "teams:<id>:run",
    "resume_team_run_stream": "teams:<id>:run",
    "get_team_run_events": "teams:<id>:read",
    "get_team_run_tool_call": "teams:<id>:read",
    "continue_team_run": "teams:<id>:run",
    "retry_team_run": "teams:<id>:run",
    "fork_team_run": "teams:<id>:read",
    "get_team_approval": "approvals:<id>:read",
    "get_team_approval_receipt": "approvals:<id>:read",
    "decide_team_approval": "approvals:<id>:write",
    "get_team_versions": "teams:<id>:read",
    "get_team_version_diff": "teams:<id>:read",
    "get_workflows": "workflows:read",
    "get_workflow": "workflows:<id>:read",
    "create_workflow_run": "workflows:<id>:run",
    "list_workflow_runs": "workflows:<id>:read",
    "get_workflow_run": "workflows:<id>:read",
    "cancel_workflow_run": "workflows:<id>:run",
    "resume_workflow_run_stream": "workflows:<id>:run",
    "get_workflow_run_events": "workflows:<id>:read",
    "get_workflow_run_tool_call": "workflows:<id>:read",
    "continue_workflow_run": "workflows:<id>:run",
    "retry_workflow_run": "workflows:<id>:run",
    "fork_workflow_run": "workflows:<id>:read",
    "get_workflow_approval": "approvals:<id>:read",
    "get_workflow_approval_receipt": "approvals:<id>:read",
    "decide_workflow_approval": "approvals:<id>:write",
    "get_workflow_versions": "workflows:<id>:read",
    "get_workflow_version_diff": "workflows:<id>:read",
    "get_sessions": "sessions:read",
    "create_session": "sessions:write",
    "delete_sessions": "sessions:delete",
    "get_session_by_id": "sessions:<id>:read",
    "update_session": "sessions:<id>:write",
    "delete_session": "sessions:<id>:delete",
    "rename_session": "sessions:<id>:write",
    "summarize_session": "sessions:<id>:write",
    "hold_session": "!",
    "release_session": "!",
    "get_idle_sessions": "!",
    "prune_sessions": "!",
    "get_user_data": "!",
    "get_user_rows": "!",
    "erase_user_data": "!",
    "export_session": "sessions:<id>:read",
    "get_session_runs": "sessions:<id>:read",
    "get_session_run": "sessions:<id>:read",
    "get_runs": "sessions:read",
    "get_run": "sessions:read",
    "get_run_messages": "sessions:read",
    "send_message": "+",
    "get_run_causes": "runs:debug",
    "get_failures": "runs:debug",
    "get_run_model_calls": "sessions:read",
    "get_run_model_call": "sessions:read",
    "get_approvals": "approvals:read",
    "get_files": "sessions:read",
    "get_file": "sessions:read",
    "get_file_content": "sessions:read",
    "upload_file": "sessions:write",
    "delete_file": "sessions:write",
    "get_memories": "memories:read",
    "create_memory": "memories:write",
    "delete_memories": "memories:delete",
    "get_memory": "memories:<id>:read",
    "update_memory": "memories:<id>:write",
    "delete_memory": "memories:<id>:delete",
    "get_memory_topics": "memories:read",
    "create_service_account": "service_accounts:write",
    "list_service_accounts": "service_accounts:read",
    "revoke_service_account": "service_accounts:delete",
    "get_deployment": "!",
    "get_budgets": "usage:read",
    "get_usage": "usage:read",
    "get_usage_overview": "usage:read",
    "get_webhooks": "webhooks:read",
    "get_webhook_deliveries": "webhooks:read",
    "redeliver_webhook": "webhooks:write",
    "test_webhook": "webhooks:write",
    "enable_webhook": "webhooks:write",
    "get_halts": "halts:read",
    "get_halt": "halts:read",
    "create_halt": "halts:write",
    "end_halt": "halts:write",
    "get_audit": "audit:read",
    "get_audit_heads": "audit:read",
}
WHOLE = {"config", "usage", "service_accounts", "webhooks", "audit", "runs", "halts"}
"""Resources whose scopes have no id."""

PARAMS = {
    "agent_id": "one",
    "team_id": "one",
    "workflow_id": "one",
    "session_id": "one",
    "run_id": "run",
    "memory_id": "one",
    "halt_id": "one",
    "file_id": "one",
    "approval_id": "one",
}
SCOPED = {name: needs for name, needs in CONTRACT.items() if ":" in needs}


def caller(*scopes: str) -> Principal:
    return Principal("me", frozenset(scopes))


def test_policy_matches_the_contract() -> None:
    assert POLICY.keys() == CONTRACT.keys()


def allowed(operation: str, principal: Principal | None) -> bool:
    try:
        authorize(principal, operation, PARAMS)
    except (Forbidden, Unauthenticated):
        return False
    return True


@every_row("operation", CONTRACT)
def test_callers_are_allowed_or_denied(operation: str) -> None:
    needs = CONTRACT[operation]
    rule = POLICY[operation]
    assert isinstance(rule, {"-": Public, "+": Authenticated, "!": Admin}.get(needs, NeedsScope))
    assert allowed(operation, None) is (needs == "-")
    assert allowed(operation, caller()) is (needs in "-+")
    assert allowed(operation, anonymous_principal())
    assert allowed(operation, local_principal("root"))


@every_row("operation, needs", SCOPED.items())
def test_sufficient_scopes_are_allowed(operation: str, needs: str) -> None:
    resource, *middle, action = needs.split(":")
    passing = {f"{resource}:{action}"}
    if resource not in WHOLE:
        passing.add(f"{resource}:*:{action}")
    if middle:
        passing.add(f"{resource}:one:{action}")
    for scope in passing:
        assert allowed(operation, caller(scope)), scope
    for scope in (f"{resource}:other", f"x{resource}:{action}", f"{resource}:two:{action}"):
        listed = operation in {"get_agents", "get_teams", "get_workflows", "get_approvals"}
        assert allowed(operation, caller(scope)) is (listed and ":two:" in scope), scope


@every_row("operation, needs", SCOPED.items())
def test_denial_names_the_required_scopes(operation: str, needs: str) -> None:
    with pytest.raises(Forbidden) as refusal:
        authorize(caller(), operation, PARAMS)
    named = refusal.value.required_scopes
    assert named[0 if "<id>" in needs or needs.split(":")[0] in WHOLE else -1] == needs.replace(
        "<id>", "one"
    )
    assert all(allowed(operation, caller(scope)) for scope in named), "any one suffices"
    assert "agent_os:admin" not in named
    assert refusal.value.body()["required_scopes"] == list(named)


def test_unidentified_caller_gets_a_401_first() -> None:
    with pytest.raises(Unauthenticated) as refusal:
        authorize(None, "get_agent", PARAMS)
    assert "error" not in refusal.value.headers()["WWW-Authenticate"]


def test_unknown_operation_is_never_allowed() -> None:
    with pytest.raises(KeyError):
        authorize(caller("agents:run"), "made_up", {})


def test_missing_path_parameter_needs_a_general_scope() -> None:
    with pytest.raises(Forbidden):
        authorize(caller("agents:one:run"), "create_agent_run", {})


@pytest.mark.parametrize("kind", KINDS)
def test_lists_are_filtered_by_id(kind: ComponentKind) -> None:
    operation = operation_ids(kind).list
    path = KINDS[kind].path
    assert allowed_ids(anonymous_principal(), operation) is None
    assert allowed_ids(caller(f"{path}:read"), operation) is None
    assert allowed_ids(caller(f"{path}:*:read"), operation) is None
    some = caller(f"{path}:a:read", f"{path}:b:read", f"{path}:c:run")
    assert allowed_ids(some, operation) == {"a", "b"}
    with pytest.raises(Forbidden) as refusal:
        allowed_ids(caller(f"{path}:c:run"), operation)
    assert refusal.value.required_scopes == (f"{path}:*:read", f"{path}:read")


def test_unfiltered_list_needs_the_general_scope() -> None:
    with pytest.raises(Forbidden):
        allowed_ids(caller("sessions:one:read"), "get_sessions")
    assert allowed_ids(caller("sessions:read"), "get_sessions") is None
    assert required_scopes("get_health", {}) == ()


def test_admin_operations_need_the_admin_scope() -> None:
    with pytest.raises(Forbidden) as refusal:
        allowed_ids(caller("agents:read"), "explain_auth")
    assert refusal.value.required_scopes == ()
    assert allowed_ids(anonymous_principal(), "explain_auth") is None


def test_scope_grants_its_operations() -> None:
    assert list(operations_granted_by("audit:read")) == ["get_audit", "get_audit_heads"]
    assert list(operations_granted_by("agents:x:run")) == [
        "create_agent_run",
        "cancel_agent_run",
        "resume_agent_run_stream",
        "continue_agent_run",
        "retry_agent_run",
    ]
    assert list(operations_granted_by("approvals:x:write")) == [
        "decide_agent_approval",
        "decide_team_approval",
        "decide_workflow_approval",
    ]
    assert "get_agent_run_events" in operations_granted_by("agents:x:read")
    for malformed in ("agents", "agents:x:run:more", "agents:x y:run", "agents run", "::", ""):
        assert list(operations_granted_by(malformed)) == []


def test_grant_names_the_reason() -> None:
    one = RouteMatch("create_agent_run", {"agent_id": "x"})
    for granted, match, reason in (
        (None, RouteMatch("get_health", {}), "public: credentials are ignored"),
        (caller(), RouteMatch("get_me", {}), "allowed for every valid token"),
        (anonymous_principal(), one, "the caller is an administrator"),
        (caller("agents:read", "agents:run"), one, "granted by agents:run"),
        (caller("agents:x:run"), one, "granted by agents:x:run"),
        (
            caller("agents:b:read", "agents:a:read"),
            RouteMatch("get_agents", {}),
            "granted in part, for a, b",
        ),
    ):
        assert describe_grant(granted, match) == reason


def test_route_that_is_no_operation_needs_its_scope() -> None:
    """Such as a route of a user, or one of an interface of another system."""
    for scopes in ({"agents:run"}, {"agents:echo:run"}, {"agents:*:run"}):
        authorize_scope(Principal("u", frozenset(scopes)), "agents", "run", "echo")
    authorize_scope(local_principal("boss"), "agents", "run", "echo")

    for scopes in (set[str](), {"agents:read"}, {"teams:run"}, {"agents:other:run"}):
        with pytest.raises(Forbidden) as caught:
            authorize_scope(Principal("u", frozenset(scopes)), "agents", "run", "echo")
        assert caught.value.required_scopes == ("agents:echo:run", "agents:*:run", "agents:run")
    # Without an id, a scope for one id is not enough.
    with pytest.raises(Forbidden):
        authorize_scope(Principal("u", frozenset({"agents:echo:run"})), "agents", "run")


def test_request_without_a_principal_has_the_reason_as_its_error() -> None:
    failure = Unavailable("The keys cannot be read")
    with pytest.raises(Unavailable) as caught:
        authorize_request(None, failure, "get_agents", {})
    assert caught.value is failure
    with pytest.raises(Unauthenticated):
        authorize_request(None, None, "get_agents", {})
    with pytest.raises(Forbidden):
        authorize_request(Principal("u", frozenset()), None, "get_agents", {})
    authorize_request(None, failure, "get_health", {})


def test_call_is_refused_before_its_ids_are_checked() -> None:
    nul = {"session_id": "a\0b"}
    caller = Principal("u", frozenset({"sessions:read"}))
    authorize_call(caller, "get_session_by_id", {"session_id": "s1"})
    with pytest.raises(ValidationFailed):
        authorize_call(caller, "get_session_by_id", nul)
    with pytest.raises(Forbidden):
        authorize_call(Principal("u", frozenset()), "get_session_by_id", nul)


@pytest.mark.parametrize("value", ["a\nb", "\x7f", "\ud800", ".", ".."])
def test_path_with_a_value_that_is_no_id_does_not_exist(value: str) -> None:
    check_path_params({})
    check_path_params({"session_id": "s1", "run_id": "é.."})
    with pytest.raises(NotFound):
        check_path_params({"session_id": "s1", "run_id": value})


def test_unknown_requests_are_a_401_before_a_404_or_405() -> None:
    table = RouteTable({"get_health": ROUTES["get_health"]})
    assert find_operation(table, "GET", "/health", Unauthenticated()) == ("get_health", {})
    for method, path in (("POST", "/health"), ("GET", "/nothing")):
        with pytest.raises(Unauthenticated):
            find_operation(table, method, path, Unauthenticated())
    with pytest.raises(MethodNotAllowed) as refusal:
        find_operation(table, "POST", "/health", None)
    assert "GET" in refusal.value.headers()["Allow"]
    with pytest.raises(NotFound):
        find_operation(table, "GET", "/nothing", None)


def test_scope_table_has_the_routes_of_operations() -> None:
    entries = build_scope_table("root")
    assert [entry["scope"] for entry in entries if entry["needs"] == "admin"] == ["root"]
    for entry in entries:
        for each in entry["operations"]:
            route = ROUTES[each["operation"]]
            assert (each["method"], each["path"]) == (route.method, route.template)
    for nothing in ("agents:x", "a b", "agent_os:admin", "config:x:read"):
        assert list(operations_granted_by(nothing)) == []


def test_scope_table_has_the_forms_of_scopes_and_operations_without_a_scope() -> None:
    entries = build_scope_table("root")
    by_scope = {entry["scope"]: entry["forms"] for entry in entries if entry["needs"] == "scope"}
    assert by_scope["agents:run"] == ["agents:run", "agents:*:run", "agents:<id>:run"]
    assert by_scope["config:read"] == ["config:read"]

    others = {
        entry["needs"]: {each["operation"] for each in entry["operations"]}
        for entry in entries
        if entry["needs"] != "scope"
    }
    signs = {"admin": "!", "token": "+", "nothing": "-"}
    expected = {
        needs: {name for name, scope in CONTRACT.items() if scope == sign}
        for needs, sign in signs.items()
    }
    # An administrator may also do what needs a scope.
    expected["admin"] |= {name for name, scope in CONTRACT.items() if scope not in signs.values()}
    assert others == expected


def test_component_kinds_have_operation_ids() -> None:
    assert operation_ids("team") == (
        "get_teams",
        "get_team",
        "create_team_run",
        "list_team_runs",
        "get_team_run",
        "cancel_team_run",
        "resume_team_run_stream",
        "get_team_run_events",
        "get_team_run_tool_call",
        "continue_team_run",
        "retry_team_run",
        "fork_team_run",
        "get_team_approval",
        "get_team_approval_receipt",
        "decide_team_approval",
        "get_team_versions",
        "get_team_version_diff",
    )


def test_principals_have_names_for_records() -> None:
    assert (anonymous_principal().actor, local_principal("root").actor, caller().actor) == (
        "anonymous",
        "local:root",
        "me",
    )


def test_local_caller_may_act_as_a_user() -> None:
    principal = local_principal("root", acting_for="ann")
    assert (principal.subject, principal.admin, principal.sees_all_users) == ("ann", True, False)


def test_open_operations_are_those_of_the_scopes() -> None:
    def opened(*scopes: str) -> set[str]:
        return set(list_open_operations(caller(*scopes)))

    assert opened() == {
        "get_me", "keep_console_token", "create_sign_in_link", "send_message",
    }  # fmt: skip
    assert opened("audit:read") - opened() == {"get_audit", "get_audit_heads"}
    one = opened("agents:echo:read")
    assert {"get_agents", "get_agent", "get_agent_run_events"} <= one
    assert not {"create_agent_run", "get_teams", "get_runs"} & one
    assert opened("agents:echo:run") >= {"create_agent_run", "cancel_agent_run"}
    everything = set(list_open_operations(local_principal("root")))
    assert everything == {name for name, rule in POLICY.items() if not isinstance(rule, Public)}
