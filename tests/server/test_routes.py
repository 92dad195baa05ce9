"""The server, the policy and the OpenAPI document use one table of routes."""

from __future__ import annotations

import ast
import json
import re

import pytest

from agentctl.auth.policy import POLICY, NeedsScope
from agentctl.config.settings import Database, Settings
from agentctl.interface.operations import ROUTES
from agentctl.interface.pages import PAGES
from agentctl.records.kinds import KINDS
from agentctl.records.routes import Route, RouteMatch, RouteTable, operation_ids
from agentctl.server import create_app
from agentctl.server.routing import Operation, list_operations
from tests.architecture.sources import modules
from tests.kit.tables import every_row

APP = create_app(Settings(databases=(Database("main", "sqlite:////nowhere.db"),)))
SERVED = {route.operation: route for route in list_operations(APP.routes)}
TABLE = RouteTable(ROUTES)


def test_server_policy_and_table_have_the_same_operations() -> None:
    assert set(SERVED) == set(ROUTES) == set(POLICY)


def test_document_has_the_paths_of_the_table() -> None:
    shown = {
        item["operationId"]: (method.upper(), path)
        for path, methods in json.loads(APP.state.agentctl.build_openapi_document())[
            "paths"
        ].items()
        for method, item in methods.items()
    }
    assert shown == {name: tuple(ROUTES[name]) for name in shown}
    hidden = {"get_docs", "get_redoc", "get_openapi", "get_oauth2_redirect", "get_docs_asset"}
    hidden |= set(PAGES)
    assert set(ROUTES) - set(shown) == hidden


def test_no_two_operations_share_a_route() -> None:
    places = [(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in ROUTES.values()]
    assert len(places) == len(set(places))


@every_row("name", ROUTES)
def test_scopes_name_parameters_of_the_path(name: str) -> None:
    rule = POLICY[name]
    if isinstance(rule, NeedsScope) and rule.id_param is not None:
        template = ROUTES[name].template
        # The scopes of approvals name their component.
        resource = template.split("/")[1] if rule.resource == "approvals" else rule.resource
        assert f"/{resource}/{{{rule.id_param}}}" in template


@every_row("name", ROUTES)
def test_table_matches_like_starlette(name: str) -> None:
    """Starlette compiles the same templates."""
    route: Operation = SERVED[name]
    for value in ("x", "a b", "é", "..", "%2F", "\x00", "a\nb", "x" * 300):
        parts = re.split(r"\{\w+\}", ROUTES[name].template)
        path = value.join(parts)
        theirs = route.path_regex.fullmatch(path)
        assert theirs is not None
        assert TABLE.find(ROUTES[name].method, path) == RouteMatch(name, theirs.groupdict())


@pytest.mark.parametrize(
    "path",
    ["", "health", "/health/", "//health", "/agents/", "/agents//runs", "/agents/a/b", "/HEALTH"],
)
def test_almost_correct_paths_do_not_match(path: str) -> None:
    assert TABLE.find("GET", path) is None
    assert TABLE.methods(path) == ()


def test_methods_of_a_path() -> None:
    assert TABLE.methods("/agents") == ("GET", "HEAD")
    assert TABLE.methods("/sessions/x") == ("DELETE", "GET", "HEAD", "PATCH")
    assert TABLE.find("PUT", "/sessions/x") is None
    assert TABLE.find("get", "/sessions/x") is None


def test_every_kind_has_the_same_operations() -> None:
    for kind, names in KINDS.items():
        ids = operation_ids(kind)
        assert {ROUTES[name].template.split("/")[1] for name in ids} == {names.path}
        assert ROUTES[ids.list] == Route("GET", f"/{names.path}")


def test_paths_are_in_the_table_only() -> None:
    templates = {route.template for route in ROUTES.values()} - {"/", "/docs", "/redoc"}
    for module in modules():
        if module.name.startswith("agentctl.server."):
            texts = {
                node.value
                for node in ast.walk(module.tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            assert not texts & templates, module.name
