"""The OpenAPI document: complete, equal to the policy, without schemas of the framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema_rs
import orjson
import pytest

from agentctl import INTERFACE_VERSION
from agentctl.auth.policy import POLICY, NeedsScope, Public, scope_forms
from agentctl.interface.pages import PAGES
from agentctl.records.events import EVENT_NAMES, EventKind, find_event_kind
from agentctl.records.kinds import KINDS
from tests.kit.declared import DeclaredAnswers
from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

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
    pages |= set(PAGES)
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(POLICY) - pages


def test_tags_are_described(document: dict[str, Any]) -> None:
    told = {tag["name"] for tag in document["tags"]}
    assert all(tag["description"] for tag in document["tags"])
    assert {tag for _, _, operation in operations(document) for tag in operation["tags"]} == told
    assert told == {
        "Agents", "Teams", "Workflows", "Sessions", "Runs", "Approvals", "Files",
        "Memories", "Users", "Usage", "Service accounts", "Webhooks", "Halts", "Authorization",
        "System",
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


CONFLICTS = {
    "retry": "ConfirmationBody", "fork": "ConfirmationBody",
    "delete_session": "HeldBody", "delete_sessions": "HeldBody",
    "delete_file": "HeldBody",
}  # fmt: skip
"""The bodies of a 409 by operation, or by its verb."""


def test_errors_have_one_schema(document: dict[str, Any]) -> None:
    for _, _, operation in operations(document):
        for status, answer in operation["responses"].items():
            if status >= "400" and (operation["operationId"], status) != ("get_readiness", "503"):
                content = answer["content"]["application/json"]
                shape = "ForbiddenBody" if status == "403" else "ErrorBody"
                if status == "409":
                    verb = operation["operationId"].partition("_")[0]
                    shape = CONFLICTS.get(operation["operationId"]) or CONFLICTS.get(verb) or shape
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


def test_every_example_is_a_declared_value(document: dict[str, Any]) -> None:
    declared = DeclaredAnswers(orjson.dumps(document))
    for name, schema, example in examples(document):
        try:
            declared.check_value(schema, orjson.dumps(example))
        except jsonschema_rs.ValidationError as error:
            raise AssertionError(f"{name}: {error.message}") from None


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


def list_fields(value: Any) -> set[str]:
    """Return the fields of a record, with those of the elements of a list or a page."""
    if isinstance(value, list):
        return set().union(*map(list_fields, value))
    inner = value.get("data")
    return {*value, *(f"data.{name}" for name in list_fields(inner or []))}


@pytest.mark.parametrize("name", REAL)
def test_examples_have_the_fields_of_real_responses(
    server: ThreadedServer, document: dict[str, Any], name: str
) -> None:
    answer = server.client.get(REAL[name], headers=as_caller(server, "me")).json()
    assert answer
    # A run has the id of one component; a list of examples has runs of one kind.
    ids = {f"{part}{names.id_field}" for part in ("", "data.") for names in KINDS.values()}
    assert list_fields(EXAMPLES["responses"][name]) >= list_fields(answer) - ids


def test_every_array_has_items(document: dict[str, Any]) -> None:
    def check(node: Any, path: str) -> None:
        if isinstance(node, dict):
            assert node.get("type") != "array" or "items" in node, path
            for key, value in node.items():
                check(value, f"{path}/{key}")
        elif isinstance(node, list):
            for number, value in enumerate(node):
                check(value, f"{path}/{number}")

    for part in ("paths", "components"):
        check(document[part], part)


def test_bodies_are_named_schemas_and_a_form_is_a_copy(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for _, _, operation in operations(document):
        if "requestBody" in operation and operation["operationId"] != "upload_file":
            contents = operation["requestBody"]["content"]
            first, *forms = (
                content["schema"]["$ref"].split("/")[-1] for content in contents.values()
            )
            assert next(iter(contents)) == "application/json"
            assert schemas[first]["additionalProperties"] is False
            for form in forms:
                assert schemas[form] == {
                    **schemas[form],
                    "properties": schemas[first]["properties"],
                }
    assert {"RunBody", "RunForm", "ResumeBody", "ResumeForm"} <= schemas.keys()


def test_body_of_a_run_needs_a_message_or_an_input(document: dict[str, Any]) -> None:
    declared = DeclaredAnswers(orjson.dumps(document))
    body = {"$ref": "#/components/schemas/RunBody"}
    for accepted in ({"message": "a"}, {"input": {}}, {"message": "a", "input": {}}):
        declared.check_value(body, orjson.dumps(accepted))
    for refused in ({}, {"stream": True}, {"message": "a", "model": "x"}):
        with pytest.raises(jsonschema_rs.ValidationError):
            declared.check_value(body, orjson.dumps(refused))


def test_every_event_is_declared_by_its_name(document: dict[str, Any]) -> None:
    schema = document["components"]["schemas"]["RunEvent"]
    mapping = schema["discriminator"]["mapping"]
    steps = {EventKind.STEP_STARTED, EventKind.STEP_COMPLETED}
    for component, names in EVENT_NAMES.items():
        for kind, name in names.items():
            # Only workflows have steps. They call no tools and no models themselves.
            if (kind in steps) == (component == "workflow") or name.startswith("Workflow"):
                assert name in mapping
    schemas = {(find_event_kind(name), model) for name, model in mapping.items()}
    assert len(schemas) == len(schema["oneOf"]) == len(EventKind)


def test_every_stream_has_events(document: dict[str, Any]) -> None:
    streams = [
        str(answer["content"]["text/event-stream"]["schema"])
        for _, _, operation in operations(document)
        for answer in operation["responses"].values()
        if "text/event-stream" in answer.get("content", ())
    ]
    assert len(streams) == 18
    assert all("#/components/schemas/RunEvent" in stream for stream in streams)
    assert sum("#/components/schemas/ItemsChangedEvent" in stream for stream in streams) == 6
