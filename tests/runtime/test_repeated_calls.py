"""Calls of tools that a model makes again and again: their refusal, and the end with LOOP."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Mapping
from typing import Any

import pytest

import agentctl
from agentctl.config.settings import Agent, Settings, Team
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Paused
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls, RepeatLimits
from tests.kit.fake_context import FakeContext, attempt, served, settings
from tests.kit.model import ModelEndpoint
from tests.runtime.polling_tools import made

TOOL = "tests.runtime.polling_tools:poll"
POLL = '{"place": "inn"}'
REFUSAL = "The call was not made: poll was called 2 times in a row"


@pytest.fixture
def model_endpoint(process_endpoint: ModelEndpoint) -> ModelEndpoint:
    """An endpoint in another process: agno runs the member of a team in the thread of the loop."""
    return process_endpoint


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    made.clear()


@agentctl.tool(repeat_calls=0)
def watch(place: str) -> str:
    """Look at a place, on purpose again and again."""
    made.append(place)
    return "nothing yet"


def call(place: str, number: int, name: str = "poll") -> dict[str, Any]:
    return {"id": f"call-{number}", "name": name, "arguments": {"place": place}}


def list_made(limits: RepeatLimits, *answers: str) -> list[str]:
    """Return which calls of each answer are made: `+`, or `-` for a refused one; `!` for LOOP.

    Args:
        answers: the places of the calls of each answer, a letter for each.
    """
    repeats = RepeatedCalls(limits)
    outcomes = []
    number = 0
    for places in answers:
        calls = [call(place, number + index) for index, place in enumerate(places)]
        number += len(calls)
        repeats.add_answer(calls)
        try:
            repeats.check()
        except ExecutionError:
            return [*outcomes, "!"]
        refused = [repeats.find_refusal(each["id"]) is not None for each in calls]
        outcomes.append("".join("-" if is_refused else "+" for is_refused in refused))
    return outcomes


@pytest.mark.parametrize(
    ("answers", "outcomes"),
    [
        ("a a a a", "+ + - !"),
        ("a a b a a a a", "+ + + + + - !"),
        ("a a a b a", "+ + - + +"),
        # The model has not read the refusal when it asks for the calls of one answer.
        ("aaaaa", "++---"),
        ("aaa aa", "++- !"),
        ("aaa ba", "++- ++"),
        ("aa ab ab", "++ -+ ++"),
    ],
)
def test_call_after_the_limit_is_refused_once(answers: str, outcomes: str) -> None:
    assert list_made(RepeatLimits(2), *answers.split()) == outcomes.split()


def test_order_of_the_members_of_arguments_does_not_count() -> None:
    repeats = RepeatedCalls(RepeatLimits(1))
    repeats.add_answer([{"id": "1", "name": "add", "arguments": {"a": 1, "b": [2.0]}}])
    repeats.add_answer([{"id": "2", "name": "add", "arguments": {"b": [2], "a": 1}}])
    assert repeats.find_refusal("2") is not None


def test_first_pattern_that_matches_counts() -> None:
    limits = RepeatLimits(3, {"poll_now": 1, "poll_*": 0}, {"poll_now": 9, "poll_later": 9, "x": 2})
    names = ("poll_now", "poll_later", "x", "other")
    assert [limits.find(name) for name in names] == [1, 0, 2, 3]


def test_later_leg_counts_from_the_messages_of_the_run() -> None:
    messages: list[Mapping[str, Any]] = [
        # Calls of a run that this one repeats do not count.
        {"role": "assistant", "tool_calls": [call("a", 0)], "origin_run_id": "other"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call("a", 1)]},
        {"role": "tool", "tool_call_id": "call-1", "content": "nothing"},
        {"role": "assistant", "content": "", "tool_calls": [call("a", 2), call("a", 3)]},
    ]
    repeats = RepeatedCalls(RepeatLimits(2), messages)
    assert [repeats.find_refusal(f"call-{n}") is None for n in (2, 3)] == [True, False]
    repeats.add_answer([call("a", 4)])
    with pytest.raises(ExecutionError, match="LOOP"):
        repeats.check()


def test_call_that_was_made_beyond_the_limit_is_no_refusal() -> None:
    messages: list[Mapping[str, Any]] = []
    for number in range(3):
        messages.append({"role": "assistant", "content": "", "tool_calls": [call("a", number)]})
        messages.append({"role": "tool", "tool_call_id": f"call-{number}", "content": "made"})
    repeats = RepeatedCalls(RepeatLimits(1), messages)
    repeats.add_answer([call("a", 3)])
    repeats.check()
    assert repeats.find_refusal("call-3") is not None


def configure(
    endpoint: ModelEndpoint, tool: str = TOOL, model: str = "again:poll", **keys: Any
) -> Settings:
    agent = Agent("looping", "loop", tools=(tool,), **keys)
    return settings(endpoint, models=(served("loop", model, endpoint),), agents=(agent,))


def read_calls(ended: FakeContext) -> list[tuple[bool, str]]:
    return [(entry["tool_call_error"], entry["result"]) for entry in ended.transcript.tools]


def test_model_reads_why_before_its_run_ends_as_loop(model_endpoint: ModelEndpoint) -> None:
    configured = configure(model_endpoint, repeat_calls=2)
    ended, failure = attempt(configured, POLL, component="looping")

    assert failure is not None
    assert failure.code == "LOOP"
    assert failure.detail.startswith("The model made the same call of poll again")
    assert made == ["inn", "inn"]
    first, second, refused = read_calls(ended)
    assert first == second == (False, "nothing at inn")
    assert refused[0]
    assert refused[1].startswith(REFUSAL)
    sent = model_endpoint.requests("again:poll")[-1]["messages"][-1]
    assert sent["content"] == refused[1]


def test_poll_on_purpose_is_made_until_the_model_calls_are_used_up(
    model_endpoint: ModelEndpoint,
) -> None:
    by_key = configure(model_endpoint, repeat_calls=2, repeat_calls_by_tool={"p*": 0})
    by_code = configure(model_endpoint, f"{__name__}:watch", "again:watch", repeat_calls=2)
    by_default = configure(model_endpoint)
    for configured in (by_key, by_code, by_default):
        made.clear()
        _, failure = attempt(configured, POLL, component="looping")
        assert failure is not None
        assert failure.code == "MODEL_CALLS_EXCEEDED"
        assert made == ["inn"] * 50


def test_key_of_the_configuration_counts_before_the_code_of_the_tool(
    model_endpoint: ModelEndpoint,
) -> None:
    keys = {"repeat_calls_by_tool": {"watch": 1}}
    configured = configure(model_endpoint, f"{__name__}:watch", "again:watch", **keys)
    _, failure = attempt(configured, POLL, component="looping")
    assert failure is not None
    assert (failure.code, made) == ("LOOP", ["inn"])


def test_no_one_is_asked_about_a_refused_call(model_endpoint: ModelEndpoint) -> None:
    calls = [model_call(number) for number in range(3)]
    plan = [{"tool_calls": calls}]
    configured = configure(model_endpoint, model="plan", repeat_calls=2, approve={"poll": "user"})
    with pytest.raises(Paused) as paused:
        attempt(configured, json.dumps(plan), component="looping")
    assert [ask.tool_call_id for ask in paused.value.asks] == ["call-0", "call-1"]


def model_call(number: int) -> dict[str, Any]:
    function = {"name": "poll", "arguments": POLL}
    return {"id": f"call-{number}", "type": "function", "function": function}


def test_loop_of_a_member_is_a_failed_call_of_its_team(model_endpoint: ModelEndpoint) -> None:
    configured = configure(model_endpoint, repeat_calls=2)
    team = Team("pair", "lead", ("looping",))
    models = (*configured.models, served("lead", "delegate", model_endpoint))
    agents = configured.agents[1:]
    configured = settings(model_endpoint, models=models[1:], agents=agents, teams=(team,))
    ended, failure = attempt(configured, POLL, kind="team", component="pair")
    assert failure is None
    (member,) = ended.children
    assert [error for error, _ in read_calls(member)] == [False, False, True]
    assert "same call of poll" in ended.transcript.tools[0]["result"]


def test_delegations_of_a_leader_are_counted(model_endpoint: ModelEndpoint) -> None:
    team = Team("pair", "lead", ("writer",), repeat_calls=1)
    name = "delegate_task_to_member"
    arguments = {"member_id": "writer", "task": "draft"}
    models = (served("lead", f"again:{name}", model_endpoint),)
    configured = settings(model_endpoint, models=models, teams=(team,))
    ended, failure = attempt(configured, json.dumps(arguments), kind="team", component="pair")
    assert failure is not None
    assert (failure.code, len(ended.children)) == ("LOOP", 1)


@pytest.mark.parametrize(
    "name",
    [
        "pydantic",
        "graph",
        "graph_in_threads",
        "graph_that_handles_errors",
        "agno",
        "agno_in_threads",
        "agno_team",
        "openai",
    ],
)
def test_libraries_do_not_make_a_refused_call(name: str, model_endpoint: ModelEndpoint) -> None:
    # Each of them imports libraries, which takes seconds.
    for module in ("sample_frameworks", "sample_openai_agents"):
        importlib.import_module(f"tests.runtime.{module}").url = model_endpoint.base_url
    model_endpoint.forget()
    agent = Agent("code", object=f"tests.runtime.sample_repeats:{name}", repeat_calls=2)
    ended, failure = attempt(settings(agents=(agent,)), POLL, component="code")

    assert failure is not None
    assert failure.code == "LOOP", failure.detail
    assert made == ["inn", "inn"]
    looping = ended if not ended.reported else ended.reported[0]
    calls = read_calls(looping)[:3]
    assert [error for error, _ in calls] == [False, False, True]
    assert "The call was not made" in calls[2][1]
    model = f"again:{looping.transcript.tools[0]['tool_name']}"
    sent = model_endpoint.requests(model)
    assert len(sent) == 4
    assert sent[3]["messages"][-1]["content"] == calls[2][1]


def test_key_has_no_effect_for_a_function() -> None:
    agent = Agent("code", object=TOOL, repeat_calls=2)
    catalog = Catalog.from_settings(settings(agents=(agent,)))
    component = catalog.get("agent", "code")
    assert component is not None
    with pytest.raises(InvalidConfiguration, match="repeat_calls has no effect for a function"):
        catalog.hosted_runner(component)
    asyncio.run(catalog.close())
