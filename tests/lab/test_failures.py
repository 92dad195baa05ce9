"""After any failure the next message is answered; AGENTCTL_TEST_LONG=1 tries all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.lab.failures.scenario import ENDS, WORK, judge_rows, run_ends_of_servers, run_trials
from tests.lab.failures.strict import find_violations
from tests.lab.failures.table import FAILURES
from tests.lab.failures.trial import Trial
from tests.lab.failures.world import ROOT, SERVERS, find_component, open_failing_world
from tests.lab.world import World

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

EACH = (
    "status-500-form", "status-after-a-call", "overflow-openai", "cut-text", "cut-call",
    "reason-length-call", "malformed-json", "type-delta-text", "tokens-huge", "answer-blank",
    "arguments-no-json", "name-spaced", "ids-empty", "calls-two-hundred",
    "tool-raises-between-others", "cancelled-in-one-of-two-tools", "approval-rejected",
    "request-blank",
    "damaged-messages-cut", "damaged-native-history-numbers", "damaged-session-state-text",
)  # fmt: skip
"""Failures of every kind of agent in the suite; a configured agent has all of them."""


def list_trials(kinds: Sequence[str]) -> list[Trial]:
    """Return the trials of the suite; those that wait for a time limit are long ones."""
    return [
        Trial(kind, failure)
        for failure in FAILURES.values()
        for kind in kinds
        if find_component(kind, failure.variant)
        and (LONG or failure.name in EACH or (kind == "configured" and not failure.is_slow))
    ]


async def check(world: World, trials: Sequence[Trial]) -> None:
    """Check that trials, which have ended, have no problem, and that the rows are right."""
    problems = [f"{trial.name}: {problem}" for trial in trials for problem in trial.problems]
    assert problems == []
    assert not await judge_rows(world)


async def try_failures(trials: Sequence[Trial], **options: Any) -> None:
    """Run trials in a new world; the options as of `open_failing_world`."""
    async with open_failing_world(**options) as world:
        await run_trials(world, trials)
        await check(world, trials)


async def test_next_message_is_answered_after_every_failure() -> None:
    trials = list_trials(SERVERS[0])
    await try_failures(trials)
    assert len(trials) > 400


async def test_next_message_is_answered_after_a_sample_of_failures() -> None:
    kinds = ("configured",)
    trials = [trial for trial in list_trials(kinds) if trial.failure.name in EACH]
    await try_failures(trials, kinds=kinds)
    assert len(trials) == len(EACH)


async def test_next_message_is_answered_by_agents_of_google_adk() -> None:
    trials = list_trials(SERVERS[1])
    await try_failures(trials, kinds=SERVERS[1])
    assert len(trials) >= len(EACH)


async def test_next_message_is_answered_after_damage_on_postgresql() -> None:
    kinds = SERVERS[0] if LONG else ("configured", "pydantic-ai")
    trials = [
        Trial(kind, failure)
        for kind in kinds
        for failure in FAILURES.values()
        if failure.action == "damage" and (LONG or failure.name.endswith("cut"))
    ]
    await try_failures(trials, kinds=kinds, deployment="one on postgresql")


async def test_next_message_is_answered_by_another_server() -> None:
    for kinds in SERVERS if LONG else (("configured", "durable"),):
        async with open_failing_world(kinds) as world:
            await check(world, await run_ends_of_servers(world, kinds))


USER: dict[str, Any] = {"role": "user", "content": "hello"}
RESULT = {"role": "tool", "tool_call_id": "1", "content": ""}


def build_calls(*names: str, arguments: str = "{}", call_id: str = "1") -> dict[str, Any]:
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for name in names
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([USER], ""),
        ([{"role": "system", "content": "x"}, USER, build_calls("add"), RESULT], ""),
        ([], "no message"),
        ([{**USER, "content": " "}], "neither text nor calls"),
        ([{**USER, "role": "person"}], "unknown role"),
        ([USER, {"role": "assistant", "content": ""}, USER], "neither text nor calls"),
        ([USER, {"role": "assistant", "content": "x"}], "the last message is an answer"),
        ([{"role": "assistant", "content": "x"}, USER], "the first message"),
        ([USER, {"role": "system", "content": "x"}, USER], "instructions follow"),
        ([USER, build_calls("add"), USER], "without a result"),
        ([USER, build_calls("add")], "have no result"),
        ([USER, RESULT], "the result of no call"),
        ([USER, build_calls("add"), RESULT, RESULT], "the result of no call"),
        ([USER, build_calls("add", "add"), RESULT, RESULT], "the same id"),
        ([USER, build_calls("add", call_id=""), RESULT], "no id"),
        ([USER, build_calls("a b"), RESULT], "name of a function"),
        ([USER, build_calls("add", arguments="[1]"), RESULT], "no JSON object"),
        ([USER, build_calls("add", arguments="{"), RESULT], "no JSON object"),
        ([USER, build_calls(), RESULT], "0 calls"),
    ],
)
def test_strict_provider_refuses_a_request(messages: list[dict[str, Any]], found: str) -> None:
    violations = find_violations({"messages": messages})
    assert any(found in each for each in violations) if found else violations == []


def test_page_has_the_number_of_failures() -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    table = page.partition("| part that fails |")[2].partition("## ")[0]
    numbers = [int(number) for number in re.findall(r"\| (\d+) \|", table)]
    assert sum(numbers) == len(FAILURES) + len(ENDS) * len(WORK)
    assert sum(numbers) >= 200
    assert {*EACH} <= FAILURES.keys()
