"""Messages of graphs of LangGraph: every form, parallel nodes, inner answers, and tokens."""

from __future__ import annotations

import importlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from agentctl.config.settings import Agent
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.transcript.events import Content, ProgressReported
from tests.kit.documents import page
from tests.kit.fake_context import FakeContext, settings
from tests.kit.model import ModelEndpoint

MODULE = "tests.runtime.sample_graphs"


@pytest.fixture(autouse=True)
def models(model_endpoint: ModelEndpoint) -> None:
    importlib.import_module(MODULE).url = model_endpoint.base_url


async def run(
    reference: str,
    message: str = "hi",
    history: list[dict[str, Any]] | None = None,
    steps: list[str] | None = None,
    **options: Any,
) -> FakeContext:
    """Run a graph to its end."""
    agent = Agent("code", object=reference)
    catalog = Catalog.from_settings(settings(agents=(agent,), **options))
    context = FakeContext(catalog)
    context.change_spec(user_id="ann")
    graphs = importlib.import_module(MODULE)
    graphs.order = graphs.Order(lambda: context.joined_deltas, steps or [])
    try:
        await context.execute("agent", "code", message, history or [])
    finally:
        await catalog.close()
    return context


@pytest.mark.parametrize(
    "name", ["tuples", "one_tuple", "dicts", "one_dict", "one_message", "not_converted"]
)
async def test_answer_may_have_every_form_of_a_message(name: str) -> None:
    ended = await run(f"{MODULE}:{name}")
    assert ended.transcript.content == ended.joined_deltas == "hello"
    assert said(ended) == [("user", "hi"), ("assistant", "hello")]


def said(context: FakeContext) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in context.transcript.messages]


async def test_example_of_the_page_answers(tmp_path: Path) -> None:
    """The page has no other example of LangGraph that runs on its own."""
    blocks = [block.text for block in page("docs/agents.md").blocks("python")]
    (example,) = (text for text in blocks if "support = builder.compile()" in text)
    (tmp_path / "page_example.py").write_text(example)
    ended = await run("page_example:support", path=tmp_path / "agentctl.toml")
    assert ended.transcript.content == "Hello ann"


async def test_tool_results_may_be_dicts() -> None:
    ended = await run(f"{MODULE}:tool_results_as_dicts")
    assert [message["role"] for message in ended.transcript.messages] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    (call,) = ended.transcript.tools
    assert (call["result"], call["tool_call_error"]) == ("mail sent", False)
    assert ended.transcript.content == "sent"


async def test_call_without_a_result_is_not_cancelled() -> None:
    ended = await run(f"{MODULE}:call_without_result")
    (call,) = ended.transcript.tools
    assert (call["result"], call["tool_call_error"]) == ("no result", False)
    assert said(ended)[1:] == [("assistant", "done"), ("tool", "no result")]


async def test_answers_of_parallel_nodes_are_kept_apart() -> None:
    ended = await run(f"{MODULE}:branches")
    texts = [" ".join(f"{name}{number}" for number in range(40)) for name in "abc"]
    assert said(ended)[1:] == [("assistant", text) for text in texts]
    assert ended.transcript.content == "\n\n".join(texts)
    assert sorted(ended.joined_deltas.split("\n\n")) == texts
    assert ended.transcript.metrics["input_tokens"] == 120


@pytest.mark.parametrize(
    "steps",
    [
        [
            "left:left ",
            "shown:left ",
            "right:right ",
            "left:one",
            "shown:left one",
            "left:end",
            "right:two",
        ],
        [
            "left:left ",
            "shown:left ",
            "block",
            "right:right ",
            "left:one",
            "left:end",
            "unblock",
            "right:two",
        ],
        ["left:left ", "shown:left ", "right:right ", "right:two", "right:end", "left:one"],
    ],
    ids=["first_ends", "end_is_read_late", "second_ends"],
)
async def test_pieces_of_parallel_answers_are_complete(steps: list[str]) -> None:
    ends = [f"{name}:end" for name in ("left", "right") if f"{name}:end" not in steps]
    # The graph takes the steps from this list, and the list of the parameters has to stay.
    ended = await run(f"{MODULE}:ordered", steps=[*steps, *ends])
    assert ended.joined_deltas == ended.transcript.content == "left one\n\nright two"
    texts = defaultdict[str, str](str)
    nodes = {}
    for event in ended.events:
        if isinstance(event, Content) and event.origin is not None:
            texts[event.origin["message_id"]] += event.delta
            nodes[event.origin["message_id"]] = event.origin["node"]
    assert {nodes[key]: texts[key].strip() for key in texts} == {
        "left": "left one", "right": "right two",
    }  # fmt: skip


async def test_text_of_a_summary_is_progress() -> None:
    texts = {"user": "one", "assistant": "two"}
    history = [{"role": role, "content": texts[role], "created_at": 1} for role in texts]
    ended = await run(f"{MODULE}:summarizing", history=history)
    assert ended.joined_deltas == ended.transcript.content == "hi"
    (progress,) = [event.text for event in ended.events if isinstance(event, ProgressReported)]
    assert str(progress).startswith("Summary of ")


async def test_details_of_the_tokens_of_structured_answers_count() -> None:
    usage = {
        "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "script"}
    delta = {"role": "assistant", "content": '{"step": "poem"}'}
    chunks: list[dict[str, Any]] = [
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**chunk, "choices": [], "usage": usage},
    ]
    pieces = [f"data: {json.dumps(each)}\n\n" for each in chunks]
    message = json.dumps({"headers": {}, "pieces": [*pieces, "data: [DONE]\n\n"]})
    ended = await run(f"{MODULE}:structured", message)
    names = ("input", "output", "total", "cache_read", "reasoning")
    metrics = ended.transcript.metrics
    assert [metrics[f"{name}_tokens"] for name in names] == [9, 4, 13, 5, 3]


async def test_inner_answers_are_progress_and_their_tokens_count() -> None:
    ended = await run(f"{MODULE}:routing")
    assert ended.transcript.content == ended.joined_deltas == "the poem"
    assert said(ended)[1:] == [("assistant", "the poem")]
    progress = [event.text for event in ended.events if isinstance(event, ProgressReported)]
    assert progress == ['{"step": "poem"}']
    spans = [span for span in ended.transcript.spans.records() if span["kind"] == "model"]
    tokens = [span["input_tokens"] for span in spans]
    assert tokens == [2, 2]
    assert ended.transcript.metrics["input_tokens"] == 4
    (member,) = ended.reported
    assert (member.spec.component_id, member.spec.input) == ("answer", "x")
    assert member.transcript.content == member.joined_deltas == "inner words"
    assert member.transcript.metrics["input_tokens"] == 2


async def test_answer_of_a_subgraph_is_streamed() -> None:
    ended = await run(f"{MODULE}:with_subgraph")
    assert ended.transcript.content == ended.joined_deltas == "words of the subgraph"
    assert sum(not isinstance(event, ProgressReported) for event in ended.events) > 1


async def test_answer_that_a_node_does_not_return_is_not_content() -> None:
    ended = await run(f"{MODULE}:dropping")
    assert ended.transcript.content == "better than a draft"
    assert said(ended)[1:] == [("assistant", "better than a draft")]
