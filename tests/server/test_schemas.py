"""The fields of the records, as the document declares them and as runs fill them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

OBJECT: dict[str, Any] = {"additionalProperties": True, "type": "object"}
TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
FLAG = {"type": "boolean"}
TIME = {"type": "string", "format": "date-time"}
OBJECTS = {"items": OBJECT, "type": "array"}

NAMES = {"session_id": TEXT, "session_name": TEXT}
SHARED = {
    "cost": {"type": "number"}, "unpriced_tokens": NUMBER,
    "user_id": TEXT, "session_state": OBJECT, "metadata": OBJECT,
    "created_at": TIME, "updated_at": TIME,
}  # fmt: skip
TOLD = {
    "session_summary": OBJECT, "total_tokens": NUMBER, "metrics": OBJECT, "chat_history": OBJECTS,
}  # fmt: skip

# Generated clients distinguish records by their required fields, so those of teams and workflows
# have one more than in the contract. Every session has every field.
DISTINCT = {
    "AgentSessionDetailSchema": set[str](),
    "TeamSessionDetailSchema": {"team_data"},
    "WorkflowSessionDetailSchema": {"workflow_data"},
}

SESSIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "AgentSessionDetailSchema": (
        "mine",
        NAMES | {"agent_session_id": TEXT},
        SHARED | TOLD | {"agent_id": TEXT, "agent_data": OBJECT},
    ),
    "TeamSessionDetailSchema": (
        "mine-team",
        NAMES,
        SHARED | TOLD | {"team_id": TEXT, "team_data": OBJECT},
    ),
    "WorkflowSessionDetailSchema": (
        "mine-workflow",
        NAMES,
        SHARED
        | {"workflow_id": TEXT, "workflow_name": TEXT}
        | {"session_data": OBJECT, "workflow_data": OBJECT},
    ),
}
"""Schema: a session of that shape, the fields that must be there, the ones that may be null."""


@pytest.fixture(scope="module")
def schemas(server: ThreadedServer) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/openapi.json").json()["components"]["schemas"]
    return found


def declared(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a schema without their titles."""
    return {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema["properties"].items()
    }


@pytest.mark.parametrize("name", SESSIONS)
def test_session_is_declared_as_in_the_contract(schemas: dict[str, Any], name: str) -> None:
    _, required, nullable = SESSIONS[name]
    assert set(schemas[name]["required"]) == set(required) | DISTINCT[name]
    nulls = {field: {"anyOf": [kind, {"type": "null"}]} for field, kind in nullable.items()}
    hold = {"hold": {"$ref": "#/components/schemas/HoldRecord"}}
    assert declared(schemas[name]) == required | nulls | hold


@pytest.mark.parametrize("name", SESSIONS)
def test_session_of_runs_has_every_field(
    server: ThreadedServer, schemas: dict[str, Any], name: str
) -> None:
    session_id, required, nullable = SESSIONS[name]
    session = server.client.get(f"/sessions/{session_id}", headers=as_caller(server, "me")).json()
    assert session.keys() == {*required, *nullable}
    validator = jsonschema_rs.validator_for(
        {**schemas[name], "additionalProperties": False, "components": {"schemas": schemas}},
        validate_formats=True,
    )
    validator.validate(session)


MODEL = {"$ref": "#/components/schemas/ModelRecord"}
MEMORY = {"anyOf": [{"$ref": "#/components/schemas/ComponentMemory"}, {"type": "null"}]}
TEXT_OR_NULL = {"anyOf": [TEXT, {"type": "null"}]}

RECORDS = {
    "TeamRecord": {
        "team_id": TEXT,
        "name": TEXT,
        "mode": TEXT,
        "model": MODEL,
        "tools": {"items": {"$ref": "#/components/schemas/ToolRecord"}, "type": "array"},
        "enable_agentic_context": FLAG,
        "knowledge": {"anyOf": [OBJECT, {"type": "null"}]},
        "memory": MEMORY,
        "async_mode": FLAG,
        "session_table": TEXT,
        "memory_table": TEXT_OR_NULL,
    },
    "MemberRecord": {
        "agent_id": TEXT,
        "name": TEXT,
        "model": {"anyOf": [MODEL, {"type": "null"}]},
        "memory": MEMORY,
        "session_table": TEXT,
        "memory_table": TEXT_OR_NULL,
    },
    "ModelRecord": {"name": TEXT, "model": TEXT, "provider": TEXT},
    "ToolRecord": {"name": TEXT, "description": TEXT, "parameters": OBJECT},
    "ComponentMemory": {"app_name": TEXT, "app_url": TEXT, "model": MODEL},
}


@pytest.mark.parametrize("name", RECORDS)
def test_team_record_is_declared_as_in_the_contract(schemas: dict[str, Any], name: str) -> None:
    assert declared(schemas[name]).items() >= RECORDS[name].items()


def test_members_are_agents_or_teams(schemas: dict[str, Any]) -> None:
    members = declared(schemas["TeamRecord"])["members"]
    shapes = [shape["$ref"].rpartition("/")[2] for shape in members["items"]["anyOf"]]
    assert (members["type"], shapes) == ("array", ["MemberRecord", "TeamRecord"])


def test_error_body_is_declared_as_in_the_contract(schemas: dict[str, Any]) -> None:
    assert schemas["ErrorBody"]["required"] == ["detail"]
    assert declared(schemas["ErrorBody"]) == {"detail": TEXT, "error_code": TEXT_OR_NULL}
