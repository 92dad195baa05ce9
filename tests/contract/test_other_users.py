"""Data and memories of another user look missing, byte for byte, and stay unchanged.

docs/contract.md "Errors" and "Memories"; every operation is asked through HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from agentctl.auth.principal import Principal
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests.administration import Grant, NewAccount
from agentctl.records.authorization import KNOWN_SCOPES
from tests.auth.signed import signed
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.in_process import HttpRequest, InProcessServer, comparable, serve_in_process
from tests.kit.model import ModelEndpoint
from tests.kit.tables import every_row

ABSENT = "01900000-0000-7000-8000-000000000000"

SESSIONS = (
    ("me", "agents/echo", "mine"),
    ("other", "agents/echo", "theirs"),
    ("other", "teams/desk", "theirs-team"),
    ("other", "workflows/line", "theirs-flow"),
    ("other", "agents/hang", "theirs-live"),
)
"""User, component and id of each session. The run of `hang` does not end."""

COMPONENTS = {
    "theirs": {"agent_id": "echo"},
    "theirs-team": {"team_id": "desk"},
    "theirs-flow": {"workflow_id": "line"},
    "theirs-live": {"agent_id": "hang"},
}
"""The sessions of `other`, with the component of their runs."""

CALLERS = ("me", "no subject", "account of admin")
"""Callers with all scopes that do not see the data of the user `other`."""

SECRET = "zanzibar"
TOPIC = "treasure"


@dataclass(frozen=True)
class Stage:
    """An application with sessions of two users, and a memory of each."""

    served: InProcessServer
    bearers: dict[str, str]
    runs: dict[str, str]
    """The id of the run in each session."""

    def build(self, who: str, request: str, body: Any = None) -> HttpRequest:
        """Build a request such as `GET /agents` of one of the callers."""
        method, _, path = request.partition(" ")
        content = None if body is None else json.dumps(body).encode()
        return HttpRequest(method, path, self.bearers[who], content)


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Stage]:
    deployment = create_deployment(tmp_path_factory.mktemp("others"), model_endpoint.base_url)
    with serve_in_process(deployment) as served:
        boss = served.service.operations_for(Principal("boss", admin=True, sees_all_users=True))
        new = NewAccount("admin", (Grant(ADMIN),), allow_privileged_scopes=True)
        account = served.call(lambda: boss.accounts.create(new)).value
        bearers = {
            "me": signed(deployment, "me", *KNOWN_SCOPES),
            "other": signed(deployment, "other", *KNOWN_SCOPES),
            "no subject": signed(deployment, None, *KNOWN_SCOPES),
            "account of admin": str(account["token"]),
        }
        opened = Stage(served, bearers, {})
        start_runs(opened)
        yield opened


def start_runs(stage: Stage) -> None:
    """Start the run of each session."""
    asks = []
    for who, component, session in SESSIONS:
        body = {"message": "echo", "session_id": session, "stream": False}
        body["background"] = session == "theirs-live"
        asks.append(stage.build(who, f"POST /{component}/runs", body))
    for (_, _, session), answer in zip(SESSIONS, stage.served.answers(asks), strict=True):
        assert answer.status_code in (200, 202), answer.text
        stage.runs[session] = answer.json()["run_id"]


BODIES: dict[str, Any] = {
    "update_session": {"metadata": {"mine": True}},
    "rename_session": {"session_name": "mine"},
    "send_message": {"message": "mine"},
}

QUERIES = {
    "get_session_by_id": ("", "?type=agent", "?type=team", "?user_id=other", "?type=user"),
    "export_session": ("", "?format=markdown", "?format=xml"),
    "get_session_runs": ("", "?limit=0", "?after={run_id}"),
    "delete_session": ("", "?cancel=true", "?user_id=other"),
    "get": ("", "?session_id={session_id}", "?session_id=mine", "?view=items", "?db_id=second"),
    "cancel": ("", "?session_id={session_id}", "?session_id={session_id}&wait=99"),
    "resume": ("", "?session_id={session_id}", "?session_id={session_id}&last_event_index=-9"),
}
"""The queries to try, by operation or by its verb; some are invalid, which must not show."""


def list_requests(operation: str, session: str, run: str) -> Iterator[tuple[str, str]]:
    """Yield requests for data of another user, each with the same request for missing data."""
    method, template = ROUTES[operation]
    by_verb = QUERIES.get(operation.partition("_")[0], ("",))
    for query in QUERIES.get(operation, by_verb):
        ids = {"session_id": session, "run_id": run, "tool_call_id": "any", "call_id": "model-1"}
        there = COMPONENTS[session] | ids
        absent = there | {"session_id": "absent", "run_id": ABSENT}
        whole = f"{method} {template}{query}"
        yield whole.format(**there), whole.format(**absent)
        if "{run_id}" in whole and "{session_id}" in whole:
            own = {"session_id": "mine"}
            yield whole.format(**there | own), whole.format(**absent | own)


def list_operations() -> Iterator[tuple[str, str]]:
    """Yield each operation on a session or a run, with the sessions that it can name."""
    for operation, route in ROUTES.items():
        names = set(re.findall(r"\{(\w+)\}", route.template))
        if not names & {"session_id", "run_id"}:
            continue
        for session, component in COMPONENTS.items():
            if names - {"session_id", "run_id", "tool_call_id", "call_id"} <= component.keys():
                yield operation, session


def test_every_operation_with_an_id_is_tested() -> None:
    asked = {operation for operation, _ in list_operations()}
    named = {name for name, (_, path) in ROUTES.items() if "session_id" in path or "run_id" in path}
    assert asked == named


@every_row("operation, session", list_operations())
def test_data_of_another_user_looks_missing(stage: Stage, operation: str, session: str) -> None:
    pairs = list(list_requests(operation, session, stage.runs[session]))
    for who in CALLERS:
        asks = [
            stage.build(who, request, BODIES.get(operation)) for pair in pairs for request in pair
        ]
        answers = [comparable(answer) for answer in stage.served.answers(asks)]
        for ask, theirs, absent in zip(asks[::2], answers[::2], answers[1::2], strict=True):
            assert theirs == absent, (who, ask)
            assert theirs[0] >= 400, (who, ask)


LISTED = [
    ("GET /sessions?limit=100&component_id={}", "hang", "none"),
    ("GET /sessions?limit=100&user_id={}", "other", "none"),
    ("GET /sessions?limit=100&id_prefix={}", "theirs-team", "absent-team"),
    ("GET /runs?limit=100&user_id={}", "other", "none"),
    ("GET /runs?limit=100&session_id={}", "theirs", "absent"),
    ("GET /runs?limit=100&live=true&component_id={}", "hang", "none"),
    ("GET /agents/hang/runs?limit=100&session_id={}", "theirs-live", "absent"),
    ("GET /agents/hang/runs?limit=100&user_id={}", "other", "none"),
    ("GET /sessions/mine/runs?after={}", "theirs", ABSENT),
]


@every_row("request_line, there, absent", LISTED)
def test_lists_hide_data_of_another_user(
    stage: Stage, request_line: str, there: str, absent: str
) -> None:
    there = stage.runs[there] if "after" in request_line else there
    for who in CALLERS:
        asks = [stage.build(who, request_line.format(one)) for one in (there, absent)]
        one, other = map(comparable, stage.served.answers(asks))
        assert one == other, who


def test_bulk_delete_keeps_data_of_another_user(stage: Stage) -> None:
    made = stage.build("me", "POST /sessions", {"session_id": "spare"})
    assert stage.served.answers([made])[0].status_code == 201

    for who in ("me", "account of admin"):
        lists = (["theirs"], ["absent"], ["spare", "theirs-team"], ["spare", "absent"])
        asks = [stage.build(who, "DELETE /sessions", {"session_ids": ids}) for ids in lists]
        answers = set(map(comparable, stage.served.answers(asks)))
        assert len(answers) == 1
        assert answers.pop()[0] == 404

    asks = [stage.build("me", f"GET /sessions/{name}") for name in ("spare", "mine")]
    assert [answer.status_code for answer in stage.served.answers(asks)] == [200, 200]


def test_runs_do_not_start_in_sessions_of_another_user(stage: Stage) -> None:
    """An id that is free would be taken, so there is nothing to compare with but each other."""
    for who in CALLERS:
        body = {"message": "x", "user_id": "other"}
        asks = [
            stage.build(
                who, "POST /agents/echo/runs", {**body, "session_id": session, "stream": stream}
            )
            for session in ("theirs", "theirs-live", "theirs-team")
            for stream in (True, False)
        ]
        answers = set(map(comparable, stage.served.answers(asks)))
        assert len(answers) == 1, who
        assert answers.pop()[0] == 404


def test_data_of_another_user_is_unchanged(stage: Stage) -> None:
    """Asked last, and asked of its owner: everything above tried to change it."""
    kept = [session for session in stage.runs if session.startswith("theirs")]
    asks = [stage.build("other", f"GET /sessions/{session}") for session in kept]
    for session, answer in zip(kept, stage.served.answers(asks), strict=True):
        assert answer.status_code == 200, session
        assert (answer.json()["session_name"], answer.json()["metadata"]) == ("echo", None)

    (answer,) = stage.served.answers([stage.build("other", "GET /runs")])
    runs = answer.json()["data"]
    assert {run["session_id"] for run in runs if run["parent_run_id"] is None} == set(kept)
    (live,) = (run for run in runs if run["session_id"] == "theirs-live")
    assert (live["status"], live["cancel_requested_at"]) == ("RUNNING", None)


MEMORY_QUERIES = (
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

MEMORY_BODIES: dict[str, list[Any]] = {
    "create_memory": [{"memory": "x", "user_id": "other"}],
    "update_memory": [{"memory": "changed"}, {"topics": []}, {"memory": 1}],
    "delete_memories": [
        {"memory_ids": ["{memory_id}"]},
        {"memory_ids": ["{memory_id}"], "user_id": "other"},
        {"user_id": "other", "all": True},
    ],
}


@pytest.fixture(scope="module")
def memory_id(stage: Stage) -> str:
    """The id of a memory of `other`; `me` has one as well."""
    body = {"memory": f"Hid it in {SECRET}", "topics": [TOPIC], "agent_id": "echo"}
    asks = [
        stage.build("other", "POST /memories", body),
        stage.build("me", "POST /memories", {"memory": "Hid nothing", "agent_id": "echo"}),
    ]
    theirs, _ = stage.served.answers(asks)
    assert theirs.status_code == 201, theirs.text
    return str(theirs.json()["memory_id"])


def list_memory_requests(operation: str, memory_id: str) -> Iterator[tuple[str, Any]]:
    """Yield requests of an operation, with every query and body, about a memory."""
    method, template = ROUTES[operation]
    values = {"memory_id": memory_id, "session_id": "theirs", "run_id": ABSENT, "name": "docs.js"}
    names = re.findall(r"\{(\w+)\}", template)
    path = template.format(**{name: values.get(name, "echo") for name in names})
    queries = MEMORY_QUERIES if method == "GET" and "memor" in template else ("",)
    for query in queries:
        for body in MEMORY_BODIES.get(operation, [None]):
            filled_body = json.loads(json.dumps(body).replace("{memory_id}", memory_id))
            yield f"{method} {path}{query}", filled_body


@every_row("operation", ROUTES)
def test_no_operation_shows_a_memory_of_another_user(
    stage: Stage, memory_id: str, operation: str
) -> None:
    names_memory = "memory_id" in ROUTES[operation].template
    for who in ("me", "no subject") if "memor" in operation else ("me",):
        for request, body in list_memory_requests(operation, memory_id):
            absent = request.replace(memory_id, ABSENT)
            asks = [stage.build(who, each, body) for each in (request, absent)]
            theirs, missing = stage.served.answers(asks)
            # A search word of the request itself may be repeated by an error.
            assert "Hid it" not in theirs.text, request
            assert TOPIC not in theirs.text, request
            if names_memory:
                assert comparable(theirs) == comparable(missing), request
                assert theirs.status_code >= 400


def test_memory_of_another_user_is_unchanged(stage: Stage, memory_id: str) -> None:
    for operation in MEMORY_BODIES:
        requests = list_memory_requests(operation, memory_id)
        stage.served.answers([stage.build("me", request, body) for request, body in requests])

    (answer,) = stage.served.answers([stage.build("other", f"GET /memories/{memory_id}")])
    assert answer.json()["memory"] == f"Hid it in {SECRET}"
    assert answer.json()["topics"] == [TOPIC]
