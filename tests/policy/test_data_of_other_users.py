"""Data of another user looks missing, byte for byte (docs/contract.md "Errors")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.interface.operations import ROUTES
from tests.kit.tables import every_row
from tests.policy.in_process import comparable
from tests.policy.scenario import ABSENT_RUN, Scenario

CALLERS = ("me", "no sub", "their ids", "account", "account of admin")
"""Callers with all required scopes that do not see the data of the user `other`."""

COMPONENTS = {
    "theirs": {"agent_id": "echo"},
    "theirs-team": {"team_id": "desk"},
    "theirs-flow": {"workflow_id": "line"},
    "theirs-live": {"agent_id": "hang"},
}
"""The sessions of `other`, with the component of their runs."""

BODIES: dict[str, Any] = {
    "update_session": {"metadata": {"mine": True}},
    "rename_session": {"session_name": "mine"},
}

QUERIES = {
    "summarize_session": ("", "?type=agent", "?user_id=other"),
    "delete_session": ("", "?cancel=true", "?type=agent", "?type=team", "?user_id=other"),
    "get_session_by_id": (
        "", "?type=agent", "?type=team", "?type=workflow", "?user_id=other", "?user_id=me",
        "?db_id=main", "?db_id=second", "?table=sessions", "?type=user", "?user_id=",
    ),
    "export_session": ("", "?format=markdown", "?format=xml", "?type=agent", "?user_id=other"),
    "get_session_runs": ("", "?limit=1", "?limit=0", "?after={run_id}", "?type=agent"),
    "get_session_run": ("", "?type=agent", "?user_id=other", "?view=items"),
    "get_run": ("", "?db_id=main", "?db_id=second", "?view=items", "?view=phase"),
    "get": ("", "?session_id={session_id}", "?session_id=mine", "?view=items"),
    "cancel": (
        "?session_id={session_id}", "?session_id=mine", "?session_id={session_id}&wait=99", "",
    ),
    "resume": (
        "?session_id={session_id}", "?session_id=mine", "?session_id={session_id}&wait=x", "",
        "?session_id={session_id}&last_event_index=-9",
    ),
}  # fmt: skip


def queries_of(operation: str) -> tuple[str, ...]:
    """Return the queries to try, by operation or by its action."""
    by_action = QUERIES.get(operation.partition("_")[0], ("",))
    return QUERIES.get(operation, by_action)


def request_pairs(operation: str, session: str, run: str) -> Iterator[tuple[str, str]]:
    """Yield requests for data of another user, each with the same request for missing data."""
    method, template = ROUTES[operation]
    for query in queries_of(operation):
        whole = template + query
        ids = {"session_id": session, "run_id": run, "tool_call_id": "any", "call_id": "model-1"}
        there = COMPONENTS[session] | ids
        absent = there | {"session_id": "absent", "run_id": ABSENT_RUN}
        own = [{"session_id": "mine"}] if "{run_id}" in whole and "{session_id}" in whole else []
        for names in ({}, *own):
            one, other = (whole.format(**each | names) for each in (there, absent))
            yield f"{method} {one}", f"{method} {other}"


def operations_with_ids() -> Iterator[tuple[str, str]]:
    for operation, route in ROUTES.items():
        names = set(re.findall(r"\{(\w+)\}", route.template))
        if not names & {"session_id", "run_id"}:
            continue
        for session, component in COMPONENTS.items():
            if names - {"session_id", "run_id", "tool_call_id", "call_id"} <= component.keys():
                yield operation, session


def test_every_operation_with_an_id_is_tested() -> None:
    asked = {operation for operation, _ in operations_with_ids()}
    named = {name for name, (_, path) in ROUTES.items() if "session_id" in path or "run_id" in path}
    assert asked == named


@every_row("operation, session", operations_with_ids())
def test_data_of_another_user_looks_missing(
    scenario_data: Scenario, operation: str, session: str
) -> None:
    body = BODIES.get(operation)
    for who in CALLERS:
        asked = list(request_pairs(operation, session, scenario_data.runs[session]))
        both = [scenario_data.ask(who, request, body) for pair in asked for request in pair]
        if ROUTES[operation].method == "GET":
            both += [scenario_data.ask(who, f"HEAD{one[3:]}") for pair in asked for one in pair]
        answers = [comparable(answer) for answer in scenario_data.served.answers(both)]
        for ask, theirs, absent in zip(both[::2], answers[::2], answers[1::2], strict=True):
            assert theirs == absent, (who, ask)
            assert theirs[0] >= 400, (who, ask)


LISTED = [
    ("GET /sessions?limit=100&component_id={}", "hang", "none"),
    ("GET /sessions?limit=100&user_id={}", "other", "none"),
    ("GET /sessions?limit=100&session_name={}", "ech", "none"),
    ("GET /runs?limit=100&user_id={}", "other", "none"),
    ("GET /runs?limit=100&session_id={}", "theirs", "absent"),
    ("GET /runs?limit=100&live=true&component_id={}", "hang", "none"),
    ("GET /agents/hang/runs?limit=100&session_id={}", "theirs-live", "absent"),
    ("GET /agents/hang/runs?limit=100&user_id={}", "other", "none"),
    ("GET /sessions/mine/runs?after={}", "theirs", ABSENT_RUN),
]


@pytest.mark.parametrize(("request_line", "there", "absent"), LISTED)
def test_lists_hide_data_of_another_user(
    scenario_data: Scenario, request_line: str, there: str, absent: str
) -> None:
    there = scenario_data.runs[there] if "after" in request_line else there
    for who in ("account", "account of admin", "me"):
        if who == "me" and "session_name" in request_line:
            continue  # has a session of that name
        asks = [scenario_data.ask(who, request_line.format(one)) for one in (there, absent)]
        one, other = map(comparable, scenario_data.served.answers(asks))
        assert one == other, (who, request_line)


def test_bulk_delete_keeps_data_of_another_user(scenario_data: Scenario) -> None:
    made = scenario_data.ask("me", "POST /sessions", {"session_id": "spare"})
    assert scenario_data.served.answers([made])[0].status_code == 201
    for who in ("me", "account", "account of admin"):
        lists = (["theirs"], ["absent"], ["spare", "theirs-team"], ["spare", "absent"])
        asks = [scenario_data.ask(who, "DELETE /sessions", {"session_ids": ids}) for ids in lists]
        answers = set(map(comparable, scenario_data.served.answers(asks)))
        assert len(answers) == 1
        assert answers.pop()[0] == 404
    asks = [scenario_data.ask("me", f"GET /sessions/{name}") for name in ("spare", "mine")]
    assert [answer.status_code for answer in scenario_data.served.answers(asks)] == [200, 200]


def test_runs_do_not_start_in_sessions_of_another_user(scenario_data: Scenario) -> None:
    """An id that is free would be taken, so there is nothing to compare with but each other."""
    for who in CALLERS:
        asks = [
            scenario_data.ask(
                who,
                "POST /agents/echo/runs",
                {"message": "x", "session_id": session, "user_id": "other", "stream": stream},
            )
            for session in ("theirs", "theirs-live", "theirs-team")
            for stream in (True, False)
        ]
        answers = set(map(comparable, scenario_data.served.answers(asks)))
        assert len(answers) == 1, who
        assert answers.pop()[0] == 404


def test_data_of_another_user_is_unchanged(scenario_data: Scenario) -> None:
    """Asked last, and asked of its owner: everything above tried to change it."""
    kept = [session for session in scenario_data.runs if session.startswith("theirs")]
    asks = [scenario_data.ask("other", f"GET /sessions/{session}") for session in kept]
    for session, answer in zip(kept, scenario_data.served.answers(asks), strict=True):
        assert answer.status_code == 200, session
        assert (answer.json()["session_name"], answer.json()["metadata"]) == ("echo", None)
    runs = scenario_data.served.answers([scenario_data.ask("other", "GET /runs")])[0].json()["data"]
    assert {run["session_id"] for run in runs if run["parent_run_id"] is None} == set(kept)
    (live,) = (run for run in runs if run["session_id"] == "theirs-live")
    assert (live["status"], live["cancel_requested_at"]) == ("RUNNING", None)
