"""The messages of a run that a call of its model shows."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from agentctl.runtime.components import fitting
from agentctl.runtime.components.fitting import StepSummary, summarize_steps
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.call_fitting import BOUND_SECONDS, RequestBounds
from agentctl.runtime.models.calls import build_answer, build_result
from agentctl.runtime.transcript.context_window import (
    Compaction,
    ContextMessages,
    FittedMessages,
    find_report,
    fit_messages,
    keep_report,
    measure_message,
)

Messages = list[dict[str, Any]]


def build_turn(number: int, results: Sequence[str]) -> Messages:
    """Return an answer with calls, and their results."""
    calls = [
        {"id": f"c{number}-{at}", "name": "look", "arguments": {}} for at in range(len(results))
    ]
    given = [
        build_result(call["id"], "look", text) for call, text in zip(calls, results, strict=True)
    ]
    return [build_answer("", calls, None), *given]


def build_context(history: int = 0, turns: int = 0, size: int = 1_000) -> ContextMessages:
    """Return the messages of runs of two messages, then of a run with answers, all of one size."""
    messages: Messages = []
    runs = []
    for number in range(history):
        runs.append((len(messages), f"r{number}"))
        messages.append({"role": "user", "content": "q" * size})
        messages.append({"role": "assistant", "content": "a" * size})
    own = len(messages)
    messages.append({"role": "user", "content": "now"})
    for number in range(turns):
        messages += build_turn(number, ["t" * size])
    return ContextMessages(messages, own, runs)


def fit(context: ContextMessages, window: int | None, **numbers: int) -> FittedMessages:
    return fit_messages(context, window, Compaction(**numbers))


def test_messages_that_fit_are_shown_whole() -> None:
    context = build_context(history=2, turns=2)
    fitted = fit(context, 10_000)
    assert fitted.messages is context.messages
    assert (fitted.omissions, fitted.compaction) == ((), Compaction())
    assert fitted.size == sum(map(measure_message, context.messages))
    assert fit(context, None).messages is context.messages


def test_old_results_become_lines_first() -> None:
    context = build_context(turns=6, size=3_000)
    fitted = fit(context, 6_000)
    (omission,) = fitted.omissions
    assert (omission.kind, omission.first) == ("tool_result", "c0-0")
    texts = [message["content"] for message in fitted.messages if message["role"] == "tool"]
    assert texts[0] == (
        "[Result 2 is left out: it has 3000 characters."
        " Read it with read_tool_result, number 2, offset 0.]"
    )
    assert texts[-1] == "t" * 3_000
    assert fitted.estimated_tokens <= 6_000 * 0.6
    # Nothing more than necessary.
    assert fitted.estimated_tokens > 6_000 * 0.6 - 1_100


def test_line_has_the_id_of_its_result_if_no_other_has_it() -> None:
    context = build_context(turns=6, size=3_000)
    messages = [*context.messages]
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    ids = ("call_1", "call_2", "call_2", "x" * 41, "", "last")
    for at, call_id in zip(results, ids, strict=True):
        messages[at] = {**messages[at], "tool_call_id": call_id}
    fitted = fit_messages(ContextMessages(messages), 3_000, Compaction(), reading="id")
    lines = [message["content"] for message in fitted.messages if message["role"] == "tool"][:-1]
    assert lines[0].endswith(" Read it with read_tool_result, id call_1, offset 0.]")
    assert [line.endswith(" 3000 characters.]") for line in lines] == [False, *[True] * 4]


def test_oldest_runs_are_left_out_next() -> None:
    context = build_context(history=5, turns=1)
    fitted = fit(context, 2_000)
    (omission,) = fitted.omissions
    assert (omission.kind, omission.first, omission.count) == ("runs", "r0", 4)
    assert omission.size == 8 * 1_016
    assert fitted.messages[0] is context.messages[8]


def test_oldest_answers_of_the_run_are_left_out_after_its_history() -> None:
    context = build_context(history=1, turns=40, size=300)
    fitted = fit(context, 1_000)
    assert [omission.kind for omission in fitted.omissions] == ["tool_result", "runs", "turns"]
    assert fitted.omissions[2].first == "c0-0"
    assert [message["role"] for message in fitted.messages[:3]] == ["user", "assistant", "tool"]
    assert fitted.messages[0]["content"] == "now"
    assert fitted.messages[-1]["content"] == "t" * 300
    assert fitted.estimated_tokens <= 600


def test_newest_results_are_cut_last() -> None:
    messages = [{"role": "user", "content": "now"}, *build_turn(0, ["ü" * 30_000, "b" * 90_000])]
    context = ContextMessages(messages)
    fitted = fit(context, 10_000)
    (omission,) = fitted.omissions
    assert (omission.kind, omission.count) == ("tool_result", 2)
    first, second = (message["content"] for message in fitted.messages[2:])
    assert first.startswith("üüü")
    shown = first.count("ü")
    assert f"[{shown} characters of result 2 are shown: it has 30000 characters." in first
    shown = len(second.partition("\n")[0])
    assert second.endswith(f"number 3, offset {shown}.]")
    assert 5_000 < fitted.estimated_tokens <= 6_000


def test_result_is_cut_to_its_configured_size() -> None:
    context = ContextMessages([{"role": "user", "content": "now"}, *build_turn(0, ["x" * 5_000])])
    fitted = fit(context, None, result_bytes=900)
    assert fitted.messages[-1]["content"].startswith("x" * 900 + "\n[900 characters of result 2")
    small = ContextMessages([{"role": "user", "content": "now"}, *build_turn(0, ["x" * 900])])
    assert fit(small, None, result_bytes=900).messages[-1]["content"] == "x" * 900


def test_message_and_last_answer_stay_whatever_their_size() -> None:
    context = build_context(history=3, turns=3, size=50_000)
    fitted = fit(context, 100)
    assert [message["role"] for message in fitted.messages] == ["user", "assistant", "tool"]
    assert fitted.messages[0]["content"] == "now"
    assert len(fitted.messages[2]["content"]) < 600


def test_run_without_an_own_message_keeps_the_last_one_of_its_origin() -> None:
    """A retry goes on after the result of a tool, without an own message."""
    messages = [
        {"role": "user", "content": "old" * 1_000},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "asked"},
        *build_turn(0, ["x"]),
    ]
    context = ContextMessages(messages, len(messages), [(0, "")])
    fitted = fit(context, 300)
    assert [message["content"] for message in fitted.messages] == ["asked", "", "x"]
    assert [(omission.kind, omission.first) for omission in fitted.omissions] == [("runs", "")]


async def test_summary_is_made_of_parts_that_the_model_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts: list[str] = []

    async def summarize(model_id: str, prompt: str) -> str:
        if len(prompt) > 1_300:
            raise ExecutionError("CONTEXT_EXCEEDED", "too long")
        prompts.append(prompt)
        return f"summary {len(prompts)}"

    monkeypatch.setattr(fitting, "_find_maximum", AsyncMock(return_value=2_400))
    monkeypatch.setattr(fitting, "_fetch_summary", summarize)
    messages = [message for number in range(4) for message in build_turn(number, ["t" * 300])]
    before = StepSummary("", 0)
    summary = await summarize_steps("model", before, "the task", messages)

    assert summary == StepSummary("summary 2", len(messages))
    call = "Call of look:\n{}"
    result = f"Result of look:\n{'t' * 300}"
    turn = f"{call}\n\n{result}\n\n"
    assert prompts == [
        f"User:\nthe task\n\n{turn}{turn}{turn}{call}",
        f"Summary so far:\nsummary 1\n\nUser:\nthe task\n\n{result}",
    ]


def test_estimate_follows_the_reports_of_the_model() -> None:
    reported = keep_report(Compaction(), 20_000, 10_000)
    assert reported.estimate_tokens(24_000) == 12_000
    assert reported.estimate_tokens(10_000) == 5_000
    # The tokens of a small call say nothing about those of a text.
    assert keep_report(Compaction(), 30, 500).estimate_tokens(3_030) == 1_500
    assert keep_report(reported, 30_000, 0) == reported


def test_size_that_was_accepted_is_no_longer_refused() -> None:
    assert keep_report(Compaction(maximum_bytes=1), 700, 200).maximum_bytes == 700


def build_random_runs(chance: random.Random) -> tuple[Messages, list[tuple[int, str]]]:
    """Return the messages of some runs, and the index of the first one of each with its id."""
    messages: Messages = []
    runs = []
    for number in range(chance.randrange(6)):
        runs.append((len(messages), f"r{number}"))
        messages.append({"role": "user", "content": "q" * chance.randrange(3_000)})
        for turn in range(chance.randrange(3)):
            sizes = [chance.randrange(9_000) for _ in range(chance.randrange(1, 4))]
            messages += build_turn(number * 10 + turn, ["é" * size for size in sizes])
        messages.append({"role": "assistant", "content": "a" * chance.randrange(3_000)})
    return messages, runs


def check_pairs(messages: Sequence[dict[str, Any]]) -> None:
    """Check that each call has its result, and each result its call."""
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert asked == answered


@pytest.mark.parametrize("seed", range(20))
def test_random_conversations_fit_and_stay_pairs(seed: int) -> None:
    """With any part left out calls have their results, and the same numbers show the same texts."""
    chance = random.Random(seed)
    messages, runs = build_random_runs(chance)
    own = len(messages)
    messages.append({"role": "user", "content": "now" * chance.randrange(300)})
    context = ContextMessages(messages, own, runs)
    compaction = Compaction()
    for turn in range(30):
        fitted = fit_messages(context, 3_000, compaction, other_bytes=100)
        shown = list(fitted.messages)
        assert messages[own] in shown
        assert shown[0]["role"] == "user"
        check_pairs(shown)
        assert fitted.estimated_tokens <= 3_000 * 0.8
        assert fitted.size >= sum(map(measure_message, shown)) + 100

        # The numbers do not fall, and another process shows the same.
        before = compaction._asdict()
        after = fitted.compaction._asdict()
        assert all(after[name] >= before[name] for name in list(before)[:3])
        again = ContextMessages([*messages], own, runs)
        assert fit_messages(again, 3_000, compaction, other_bytes=100) == fitted

        compaction = keep_report(fitted.compaction, fitted.size, fitted.size // 4)
        sizes = [chance.randrange(5_000) for _ in range(chance.randrange(1, 4))]
        messages += build_turn(100 + turn, ["z" * size for size in sizes])


def test_bound_is_searched_between_accepted_and_refused_sizes() -> None:
    bounds = RequestBounds()
    assert bounds.find("m") == 0
    bounds.learn("m", 400, 1_000)
    assert (bounds.find("m"), bounds.find("other")) == (700, 0)
    bounds.accept("m", 700)
    bounds.accept("m", 50)
    assert bounds.find("m") == 850
    bounds.accept("m", 850)
    assert bounds.find("m") == 850
    # A larger success shows that the refusal had another reason.
    bounds.accept("m", 1_000)
    assert bounds.find("m") == 0


def test_bound_is_forgotten_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = RequestBounds()
    bounds.learn("m", 400, 1_000)
    later = time.monotonic() + BOUND_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert bounds.find("m") == 0


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, (9_000, 2_000)),
        ({"model": "another"}, (0, 0)),
        ({"sent_bytes": None}, (0, 0)),
        ({"sent_bytes": "9000"}, (0, 0)),
        ({"metrics": {"input_tokens": None}}, (0, 0)),
        ({"metrics": {"input_tokens": 9_001}}, (0, 0)),
        ({"metrics": 7}, (0, 0)),
    ],
)
def test_last_report_of_the_same_model_is_found(
    changes: dict[str, Any], found: tuple[int, int]
) -> None:
    answer = {
        "role": "assistant", "content": "", "model": "m", "sent_bytes": 9_000,
        "metrics": {"input_tokens": 2_000},
    }  # fmt: skip
    messages = [answer, {**answer, **changes}, {"role": "user", "content": ""}]
    assert find_report(messages, "m") == found
    assert find_report([], "m") == (0, 0)


class LibraryRun:
    """The requests of a run of pydantic_ai, with random sizes."""

    def __init__(self, seed: int) -> None:
        # The imports take seconds.
        from pydantic_ai import messages
        from pydantic_ai.models.test import TestModel

        self._library = messages
        self._model = TestModel(model_name="test", profile={"context_window": 3_000})
        self._chance = random.Random(seed)
        self.messages: list[Any] = []

    def add_request(self, number: int) -> None:
        """Add the result of the call before; every twentieth time, a new prompt."""
        prompt: Any = self._library.UserPromptPart(f"{number}")
        if number % 20:
            text = "r" * self._chance.randrange(1_500)
            prompt = self._library.ToolReturnPart("look", text, tool_call_id=f"c{number - 1}")
        self.messages.append(self._library.ModelRequest([prompt]))

    def add_answer(self, number: int) -> None:
        """Add a call; before a new prompt, an answer."""
        from pydantic_ai.usage import RequestUsage

        arguments = {"at": "x" * self._chance.randrange(90)}
        part: Any = self._library.ToolCallPart("look", arguments, f"c{number}")
        if not (number + 1) % 20:
            part = self._library.TextPart("done")
        usage = RequestUsage(input_tokens=self._chance.randrange(500, 2_000))
        answer = self._library.ModelResponse([part], usage=usage, model_name="test-1")
        self.messages.append(answer)

    async def fit(self, fitter: Any) -> list[Any]:
        """Return the messages of the next request that a `RequestFitter` shows."""
        from pydantic_ai.models import ModelRequestContext, ModelRequestParameters

        request = ModelRequestContext(
            model=self._model,
            messages=[*self.messages],
            model_settings=None,
            model_request_parameters=ModelRequestParameters(),
        )
        return list((await fitter.fit(None, request)).messages)


async def test_every_process_fits_the_requests_of_a_library_in_the_same_way() -> None:
    from agentctl.runtime.runners.pydantic_ai_fitting import RequestFitter

    run = Mock(take_turn=AsyncMock())
    run.environment.wait_while_halted = AsyncMock()
    requests = LibraryRun(seed=4)
    first = RequestFitter(run)
    for number in range(60):
        requests.add_request(number)
        shown = await requests.fit(first)
        assert shown == await requests.fit(RequestFitter(run))
        requests.add_answer(number)
    assert len(shown) < len(requests.messages) // 2
