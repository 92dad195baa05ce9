"""Teams of agno: the runs of their members, their failures and their input."""

from __future__ import annotations

import json

import httpx2
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN
from tests.pauses.waiting import WaitingServer, list_members


def test_member_has_a_run_of_its_own(server: WaitingServer) -> None:
    run = server.start("flat", '{"word": "tea"}')
    (member,) = list_members(server, run)
    assert (run["status"], run["content"]) == ("COMPLETED", "found")
    assert (member["agent_id"], member["parent_run_id"]) == ("Dr. Search", run["run_id"])
    assert (member["status"], member["input"], member["content"]) == (
        "COMPLETED", '{"word": "tea"}', "found",
    )  # fmt: skip
    (call,) = member["tools"]
    assert (call["tool_name"], call["tool_args"], call["result"]) == (
        "look_up", {"word": "tea"}, "found",
    )  # fmt: skip
    (delegation,) = run["tools"]
    assert delegation["result"] == "found"
    span = next(span for span in run["spans"] if span["kind"] == "member")
    assert (span["member_run_id"], span["parent"]) == (member["run_id"], delegation["tool_call_id"])
    # Each token is counted in one run.
    counted = [each["metrics"]["total_tokens"] for each in (run, member)]
    assert all(counted)
    assert run["total_tokens"] == sum(counted)


@pytest.mark.parametrize(
    ("agent", "calls"),
    [
        ("parsed", 2),
        ("polished", 2),
        ("followed", 2),
        ("waiting_polished", 3),
        ("parsed_team", 2),
        ("parsed_member", 4),
    ],
)
def test_tokens_of_further_models_count_once(server: WaitingServer, agent: str, calls: int) -> None:
    run = server.start(agent, '{"number": 5}')
    if run["status"] == "PAUSED":
        run = server.decide_and_wait(run, "approve")
    assert run["status"] == "COMPLETED", run
    runs = [run, *list_members(server, run)]
    # The endpoint reports one cached token and two tokens of reasoning for each call.
    counted = [
        sum(each["metrics"][name] for each in runs)
        for name in ("cache_read_tokens", "reasoning_tokens")
    ]
    assert counted == [calls, 2 * calls]
    assert all(each["total_tokens"] > each["metrics"]["input_tokens"] for each in runs)


def test_events_of_nested_members_name_their_runs(server: WaitingServer) -> None:
    run = server.start("nested", '{"word": "tea"}')
    team, agent = list_members(server, run)
    assert (team["team_id"], agent["agent_id"]) == ("researchers", "Dr. Search")
    assert agent["parent_run_id"] == team["run_id"]
    events = server.read_events(run["run_id"])
    by_run = {
        each["run_id"]: [event["event"] for event in events if event["run_id"] == each["run_id"]]
        for each in (team, agent)
    }
    assert by_run[team["run_id"]][0] == "TeamRunStarted"
    assert "TeamToolCallStarted" in by_run[team["run_id"]]
    assert by_run[agent["run_id"]][0] == "RunStarted"
    assert by_run[agent["run_id"]].index("ToolCallCompleted") > 0
    assert by_run[agent["run_id"]][-1] == "RunCompleted"


def test_failure_of_a_member_is_its_own(server: WaitingServer) -> None:
    run = server.start("failing_member", "hello")
    (member,) = list_members(server, run)
    assert run["status"] == "COMPLETED"
    assert (member["status"], member["error"]["code"]) == ("ERROR", "MODEL_REJECTED")
    assert "secret" not in json.dumps([run, member])


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        ("refused_400", "MODEL_REJECTED"),
        ("refused_401", "MODEL_KEY_REJECTED"),
        ("refused_403", "MODEL_KEY_REJECTED"),
        ("refused_404", "MODEL_NOT_FOUND"),
        ("busy_429", "MODEL_UNAVAILABLE"),
        ("broken_500", "MODEL_UNAVAILABLE"),
        ("slow", "MODEL_TIMEOUT"),
        ("refused_team", "MODEL_REJECTED"),
        ("refused_workflow", "MODEL_REJECTED"),
    ],
)
def test_failures_of_models_are_named(server: WaitingServer, agent: str, code: str) -> None:
    run = server.start(agent, "hello")
    assert (run["status"], run["error"]["code"]) == ("ERROR", code)
    assert "secret" not in json.dumps(run)


@pytest.mark.parametrize("agent", ["typed_agent", "typed_team", "typed_workflow"])
def test_input_is_checked_before_the_run(server: WaitingServer, agent: str) -> None:
    path = f"/agents/{agent}/runs"
    for body in ({"input": {"topic": "tea"}}, {"message": '{"topic": "tea"}'}):
        answer = request(server, path, {"stream": False, **body})
        assert answer.status_code == 200, answer.text
        assert "tea" in answer.json()["content"]
    for body, named in (
        ({"input": {"number": 2}}, "topic"),
        ({"input": {"topic": "tea", "number": "many"}}, "input.number"),
        ({"message": '{"number": 2}'}, "topic"),
        ({"message": "tea"}, "input is required"),
    ):
        answer = request(server, path, {"stream": False, **body})
        assert answer.status_code == 422, answer.text
        assert named in answer.text
    schema = request(server, f"/agents/{agent}").json()["input_schema"]
    assert schema["required"] == ["topic"]


def request(server: WaitingServer, path: str, body: object = None) -> httpx2.Response:
    headers = server.deployment.inner.bearer("ann", ADMIN)
    method = "GET" if body is None else "POST"
    return httpx2.request(
        method, server.host.url + path, json=body, headers=headers, timeout=PATIENCE
    )
