"""Teams in all modes, with models over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.config.settings import Agent, Settings, Team
from agentctl.runtime.transcript.events import Content, ToolCallCompleted, ToolCallStarted
from tests.kit import fake_context
from tests.kit.fake_context import attempt, run, served, settings
from tests.kit.model import ModelEndpoint
from tests.runtime import sample_tools


def build_team(
    endpoint: ModelEndpoint,
    mode: Any,
    *,
    leader: str = "delegate",
    member: str = "echo",
    **more: Any,
) -> Settings:
    """Build the team `news` of `writer` and `editor`; the members share a model."""
    return settings(
        endpoint,
        model=member,
        models=(served("lead", leader, endpoint),),
        agents=(Agent("editor", "m", name="Editor", description="Corrects texts"),),
        teams=(
            Team("news", "lead", ("writer", "editor"), mode=mode, instructions="Be brief.", **more),
        ),
    )


def test_leader_coordinates(model_endpoint: ModelEndpoint) -> None:
    ended = run(
        build_team(model_endpoint, "coordinate"), "ask editor", kind="team", component="news"
    )

    assert ended.transcript.content == ended.joined_deltas == "ask editor"
    (call,) = ended.transcript.tools
    assert call["tool_name"] == "delegate_task_to_member"
    assert call["tool_args"] == {"member_id": "editor", "task": "ask editor"}
    assert (call["tool_call_error"], call["result"]) == (False, "ask editor")
    (child,) = ended.children
    assert child.transcript.content == "ask editor"
    roles = [message["role"] for message in ended.transcript.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert [type(event) for event in ended.events[:2]] == [ToolCallStarted, ToolCallCompleted]


def test_leader_gets_instructions_duty_and_members(model_endpoint: ModelEndpoint) -> None:
    ended = run(build_team(model_endpoint, "coordinate"), "go", kind="team", component="news")

    system = ended.transcript.messages[0]["content"]
    assert system.startswith("Be brief.\n\nYou lead a team.")
    assert system.endswith("Members:\n- writer (writer)\n- editor (Editor): Corrects texts")
    assert model_endpoint.requests("delegate")[-1]["messages"][0]["content"] == system


def test_team_metrics_exclude_members(model_endpoint: ModelEndpoint) -> None:
    ended = run(build_team(model_endpoint, "coordinate"), "go", kind="team", component="news")

    own = [message["metrics"] for message in ended.transcript.messages if "metrics" in message]
    total = sum(metrics["total_tokens"] for metrics in own)
    assert ended.transcript.metrics["total_tokens"] == total
    assert ended.children[0].transcript.metrics["total_tokens"] > 0


@pytest.mark.parametrize(
    ("member", "told"),
    [
        ("http-400", "failed: The model m refused the request (HTTP 400)"),
        ("hang", "failed: The run exceeded its time limit"),
    ],
)
@pytest.mark.parametrize("mode", ["coordinate", "route"])
def test_failure_of_a_member_is_a_tool_result(
    model_endpoint: ModelEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    member: str,
    told: str,
) -> None:
    if member == "hang":
        monkeypatch.setitem(fake_context.MEMBER_SECONDS, "writer", 0.1)
    configured = build_team(model_endpoint, mode, member=member)

    ended, failure = attempt(configured, "go", kind="team", component="news")

    assert failure is None
    (call,) = ended.transcript.tools
    assert (call["tool_call_error"], call["result"]) == (True, f"The member writer {told}")
    assert ended.transcript.content == ended.joined_deltas == f"The member writer {told}"


def test_cancel_of_a_member_is_a_tool_result(model_endpoint: ModelEndpoint) -> None:
    configured = build_team(model_endpoint, "coordinate")

    ended, failure = attempt(configured, "go", kind="team", component="news", cancels_members=True)

    assert failure is None
    assert ended.transcript.content == "The member writer was cancelled"


def test_leader_may_have_its_own_tools(model_endpoint: ModelEndpoint) -> None:
    configured = build_team(
        model_endpoint, "coordinate", leader="tool:shout", tools=(f"{sample_tools.TOOLS}:shout",)
    )

    ended = run(configured, 'go {"text": "x"}', kind="team", component="news")

    assert ended.transcript.content == "X"
    offered = model_endpoint.requests("tool:shout")[-1]["tools"]
    names = [tool["function"]["name"] for tool in offered]
    assert names == ["delegate_task_to_member", "shout"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"member_id": "nobody", "task": "x"}, "The argument member_id is one of: writer, editor"),
        ({"task": "x"}, "The argument member_id is one of: writer, editor"),
        ({"member_id": ["writer"]}, "The argument member_id is one of: writer, editor"),
        ({"member_id": "writer"}, "The argument task is missing: say what to do"),
    ],
)
def test_invalid_delegation_is_reported_to_the_leader(
    model_endpoint: ModelEndpoint, arguments: dict[str, Any], told: str
) -> None:
    configured = build_team(model_endpoint, "coordinate", leader="tool:delegate_task_to_member")

    ended = run(configured, f"go {json.dumps(arguments)}", kind="team", component="news")

    assert ended.transcript.content == told
    assert ended.children == []


def test_member_answers_a_routed_message(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.forget()
    ended = run(
        build_team(model_endpoint, "route"), "ask the editor", kind="team", component="news"
    )

    assert ended.transcript.content == ended.joined_deltas == "ask the editor"
    (call,) = ended.transcript.tools
    assert call["tool_name"] == "route_to_member"
    assert call["tool_args"] == {"member_id": "editor"}
    answer = ended.transcript.messages[-1]
    assert (answer["role"], answer["content"]) == ("assistant", "ask the editor")
    assert set(answer["metrics"].values()) == {0}
    (asked,) = model_endpoint.requests("delegate")
    assert asked["tool_choice"] == "required"


def test_message_is_routed_to_one_member_only(model_endpoint: ModelEndpoint) -> None:
    configured = build_team(model_endpoint, "route", leader="tools:route_to_member")

    ended = run(configured, 'go {"member_id": "writer"}', kind="team", component="news")

    assert len(ended.children) == 1
    results = {call["result"] for call in ended.transcript.tools}
    assert "The message was passed to another member already" in results
    assert ended.transcript.content == 'go {"member_id": "writer"}'


def test_leader_without_routing_answers_itself(model_endpoint: ModelEndpoint) -> None:
    configured = build_team(model_endpoint, "route", leader="echo")

    ended = run(configured, "hello there", kind="team", component="news")

    assert ended.transcript.content == ended.joined_deltas == "hello there"
    assert ended.transcript.messages[-1]["content"] == "hello there"
    assert ended.children == []


def test_broadcast_runs_all_members_concurrently(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.forget()
    configured = build_team(model_endpoint, "broadcast", leader="echo", member="history")

    ended = run(configured, "what now", kind="team", component="news")

    assert [child.transcript.content for child in ended.children] == ['[["user", "what now"]]'] * 2
    assert ended.transcript.content == (
        "what now\n\nWhat the members report:\n\n"
        'writer (writer):\n[["user", "what now"]]\n\n'
        'editor (Editor):\n[["user", "what now"]]'
    )
    user = ended.transcript.messages[1]
    assert (user["role"], user["content"]) == ("user", "what now")
    assert "tools" not in model_endpoint.requests("echo")[-1]
    assert all(isinstance(event, Content) for event in ended.events)


def test_broadcast_leader_gets_failures_of_members(model_endpoint: ModelEndpoint) -> None:
    configured = build_team(model_endpoint, "broadcast", leader="echo", member="http-401")

    ended = run(configured, "what now", kind="team", component="news")

    assert "editor (Editor):\nThe member editor failed: The provider rejected" in (
        ended.transcript.content
    )


def test_team_may_be_a_member(model_endpoint: ModelEndpoint) -> None:
    inner = build_team(model_endpoint, "coordinate")
    outer = Team("company", "lead", ("news",))
    configured = Settings(
        databases=inner.databases,
        models=inner.models,
        agents=inner.agents,
        teams=(*inner.teams, outer),
    )

    ended = run(configured, "hello", kind="team", component="company")

    assert ended.transcript.content == "hello"
    (child,) = ended.children
    (grandchild,) = child.children
    assert grandchild.transcript.content == "hello"


def test_failing_leader_ends_the_run(model_endpoint: ModelEndpoint) -> None:
    configured = build_team(model_endpoint, "coordinate", leader="http-400")

    _, failure = attempt(configured, "go", kind="team", component="news")

    assert failure is not None
    assert failure.code == "MODEL_REJECTED"


def test_tool_named_like_the_delegation_tool_is_refused(
    model_endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    configured = build_team(
        model_endpoint, "coordinate", tools=(f"{sample_tools.TOOLS}:delegate_task_to_member",)
    )

    _, failure = attempt(configured, "go", kind="team", component="news")

    assert failure is not None
    assert failure.code == "INTERNAL"
    assert "team news has two tools named delegate_task_to_member" in caplog.text
