"""Requests generated from the OpenAPI document: each gets a response that it declares."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from agentctl.auth.policy import POLICY, Public
from agentctl.interface.operations import OPERATIONS
from agentctl.records.kinds import KINDS
from agentctl.records.routes import operation_ids
from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

EXAMPLES = 8 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 4
"""Requests of each mode to an operation."""

STARTING = {operation_ids(kind).create_run for kind in KINDS}
ASKED = sorted(
    operation
    for operation in OPERATIONS
    if operation not in STARTING and not isinstance(POLICY[operation], Public)
)
"""All but what starts runs, and what has no parameters."""

THERE = {
    "agent_id": "echo", "team_id": "desk", "workflow_id": "line", "session_id": "mine",
}  # fmt: skip
"""Path parameters of reads; those of changes are generated."""


@pytest.fixture(scope="module")
def document(server: ThreadedServer) -> Any:
    import schemathesis

    found = server.client.get("/openapi.json").json()
    return schemathesis.openapi.from_dict(found)


def content(body: Any) -> bytes | None:
    from schemathesis.core import NotSet

    if isinstance(body, NotSet):
        return None
    return body if isinstance(body, bytes) else json.dumps(body, default=repr).encode()


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("name", ASKED)
def test_generated_request_gets_a_declared_response(
    server: ThreadedServer, document: Any, name: str, mode: str
) -> None:
    from schemathesis.generation import GenerationMode

    operation = document.find_operation_by_id(name)
    declared: dict[str, Any] = operation.definition.raw["responses"]
    headers = as_caller(server, "me") | {"Content-Type": "application/json"}
    shapes = {"components": document.raw_schema["components"]}

    @functools.cache
    def validator(status: str) -> Any:
        schema = declared[status]["content"]["application/json"]["schema"]
        return jsonschema_rs.validator_for({**schema, **shapes})

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def ask(case: Any) -> None:
        if case.method == "GET":
            case.path_parameters.update(
                {key: there for key, there in THERE.items() if key in case.path_parameters}
            )
        answer = server.client.request(
            case.method,
            case.formatted_path,
            params=case.query,
            headers=headers,
            content=content(case.body),
        )
        assert str(answer.status_code) in declared, answer.text
        assert answer.status_code != 500
        if answer.headers.get("content-type") == "application/json":
            validator(str(answer.status_code)).validate(answer.json())

    ask()
