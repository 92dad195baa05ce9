"""Every operation with every class of callers, through HTTP, compared with a computed status.

The computation follows docs/contract.md "Scopes" and shares only its table with the policy.
`tests/auth/test_policy.py` has every scope and look-alike of the functions of the policy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import httpx2
import pytest

from agentctl.auth.policy import POLICY, Admin, Authenticated, NeedsScope, Public
from agentctl.auth.principal import Principal
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests.administration import Grant, NewAccount
from agentctl.records.authorization import KNOWN_SCOPES
from agentctl.server.app import create_app
from agentctl.store.database import Sql, Statement, Steps, unit
from tests.auth.signed import signed
from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.in_process import HttpRequest, InProcessServer, comparable, serve_in_process
from tests.kit.tables import every_row

IDS = {
    "agent_id": "echo",
    "team_id": "crew",
    "workflow_id": "line",
    "session_id": "nothing",
    "run_id": "nothing",
    "tool_call_id": "nothing",
    "call_id": "nothing",
    "version": "nothing",
    "folder": "nothing",
    "account_id": "nothing",
    "memory_id": "nothing",
    "file_id": "nothing",
    "approval_id": "nothing",
    "webhook_id": "nothing",
    "delivery_id": "nothing",
    "halt_id": "nothing",
    "name": "docs.js",
}
"""The ids in the paths: components exist, sessions and runs do not."""

SCOPED_IDS = {
    "agents": "echo",
    "teams": "crew",
    "workflows": "line",
    "approvals": "echo",
    "sessions": "nothing",
}
"""The resources whose scopes can name one id, and that id in the paths."""

EVERYTHING = frozenset(KNOWN_SCOPES)


@dataclass(frozen=True)
class Caller:
    """A caller."""

    bearer: str | None
    """Its token; None sends no credential."""

    scopes: frozenset[str] | None
    """The scopes that the token grants; None if it is not valid."""


def is_sufficient(scope: str, rule: NeedsScope, path: Mapping[str, str]) -> bool:
    """Return True if one scope is sufficient (docs/contract.md "Scopes")."""
    resource, *middle, action = scope.split(":")
    if (resource, action) != (rule.resource, rule.action):
        return False
    if not middle or middle == ["*"]:
        return True
    return rule.filters_list or (rule.id_param is not None and path[rule.id_param] == middle[0])


def expected_status(operation: str, caller: Caller, admin_scope: str = ADMIN) -> int:
    """Return the status that the contract demands for a request about missing data."""
    rule = POLICY[operation]
    if isinstance(rule, Public):
        return allowed_status(operation)
    if caller.scopes is None:
        return 401
    if admin_scope in caller.scopes or isinstance(rule, Authenticated):
        return allowed_status(operation)
    if isinstance(rule, Admin):
        return 403
    if any(is_sufficient(scope, rule, IDS) for scope in caller.scopes):
        return allowed_status(operation)
    return 403


def allowed_status(operation: str) -> int:
    """Return the status for an allowed caller: 404 for missing ids, 422 for the body.

    Kept tokens of the console need the key of a page, and get 400.
    """
    method, template = ROUTES[operation]
    if template.endswith("/sign-in/token"):
        return 400
    if template.endswith("/sign-in/links"):
        return 200
    missing = {f"{{{name}}}" for name, value in IDS.items() if value == "nothing"}
    if any(name in template for name in missing):
        return 404
    names_user = template.startswith("/user-data")  # and has to
    return 200 if method == "GET" and not names_user else 422


def build_request(operation: str, bearer: str | None, method: str | None = None) -> HttpRequest:
    """Build a request about missing data, with a wrong body."""
    declared_method, template = ROUTES[operation]
    body = None if declared_method == "GET" else b'{"unknown": 1}'
    query = "?session_id=nothing" if template.endswith(("/cancel", "/resume")) else ""
    path = template.format(**IDS) + query
    return HttpRequest(method or declared_method, path, bearer, body)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return create_deployment(tmp_path_factory.mktemp("callers"), "http://127.0.0.1:9/v1")


@pytest.fixture(scope="module")
def served(deployment: Deployment) -> Iterator[InProcessServer]:
    with serve_in_process(deployment) as application:
        yield application


@functools.cache
def create_account(served: InProcessServer, name: str, *scopes: str) -> Caller:
    """Create a service account."""
    boss = served.service.operations_for(Principal("boss", admin=True, sees_all_users=True))
    new = NewAccount(name, tuple(map(Grant, scopes)), allow_privileged_scopes=True)
    document = served.call(lambda: boss.accounts.create(new))
    return Caller(str(document.value["token"]), frozenset(scopes))


@functools.cache
def create_user(deployment: Deployment, *scopes: str, subject: str | None = "me") -> Caller:
    """Sign a token with some scopes."""
    return Caller(signed(deployment, subject, *scopes), frozenset(scopes))


def list_callers(served: InProcessServer, operation: str) -> dict[str, Caller]:
    """Return the callers of every operation, and those around the scope that this one needs."""
    deployment = served.deployment
    expired = signed(deployment, "boss", ADMIN, exp=1_000_000_000)
    callers = {
        "no token": Caller(None, None),
        "bad token": Caller("not.a.token", None),
        "expired token": Caller(expired, None),
        "powerless": create_user(deployment),
        "all scopes": create_user(deployment, *KNOWN_SCOPES),
        "no subject": create_user(deployment, *KNOWN_SCOPES, subject=None),
        "admin": create_user(deployment, ADMIN),
        "account": create_account(served, "all", *KNOWN_SCOPES),
        "account of admin": create_account(served, "admin", ADMIN),
    }

    rule = POLICY[operation]
    if not isinstance(rule, NeedsScope):
        return callers

    scope = f"{rule.resource}:{rule.action}"
    # `config` has a second name, which the computation does not know.
    others = EVERYTHING - {scope, scope.replace("config:", "system:")}
    callers["the scope alone"] = create_user(deployment, scope)
    callers["all other scopes"] = create_user(deployment, *sorted(others))
    for one in (SCOPED_IDS.get(rule.resource), "*", "another"):
        if rule.resource in SCOPED_IDS:
            narrow = f"{rule.resource}:{one}:{rule.action}"
            callers[narrow] = create_user(deployment, narrow)
    return callers


def count_denials(served: InProcessServer, operation: str) -> int:
    """Return the number of denials in the audit log, after the counted ones are written."""
    served.call(served.service.hosting.audit_log.counter.flush)
    found = Sql(
        "SELECT coalesce(sum(count), 0) FROM audit_log"
        " WHERE outcome = 'denied' AND operation = :name"
    )

    @unit
    def count() -> Steps[int]:
        rows = yield Statement(found, {"name": operation})
        return int(rows[0][0])

    return served.call(lambda: served.service.hosting.databases.system.read(count()))


@every_row("operation", ROUTES)
def test_every_caller_gets_the_computed_status(served: InProcessServer, operation: str) -> None:
    callers = list_callers(served, operation)
    before = count_denials(served, operation)
    answers = served.answers([build_request(operation, who.bearer) for who in callers.values()])

    wanted = {name: expected_status(operation, who) for name, who in callers.items()}
    got = {name: answer.status_code for name, answer in zip(callers, answers, strict=True)}
    assert got == wanted

    refused = sum(status == 403 for status in wanted.values())
    assert count_denials(served, operation) - before == refused, "each denial is in the audit"
    for status in (401, 403):
        check_denials(dict(zip(callers, answers, strict=True)), status)


def check_denials(answers: dict[str, httpx2.Response], status: int) -> None:
    """Assert that all rejections are equal, except for requests without a credential."""
    said = {
        name: comparable(answer) for name, answer in answers.items() if answer.status_code == status
    }
    without = said.pop("no token", None)
    assert len(set(said.values())) <= 1
    if without is not None:
        assert b"Authentication required" in without[2]
        assert dict(without[1])["www-authenticate"] == 'Bearer realm="agentctl"'


@every_row("operation", [name for name, rule in POLICY.items() if not isinstance(rule, Public)])
def test_caller_is_refused_before_other_faults_are_noticed(
    served: InProcessServer, operation: str
) -> None:
    method, template = ROUTES[operation]
    path = template.replace("{", "").replace("}", "%00")
    wrong = HttpRequest(method, f"{path}?limit=x&type=y", None, b"{bad")
    powerless = create_user(served.deployment).bearer
    bearers = (None, "not.a.token", powerless)
    nobody, bad, refused = served.answers([replace(wrong, bearer=bearer) for bearer in bearers])

    assert nobody.status_code == bad.status_code == 401
    assert "error" not in nobody.headers["www-authenticate"]
    assert 'error="invalid_token"' in bad.headers["www-authenticate"]
    assert (refused.status_code == 403) == (not isinstance(POLICY[operation], Authenticated))


GETS = [operation for operation, route in ROUTES.items() if route.method == "GET"]


@every_row("operation", GETS)
def test_head_is_allowed_like_get(served: InProcessServer, operation: str) -> None:
    every = list_callers(served, operation)
    callers = {name: every[name] for name in ("no token", "powerless", "all scopes", "admin")}
    answers = served.answers(
        [build_request(operation, who.bearer, "HEAD") for who in callers.values()]
    )
    wanted = {name: expected_status(operation, who) for name, who in callers.items()}
    assert {name: a.status_code for name, a in zip(callers, answers, strict=True)} == wanted
    assert {answer.content for answer in answers} == {b""}


@every_row("operation", [name for name, rule in POLICY.items() if isinstance(rule, NeedsScope)])
def test_required_scopes_of_a_denial_are_sufficient(
    served: InProcessServer, operation: str
) -> None:
    """Each of the `required_scopes` by itself, as it is written, in the body and the header."""
    powerless = create_user(served.deployment)
    (refused,) = served.answers([build_request(operation, powerless.bearer)])
    required = refused.json()["required_scopes"]
    assert required
    assert f'scope="{" ".join(required)}"' in refused.headers["www-authenticate"]

    callers = [create_user(served.deployment, scope) for scope in required]
    answers = served.answers([build_request(operation, who.bearer) for who in callers])
    assert {answer.status_code for answer in answers} == {allowed_status(operation)}


def test_configured_admin_scope_replaces_the_default(deployment: Deployment) -> None:
    """Also if it is the scope of something."""
    given = deployment.settings
    settings = replace(given, authorization=replace(given.authorization, admin_scope="agents:read"))
    callers = [create_user(deployment, scope) for scope in ("agents:read", ADMIN, "xagents:read")]

    with serve_in_process(deployment, create_app(settings)) as other:
        for operation in ("get_deployment", "get_audit", "get_agents", "create_halt"):
            answers = other.answers([build_request(operation, who.bearer) for who in callers])
            wanted = [expected_status(operation, who, "agents:read") for who in callers]
            assert [answer.status_code for answer in answers] == wanted, operation


def test_authorization_off_allows_every_caller(deployment: Deployment) -> None:
    """All operations are allowed, except those of service accounts."""
    given = deployment.settings
    settings = replace(given, authorization=replace(given.authorization, enabled=False))
    expected = {name: 403 if "service_account" in name else allowed_status(name) for name in ROUTES}
    # There is no token that a link could return.
    expected["create_sign_in_link"] = 409

    with serve_in_process(deployment, create_app(settings)) as other:
        ready = build_request("get_readiness", None)
        wait_for(lambda: other.answers([ready])[0].status_code == 200)
        for bearer in (None, "not.a.token"):
            asks = {name: build_request(name, bearer) for name in ROUTES}
            new = b'{"name": "x", "scopes": [{"scope": "agents:read"}]}'
            asks["create_service_account"] = replace(asks["create_service_account"], body=new)
            answers = other.answers(list(asks.values()))
            got = {name: answer.status_code for name, answer in zip(asks, answers, strict=True)}
            assert got == expected
