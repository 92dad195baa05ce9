"""The OpenAPI document: complete, equal to the policy, without schemas of the framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema_rs
import pytest

from agentctl import INTERFACE_VERSION
from agentctl.auth.policy import POLICY, NeedsScope, Public, scope_forms
from agentctl.records.routes import PAGE_ROUTES
from tests.server.seeds import as_caller
from tests.server.threaded_server import ThreadedServer

EXAMPLES = json.loads((files("agentctl.server.openapi") / "examples.json").read_text())

Found = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def document(server: ThreadedServer) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[Found]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_document_has_the_interface_version(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == "2.7.2"
    assert "servers" not in document


def test_document_is_valid(document: dict[str, Any]) -> None:
    import schemathesis

    schemathesis.openapi.from_dict(document).validate()


def test_document_has_every_operation_except_pages(document: dict[str, Any]) -> None:
    pages = {"get_docs", "get_docs_asset", "get_oauth2_redirect", "get_openapi", "get_redoc"}
    pages |= set(PAGE_ROUTES)
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(POLICY) - pages


def test_tags_are_described(document: dict[str, Any]) -> None:
    told = {tag["name"] for tag in document["tags"]}
    assert all(tag["description"] for tag in document["tags"])
    assert {tag for _, _, operation in operations(document) for tag in operation["tags"]} == told
    assert told == {
        "Agents", "Teams", "Workflows", "Sessions", "Runs", "Approvals", "Memories",
        "Users", "Usage", "Service accounts", "Webhooks", "Authorization", "System",
    }  # fmt: skip


def test_security_equals_the_policy(document: dict[str, Any]) -> None:
    scheme = document["components"]["securitySchemes"]["HTTPBearer"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    for path, _, operation in operations(document):
        name = operation["operationId"]
        public = isinstance(POLICY[name], Public)
        assert operation.get("security", []) == ([] if public else [{"HTTPBearer": []}])
        told = operation.get("description", "")
        assert all(f"`{scope}`" in told for scope in scope_forms(name))
        for parameter in ("agent_id", "team_id", "workflow_id", "session_id"):
            is_scoped = isinstance(POLICY[name], NeedsScope) and f"{{{parameter}}}" in path
            assert (f":<{parameter}>:" in told) == is_scoped


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        assert operation["summary"]
        assert all(parameter["description"] for parameter in operation.get("parameters", ()))
        assert all(answer["description"] for answer in operation["responses"].values())


def test_every_protected_operation_has_its_errors(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        if "security" in operation:
            assert {"400", "401", "403", "404", "422", "500"} <= operation["responses"].keys()
        if "requestBody" in operation:
            assert {"413", "415"} <= operation["responses"].keys()


def test_errors_have_one_schema(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status >= "400" and (operation["operationId"], status) != ("get_readiness", "503"):
                content = answer["content"]["application/json"]
                repeats = operation["operationId"].startswith(("retry_", "fork_"))
                shape = {("403", repeats): "ForbiddenBody", ("409", True): "ConfirmationBody"}.get(
                    (status, repeats), "ErrorBody"
                )
                assert content["schema"] == {"$ref": f"#/components/schemas/{shape}"}
                assert content["example"].keys() >= {"detail", "error_code"}


def test_document_has_no_schemas_of_the_framework(document: dict[str, Any]) -> None:
    assert not {"HTTPValidationError", "ValidationError"} & document["components"]["schemas"].keys()


def examples(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield every example with its schema."""
    for _, _, operation in operations(document):
        parts = [operation.get("requestBody", {}), *operation["responses"].values()]
        for part in parts:
            for kind, content in part.get("content", {}).items():
                yield f"{operation['operationId']} {kind}", content["schema"], content["example"]


def test_every_example_matches_its_schema(document: dict[str, Any]) -> None:
    for name, schema, example in examples(document):
        whole = {**schema, "components": document["components"]}
        assert jsonschema_rs.is_valid(whole, example), name


def test_every_response_with_a_document_has_an_example(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        success = operation["responses"].get("200") or operation["responses"].get("201")
        if success is not None and "application/json" in success["content"]:
            assert operation["operationId"] in EXAMPLES["responses"]
            assert "example" in success["content"]["application/json"]


def test_every_example_belongs_to_an_operation(document: dict[str, Any]) -> None:
    ids = {operation["operationId"] for _, _, operation in operations(document)}
    with_body = {
        operation["operationId"]
        for _, _, operation in operations(document)
        if "requestBody" in operation
    }
    assert EXAMPLES["responses"].keys() <= ids
    assert EXAMPLES["request_bodies"].keys() == with_body
    assert EXAMPLES["responses"]["get_info"]["interface_version"] == INTERFACE_VERSION


def test_session_is_one_of_three_schemas_or_a_head(document: dict[str, Any]) -> None:
    answer = document["paths"]["/sessions/{session_id}"]["get"]["responses"]["200"]
    shapes = answer["content"]["application/json"]["schema"]["anyOf"]
    assert [shape["$ref"].rpartition("/")[2] for shape in shapes] == [
        "AgentSessionDetailSchema", "TeamSessionDetailSchema", "WorkflowSessionDetailSchema",
        "SessionHead",
    ]  # fmt: skip


def test_session_type_is_an_enumeration(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["SessionType"]
    assert (schema["type"], schema["enum"]) == ("string", ["agent", "team", "workflow"])


REAL = {
    "get_agents": "/agents", "get_teams": "/teams", "get_workflows": "/workflows",
    "get_session_by_id": "/sessions/mine", "get_sessions": "/sessions", "get_runs": "/runs",
    "get_session_runs": "/sessions/mine-team/runs", "get_config": "/config", "get_me": "/auth/me",
    "get_info": "/info", "get_models": "/models", "get_api": "/", "get_readiness": "/ready",
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_responses_match_the_document(
    server: ThreadedServer, document: dict[str, Any], name: str
) -> None:
    answer = server.client.get(REAL[name], headers=as_caller(server, "me")).json()
    (operation,) = (found for _, _, found in operations(document) if found["operationId"] == name)
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema_rs.validate({**schema, "components": document["components"]}, answer)
