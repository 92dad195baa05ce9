"""What belongs to another reads, byte for byte, as what is not there (contract.md 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.records.routes import ROUTES
from tests.policy.in_process import told
from tests.policy.scenario import ABSENT_RUN, Stage

CALLERS = ("me", "no sub", "their ids", "account", "account of admin")
"""All of them hold every scope that they need; only `other`, and administrators who are no
account, see what is theirs."""

COMPONENTS = {
    "theirs": {"agent_id": "echo"},
    "theirs-team": {"team_id": "desk"},
    "theirs-flow": {"workflow_id": "line"},
    "theirs-live": {"agent_id": "hang"},
}
"""The sessions of `other`, and of what their runs are."""

BODIES: dict[str, Any] = {
    "update_session": {"metadata": {"mine": True}},
    "rename_session": {"session_name": "mine"},
}

QUERIES = {
    "delete_session": ("", "?cancel=true", "?type=agent", "?type=team", "?user_id=other"),
    "get_session_by_id": (
        "", "?type=agent", "?type=team", "?type=workflow", "?user_id=other", "?user_id=me",
        "?db_id=main", "?db_id=second", "?table=sessions", "?type=user", "?user_id=",
    ),
    "get_session_runs": ("", "?limit=1", "?limit=0", "?after={run_id}", "?type=agent"),
    "get_session_run": ("", "?type=agent", "?user_id=other"),
    "get_run": ("", "?db_id=main", "?db_id=second"),
    "get": ("", "?session_id={session_id}", "?session_id=mine"),
    "cancel": (
        "?session_id={session_id}", "?session_id=mine", "?session_id={session_id}&wait=99", "",
    ),
    "resume": (
        "?session_id={session_id}", "?session_id=mine", "?session_id={session_id}&wait=x", "",
        "?session_id={session_id}&last_event_index=-9",
    ),
}  # fmt: skip


def queries(operation: str) -> tuple[str, ...]:
    """The queries to ask with: of the operation, or of the families' like it."""
    by_action = QUERIES.get(operation.partition("_")[0], ("",))
    return QUERIES.get(operation, by_action)


def pairs(operation: str, session: str, run: str) -> Iterator[tuple[str, str]]:
    """Requests that name what is another's, each with the same one for what is not there."""
    method, template = ROUTES[operation]
    for query in queries(operation):
        whole = template + query
        there = COMPONENTS[session] | {"session_id": session, "run_id": run}
        absent = there | {"session_id": "absent", "run_id": ABSENT_RUN}
        own = [{"session_id": "mine"}] if "{run_id}" in whole and "{session_id}" in whole else []
        for names in ({}, *own):
            one, other = (whole.format(**ids | names) for ids in (there, absent))
            yield f"{method} {one}", f"{method} {other}"


def of_sessions_and_runs() -> Iterator[tuple[str, str]]:
    for operation, route in ROUTES.items():
        names = set(re.findall(r"\{(\w+)\}", route.template))
        if not names & {"session_id", "run_id"}:
            continue
        for session, component in COMPONENTS.items():
            if names - {"session_id", "run_id"} <= component.keys():
                yield operation, session


def test_every_operation_with_an_id_is_tested() -> None:
    asked = {operation for operation, _ in of_sessions_and_runs()}
    named = {name for name, (_, path) in ROUTES.items() if "session_id" in path or "run_id" in path}
    assert asked == named


@pytest.mark.parametrize(("operation", "session"), list(of_sessions_and_runs()))
def test_data_of_another_user_looks_missing(stage: Stage, operation: str, session: str) -> None:
    body = BODIES.get(operation)
    for who in CALLERS:
        asked = list(pairs(operation, session, stage.runs[session]))
        both = [stage.ask(who, request, body) for pair in asked for request in pair]
        if ROUTES[operation].method == "GET":
            both += [stage.ask(who, f"HEAD{one[3:]}") for pair in asked for one in pair]
        answers = [told(answer) for answer in stage.served.answers(both)]
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
    stage: Stage, request_line: str, there: str, absent: str
) -> None:
    there = stage.runs[there] if "after" in request_line else there
    for who in ("account", "account of admin", "me"):
        if who == "me" and "session_name" in request_line:
            continue  # has a session of that name
        asks = [stage.ask(who, request_line.format(one)) for one in (there, absent)]
        one, other = map(told, stage.served.answers(asks))
        assert one == other, (who, request_line)


def test_bulk_delete_keeps_data_of_another_user(stage: Stage) -> None:
    made = stage.ask("me", "POST /sessions", {"session_id": "spare"})
    assert stage.served.answers([made])[0].status_code == 201
    for who in ("me", "account", "account of admin"):
        lists = (["theirs"], ["absent"], ["spare", "theirs-team"], ["spare", "absent"])
        asks = [stage.ask(who, "DELETE /sessions", {"session_ids": ids}) for ids in lists]
        answers = set(map(told, stage.served.answers(asks)))
        assert len(answers) == 1
        assert answers.pop()[0] == 404
    asks = [stage.ask("me", f"GET /sessions/{name}") for name in ("spare", "mine")]
    assert [answer.status_code for answer in stage.served.answers(asks)] == [200, 200]


def test_runs_do_not_start_in_sessions_of_another_user(stage: Stage) -> None:
    """An id that is free would be taken, so there is nothing to compare with but each other."""
    for who in CALLERS:
        asks = [
            stage.ask(
                who,
                "POST /agents/echo/runs",
                {"message": "x", "session_id": session, "user_id": "other", "stream": stream},
            )
            for session in ("theirs", "theirs-live", "theirs-team")
            for stream in (True, False)
        ]
        answers = set(map(told, stage.served.answers(asks)))
        assert len(answers) == 1, who
        assert answers.pop()[0] == 404


def test_data_of_another_user_is_unchanged(stage: Stage) -> None:
    """Asked last, and asked of its owner: everything above tried to change it."""
    kept = [session for session in stage.runs if session.startswith("theirs")]
    asks = [stage.ask("other", f"GET /sessions/{session}") for session in kept]
    for session, answer in zip(kept, stage.served.answers(asks), strict=True):
        assert answer.status_code == 200, session
        assert (answer.json()["session_name"], answer.json()["metadata"]) == ("echo", None)
    runs = stage.served.answers([stage.ask("other", "GET /runs")])[0].json()["data"]
    assert {run["session_id"] for run in runs if run["parent_run_id"] is None} == set(kept)
    (live,) = (run for run in runs if run["session_id"] == "theirs-live")
    assert (live["status"], live["cancel_requested_at"]) == ("RUNNING", None)
