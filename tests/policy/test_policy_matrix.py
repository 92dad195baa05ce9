"""Every route for every kind of caller, compared with a computed status.

The computation follows docs/contract.md "Scopes" and shares only the table with the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import httpx2
import pytest

from agentctl.auth.policy import POLICY, Admin, Authenticated, NeedsScope, Public
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.account_tokens import generate_account_token
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests.administration import Grant, NewAccount
from agentctl.records.authorization import KNOWN_SCOPES
from agentctl.server.app import create_app
from agentctl.store.database import Sql, Statement, Steps, unit
from tests.auth.forge import fixed, seal
from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.tables import every_row
from tests.policy.in_process import HttpRequest, InProcessServer, comparable, serve_in_process
from tests.policy.tokens import signed

WITH_IDS = ("agents", "teams", "workflows", "approvals", "sessions")
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

INVALID_SCOPES = (
    "agents", "agents:", ":read", "agents::read", "agents:*", "*:read", "*:*:read", "*:*:*", "*",
    "AGENTS:read", "Agents:Read", "agents:READ", " agents:read", "agents:read ", "agents:echo:rea",
    "agents:echo:read:x", "agents:echo:*", "agents:ec*:read", "agents:%65cho:read", "agent:read",
    "agents/read", "agents:read,teams:read", "agents:read teams:read", "sessions:noth?ng:read",
    "config:*:read", "config:main:read", "audit:*:read", "audit:1:read", "system:*:read",
    "service_accounts:*:write", "service_accounts:nothing:delete", "runs:read", "auth:explain",
    "agent_os:admin:", "agent_os:*:admin", "agent_os:Admin", "agent_os:*", "admin",
    "agents\u200b:read",
)  # fmt: skip
"""Texts that resemble scopes and grant nothing."""


@dataclass(frozen=True)
class Caller:
    """A kind of caller.

    Attributes:
        bearer: its token.
        scopes: the granted scopes; None for an invalid token.
    """

    bearer: str | None
    scopes: frozenset[str] | None


def scope_forms(scope: str) -> list[str]:
    """Return a scope and its forms for all ids, the correct id and another id."""
    resource, action = scope.split(":")
    if resource not in WITH_IDS:
        return [scope]
    return [scope, *(f"{resource}:{one}:{action}" for one in ("*", SCOPED_IDS[resource], "other"))]


def is_sufficient(scope: str, rule: NeedsScope, path: Mapping[str, str]) -> bool:
    """Return True if one scope is sufficient (docs/contract.md "Scopes")."""
    resource, *middle, action = scope.split(":")
    if resource == "system":
        resource = "config"
    if (resource, action) != (rule.resource, rule.action):
        return False
    if not middle or middle == ["*"]:
        return True
    return rule.filters_list or (rule.id_param is not None and path[rule.id_param] == middle[0])


def expected_status(operation: str, caller: Caller, admin_scope: str = ADMIN) -> int:
    """Return the status that the table demands, 0 if the caller is allowed."""
    rule = POLICY[operation]
    if isinstance(rule, Public):
        return 0
    if caller.scopes is None:
        return 401
    if admin_scope in caller.scopes or isinstance(rule, Authenticated):
        return 0
    if isinstance(rule, Admin):
        return 403
    return 0 if any(is_sufficient(scope, rule, IDS) for scope in caller.scopes) else 403


def allowed_status(operation: str) -> int:
    """Return the status for an allowed caller: 404 for missing ids, 422 for the body.

    Kept tokens of the console need the key of a page, and get 400.
    """
    method, template = ROUTES[operation]
    if template.endswith("/sign-in/token"):
        return 400
    if template.endswith("/sign-in/links"):
        return 200
    unknown = (
        "{session_id}", "{run_id}", "{account_id}", "{memory_id}", "{approval_id}", "{version}",
        "{webhook_id}", "{delivery_id}", "{file_id}", "{halt_id}",
    )  # fmt: skip
    if any(name in template for name in unknown):
        return 404
    names_user = template.startswith("/user-data")  # and has to
    return 200 if method == "GET" and not names_user else 422


def build_request(operation: str, bearer: str | None, method: str | None = None) -> HttpRequest:
    given, template = ROUTES[operation]
    body = None if given == "GET" else b'{"unknown": 1}'
    query = "?session_id=nothing" if template.endswith(("/cancel", "/resume")) else ""
    return HttpRequest(method or given, template.format(**IDS) + query, bearer, body)


def identified_callers(deployment: Deployment) -> Iterator[tuple[str, Caller]]:
    """Yield callers with valid tokens: with one scope, with several scopes, with none."""
    for known in KNOWN_SCOPES:
        for scope in scope_forms(known):
            yield scope, Caller(signed(deployment, "me", scope), frozenset({scope}))
    everything = frozenset(KNOWN_SCOPES)
    for known in KNOWN_SCOPES:
        rest = everything - {known} - ({"system:read"} if known == "config:read" else set())
        yield f"all but {known}", Caller(signed(deployment, "me", *rest), rest)
    yield "no scopes", Caller(signed(deployment, "me"), frozenset())
    yield "worthless scopes", Caller(signed(deployment, "me", *INVALID_SCOPES), frozenset())
    yield "all scopes", Caller(signed(deployment, "me", *everything), everything)
    yield "another user", Caller(signed(deployment, "other", *everything), everything)
    yield "no sub", Caller(signed(deployment, None, *everything), everything)
    yield "admin", Caller(signed(deployment, "boss", ADMIN), frozenset({ADMIN}))


def unidentified_callers(deployment: Deployment) -> Iterator[tuple[str, Caller]]:
    """Yield callers with an invalid credential or none."""
    good = signed(deployment, "boss", ADMIN)
    yield "no token", Caller(None, None)
    for name, token in {
        "bad token": "not.a.token",
        "wrong signature": seal(good.rpartition(".")[0], fixed(bytes(255) + b"\1")),
        "expired": signed(deployment, "boss", ADMIN, exp=1_000_000_000),
        "cut": good[:-4],
        "unsigned": good.rpartition(".")[0] + ".",
        "unknown account": generate_account_token(),
        "account elsewhere": generate_account_token("elsewhere_pat_"),
    }.items():
        yield name, Caller(token, None)


def account_callers(served: InProcessServer) -> Iterator[tuple[str, Caller]]:
    """Yield service accounts with all scopes, all but one, one id, or the admin scope."""
    everything = frozenset(KNOWN_SCOPES)
    held = {"account": everything, "account of admin": frozenset({ADMIN})}
    held |= {f"account but {scope}": everything - {scope} for scope in KNOWN_SCOPES[::3]}
    held |= {
        f"account {resource}": frozenset({f"{resource}:{one}:read"})
        for resource, one in SCOPED_IDS.items()
    }
    for number, (name, scopes) in enumerate(held.items()):
        yield name, Caller(create_account(served, f"a{number}", scopes), scopes)


def create_account(served: InProcessServer, name: str, scopes: frozenset[str]) -> str:
    """Create a service account and return its token."""
    port = served.service.operations_for(Principal("boss", admin=True, sees_all_users=True))
    grants = tuple(map(Grant, sorted(scopes)))
    new = NewAccount(name, grants, allow_privileged_scopes=True)
    document = served.call(lambda: port.accounts.create(new))
    return str(document.value["token"])


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return create_deployment(tmp_path_factory.mktemp("matrix"), "http://127.0.0.1:9/v1")


@pytest.fixture(scope="module")
def served(deployment: Deployment) -> Iterator[InProcessServer]:
    with serve_in_process(deployment) as application:
        yield application


@pytest.fixture(scope="module")
def callers(served: InProcessServer) -> dict[str, Caller]:
    return {
        **dict(unidentified_callers(served.deployment)),
        **dict(identified_callers(served.deployment)),
        **dict(account_callers(served)),
    }


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
def test_every_caller_gets_the_expected_status(
    served: InProcessServer, callers: dict[str, Caller], operation: str
) -> None:
    before = count_denials(served, operation)
    answers = served.answers([build_request(operation, who.bearer) for who in callers.values()])
    wanted = {
        name: expected_status(operation, who) or allowed_status(operation)
        for name, who in callers.items()
    }
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


GETS = [operation for operation, route in ROUTES.items() if route.method == "GET"]


@every_row("operation", GETS)
def test_head_is_allowed_like_get(
    served: InProcessServer, callers: dict[str, Caller], operation: str
) -> None:
    names = [name for name in callers if not name.startswith(("all but", "account "))]
    answers = served.answers(
        [build_request(operation, callers[name].bearer, "HEAD") for name in names]
    )
    wanted = {
        name: expected_status(operation, callers[name]) or allowed_status(operation)
        for name in names
    }
    assert {name: a.status_code for name, a in zip(names, answers, strict=True)} == wanted
    assert {answer.content for answer in answers} == {b""}


@every_row("operation", [name for name, rule in POLICY.items() if isinstance(rule, NeedsScope)])
def test_required_scopes_of_a_denial_are_sufficient(
    served: InProcessServer, operation: str
) -> None:
    """Each of the `required_scopes` by itself, as it is written, in the body and the header."""
    (refused,) = served.answers([build_request(operation, signed(served.deployment, "me"))])
    required = refused.json()["required_scopes"]
    assert required
    assert f'scope="{" ".join(required)}"' in refused.headers["www-authenticate"]
    tokens = [signed(served.deployment, "me", scope) for scope in required]
    answers = served.answers([build_request(operation, token) for token in tokens])
    assert {answer.status_code for answer in answers} == {allowed_status(operation)}


@pytest.mark.parametrize("admin_scope", ["platform:root", "agents:read"])
def test_configured_admin_scope_replaces_the_default(
    served: InProcessServer, deployment: Deployment, admin_scope: str
) -> None:
    """Also one that is the scope of something."""
    given = deployment.settings
    settings = replace(given, authorization=replace(given.authorization, admin_scope=admin_scope))
    callers = {
        name: Caller(signed(deployment, "boss", scope), frozenset({scope}))
        for name, scope in {
            "the new": admin_scope,
            "the old": ADMIN,
            "like it": "x" + admin_scope,
        }.items()
    }
    with serve_in_process(deployment, create_app(settings)) as other:
        for operation in ROUTES:
            answers = other.answers(
                [build_request(operation, who.bearer) for who in callers.values()]
            )
            wanted = [
                expected_status(operation, who, admin_scope) or allowed_status(operation)
                for who in callers.values()
            ]
            assert [answer.status_code for answer in answers] == wanted, operation


def test_callers_with_roles_have_the_scopes_of_their_roles(deployment: Deployment) -> None:
    """A role with each scope, with all but one, and look-alikes.

    What each scope allows is tested above, whatever grants it.
    """
    given = deployment.settings
    everything = frozenset(KNOWN_SCOPES)
    granted = {
        **{form: frozenset({form}) for known in KNOWN_SCOPES for form in scope_forms(known)},
        **{f"all but {known}": everything - {known} for known in KNOWN_SCOPES[::3]},
        "Platform Admins": everything,
        "boss": frozenset({ADMIN}),
    }
    table = replace(
        given.authorization,
        scopes_claim=(),
        roles_claim=("realm_access.roles",),
        roles={f"role {name}": tuple(scopes) for name, scopes in granted.items()},
    )
    assert not table.roles_may_grant_admin
    lookalikes = [
        ADMIN,
        "admin",
        "boss",
        "Role boss",
        "role boss ",
        "role\u00a0boss",
        *KNOWN_SCOPES,
    ]
    claims: dict[str, tuple[object, frozenset[str]]] = {
        **{name: ([f"role {name}"], scopes) for name, scopes in granted.items()},
        "boss": (["role boss"], frozenset()),
        "text": ("role agents:read", frozenset({"agents:read"})),
        "text of two": ("role agents:read role agents:run", frozenset()),
        "two": (["role agents:read", "x", "role usage:read"], {"agents:read", "usage:read"}),
        "look-alikes": ([*lookalikes, *KNOWN_SCOPES], frozenset()),
        "wrong types": ([None, 1, ["role agents:read"], {"role agents:read": 1}], frozenset()),
    }
    callers = {
        name: Caller(
            signed(deployment, "me", ADMIN, realm_access={"roles": roles}), frozenset(scopes)
        )
        for name, (roles, scopes) in claims.items()
    }
    settings = replace(given, authorization=table)
    with serve_in_process(deployment, create_app(settings)) as other:
        verifier = other.service.hosting.verifier()
        principals = {
            name: other.call(lambda who=who: verifier.identify(f"Bearer {who.bearer}"))
            for name, who in callers.items()
        }
        answers = other.answers(
            [build_request("get_agents", callers[name].bearer) for name in ("agents:read", "boss")]
        )

    assert {name: principal.scopes for name, principal in principals.items()} == {
        name: who.scopes for name, who in callers.items()
    }
    assert not any(principal.admin for principal in principals.values())
    assert [answer.status_code for answer in answers] == [200, 403]


def wait_for_readiness(server: InProcessServer, ask: HttpRequest) -> None:
    wait_for(lambda: server.answers([ask])[0].status_code == 200)


def test_authorization_off_allows_every_caller(deployment: Deployment) -> None:
    """All operations are allowed, except those of service accounts."""
    given = deployment.settings
    settings = replace(given, authorization=replace(given.authorization, enabled=False))
    somebodys = {name for name in ROUTES if "service_account" in name}
    with serve_in_process(deployment, create_app(settings)) as other:
        for bearer in (None, "not.a.token"):
            asks = {name: build_request(name, bearer) for name in ROUTES}
            new = b'{"name": "x", "scopes": [{"scope": "agents:read"}]}'
            asks["create_service_account"] = replace(asks["create_service_account"], body=new)
            answers = other.answers(list(asks.values()))
            got = {name: answer.status_code for name, answer in zip(asks, answers, strict=True)}
            if got["get_readiness"] == 503:  # a busy machine
                wait_for_readiness(other, asks["get_readiness"])
                got["get_readiness"] = 200
            expected = {name: 403 if name in somebodys else allowed_status(name) for name in ROUTES}
            # There is no token that a link could return.
            assert got == expected | {"create_sign_in_link": 409}
