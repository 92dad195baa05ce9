"""Every operation with every kind of caller, from the table in `scenarios`."""

from __future__ import annotations

import itertools
import json

import httpx2
import pytest

from agentctl.auth.policy import POLICY, NeedsScope, Public
from agentctl.config.settings import Database, Settings
from agentctl.records.kinds import KINDS
from agentctl.server import create_app
from agentctl.server.routing import Operation, list_operations
from tests.kit.declared import DeclaredAnswers
from tests.kit.tables import every_row
from tests.server.scenarios import SCENARIOS, Scenario
from tests.server.seeds import as_caller
from tests.server.threaded_server import ThreadedServer

OPERATIONS = list_operations(
    create_app(Settings(databases=(Database("main", "sqlite:////nowhere.db"),))).routes
)
"""The operations of any application; that of the scenarios has the same."""


def with_ids(server: ThreadedServer, text: str) -> str:
    """Return `text` with the names of seeded runs replaced by their ids."""
    for name, run_id in server.ids.items():
        text = text.replace(f"{{{name}}}", run_id)
    return text


def ask(server: ThreadedServer, scenario: Scenario) -> httpx2.Response:
    method, _, path = with_ids(server, scenario.request).partition(" ")
    headers = as_caller(server, scenario.who) | scenario.headers
    content = None
    if scenario.json is not None:
        headers["Content-Type"] = "application/json"
        content = with_ids(server, json.dumps(scenario.json))
    return server.client.request(
        method, path, headers=headers, content=content, data=scenario.form or None
    )


@pytest.fixture(scope="module")
def declared(server: ThreadedServer) -> DeclaredAnswers:
    return DeclaredAnswers(server.client.get("/openapi.json").content)


@every_row("scenario", SCENARIOS)
def test_scenario(server: ThreadedServer, scenario: Scenario, declared: DeclaredAnswers) -> None:
    answer = ask(server, scenario)
    assert answer.status_code == scenario.status, answer.text
    content_type = answer.headers.get("content-type", "")
    declared.check(scenario.operation, answer.status_code, content_type, answer.content)
    for text in scenario.has:
        assert with_ids(server, text) in answer.text
    for text in scenario.lacks:
        assert with_ids(server, text) not in answer.text
    if answer.status_code >= 400:
        check_error(answer)


def check_error(answer: httpx2.Response) -> None:
    """Check the schema of errors (docs/contract.md "Errors")."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert isinstance(body["detail"], str)
    assert isinstance(body["error_code"], str)
    assert body.keys() - {"required_scopes", "session_ids"} == {"detail", "error_code"}
    assert ("www-authenticate" in answer.headers) == (answer.status_code in (401, 403))
    assert ("required_scopes" in body) == (answer.status_code == 403)


def test_every_operation_has_scenarios() -> None:
    told = {scenario.operation for scenario in SCENARIOS}
    assert told == {route.operation for route in OPERATIONS}


WITHOUT_SUCCESS = {
    "get_agent_run_tool_call",
    "get_workflow_run_tool_call",
    "restore_console_token",
    "start_console_sign_in",
    "finish_console_sign_in",
    "use_sign_in_link",
    "send_message",
}
"""Reads of a tool call, of which the agent and the workflow of the scenarios make none, the sign-in
of the console, which `tests/server/test_console.py` and `tests/console` have, and messages to live
runs, which `tests/steering` has."""


WITHOUT_PAUSES = {
    f"{operation}_{kind}_{noun}"
    for kind in KINDS
    for operation, noun in (
        ("continue", "run"),
        ("get", "approval"),
        ("get", "approval_receipt"),
        ("decide", "approval"),
    )
}
"""Operations on paused runs, which tests/approvals has."""

WITHOUT_HALTS = {"end_halt", "get_halt"}
"""Operations on a halt, which tests/service/test_halts.py has."""

WITHOUT_WEBHOOKS = {"redeliver_webhook", "test_webhook", "enable_webhook"}
"""Operations on webhooks, which tests/webhooks has."""


@every_row("route", OPERATIONS)
def test_every_operation_has_a_success_and_a_refusal(route: Operation) -> None:
    statuses = {row.status for row in SCENARIOS if row.operation == route.operation}
    elsewhere = WITHOUT_SUCCESS | WITHOUT_PAUSES | WITHOUT_WEBHOOKS | WITHOUT_HALTS
    assert statuses & {200, 201, 204} or route.operation in elsewhere
    if isinstance(POLICY[route.operation], NeedsScope):
        assert 403 in statuses


def test_scenarios_match_their_operation(server: ThreadedServer) -> None:
    for scenario in SCENARIOS:
        method, _, path = with_ids(server, scenario.request).partition(" ")
        (route,) = (route for route in OPERATIONS if route.operation == scenario.operation)
        assert method.replace("HEAD", "GET") in (route.methods or ())
        assert route.path.split("/")[1] == path.partition("?")[0].split("/")[1]


def test_every_row_of_the_policy_has_a_route() -> None:
    assert {route.operation for route in OPERATIONS} == set(POLICY)


PROTECTED = [route for route in OPERATIONS if not isinstance(POLICY[route.operation], Public)]


@every_row("route, who", itertools.product(PROTECTED, ["nobody", "bad"]))
def test_missing_credential_is_always_401(
    server: ThreadedServer, route: Operation, who: str
) -> None:
    """Also if the request has other faults."""
    method = next(iter(route.methods or ()))
    path = route.path.replace("{", "").replace("}", "%00")
    answer = server.client.request(
        method, f"{path}?limit=x&type=y", headers=as_caller(server, who), content="{bad"
    )
    assert answer.status_code == 401
    check_error(answer)
    error = "" if who == "nobody" else ', error="invalid_token"'
    assert answer.headers["www-authenticate"] == f'Bearer realm="agentctl"{error}'


NEEDY = [route for route in OPERATIONS if isinstance(POLICY[route.operation], NeedsScope)]


@every_row("route", NEEDY)
def test_missing_scope_is_403_before_the_body_is_read(
    server: ThreadedServer, route: Operation
) -> None:
    method = next(iter(route.methods or ()))
    path = route.path.replace("{", "").replace("}", "%00")
    answer = server.client.request(
        method, f"{path}?limit=x&type=y", headers=as_caller(server, "powerless"), content="{bad"
    )
    assert answer.status_code == 403
    check_error(answer)
