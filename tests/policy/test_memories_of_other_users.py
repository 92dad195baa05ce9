"""Memories of another user are not visible through any operation, filter, search or error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.interface.operations import ROUTES
from tests.kit.tables import every_row
from tests.policy.in_process import comparable
from tests.policy.scenario import ABSENT_RUN, Scenario

CALLERS = ("me", "no sub", "their ids", "account")
"""Callers that are not administrators."""

SECRET = "zanzibar"
TOPIC = "treasure"

QUERIES = (
    "",
    f"?search_content={SECRET}",
    f"?search_content={SECRET[:4]}",
    f"?topics={TOPIC}",
    "?user_id=other",
    f"?user_id=other&search_content={SECRET}",
    "?agent_id=echo",
    "?limit=100",
    "?sort_by=created_at&sort_order=asc",
)

BODIES: dict[str, list[Any]] = {
    "create_memory": [{"memory": "x", "user_id": "other"}],
    "update_memory": [{"memory": "changed"}, {"topics": []}, {"memory": 1}],
    "delete_memories": [
        {"memory_ids": ["{memory_id}"]},
        {"memory_ids": ["{memory_id}"], "user_id": "other"},
        {"user_id": "other", "all": True},
    ],
}


@pytest.fixture(scope="module")
def memory_id(scenario_data: Scenario) -> str:
    """The id of a memory of `other`; `me` has one as well."""
    body = {"memory": f"Hid it in {SECRET}", "topics": [TOPIC], "agent_id": "echo"}
    asks = [
        scenario_data.ask("other", "POST /memories", body),
        scenario_data.ask("me", "POST /memories", {"memory": "Hid nothing", "agent_id": "echo"}),
    ]
    theirs, _ = scenario_data.served.answers(asks)
    assert theirs.status_code == 201, theirs.text
    return str(theirs.json()["memory_id"])


def _fill(value: Any, memory_id: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, memory_id) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, memory_id) for item in value]
    return memory_id if value == "{memory_id}" else value


def _requests(operation: str, memory_id: str) -> Iterator[tuple[str, Any]]:
    """Yield requests of an operation, with every query and body, about a memory."""
    method, template = ROUTES[operation]
    values = {
        "memory_id": memory_id,
        "session_id": "theirs",
        "run_id": ABSENT_RUN,
        "name": "docs.js",
    }
    names = re.findall(r"\{(\w+)\}", template)
    path = template.format(**{name: values.get(name, "echo") for name in names})
    queries = QUERIES if method == "GET" and "memor" in template else ("", "?user_id=other")
    for query in queries:
        for body in BODIES.get(operation, [None]):
            yield f"{method} {path}{query}", _fill(body, memory_id)


@every_row("operation", ROUTES)
def test_no_operation_shows_a_memory_of_another_user(
    scenario_data: Scenario, memory_id: str, operation: str
) -> None:
    about = "memory_id" in ROUTES[operation].template
    for who in CALLERS:
        for request, body in _requests(operation, memory_id):
            asks = [scenario_data.ask(who, request, body)]
            if about:
                absent = request.replace(memory_id, ABSENT_RUN)
                asks.append(scenario_data.ask(who, absent, body))
            answers = scenario_data.served.answers(asks)
            for answer in answers:
                # A search word of the request itself may be repeated by an error.
                assert "Hid it" not in answer.text, (who, request)
                assert TOPIC not in answer.text, (who, request)
            if about:
                one, other = (repr(comparable(answer)) for answer in answers)
                # A 403 names the id of the request.
                assert one.replace(memory_id, ABSENT_RUN) == other, (who, request)
                assert answers[0].status_code >= 400


def test_the_memory_is_unchanged_afterwards(scenario_data: Scenario, memory_id: str) -> None:
    for operation in BODIES:
        for who in CALLERS:
            asks = [
                scenario_data.ask(who, request, body)
                for request, body in _requests(operation, memory_id)
            ]
            scenario_data.served.answers(asks)
    (answer,) = scenario_data.served.answers(
        [scenario_data.ask("other", f"GET /memories/{memory_id}")]
    )
    assert answer.json()["memory"] == f"Hid it in {SECRET}"
    assert answer.json()["topics"] == [TOPIC]
