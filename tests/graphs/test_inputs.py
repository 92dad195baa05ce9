"""Inputs of graphs of LangGraph, their stores, their custom events, and branches at one time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from agentctl.errors import ValidationFailed
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.runners import langgraph_input
from agentctl.runtime.runners.declared_types import build_adapter
from agentctl.runtime.runners.langgraph import LangGraphRunner
from agentctl.runtime.runners.library_runner import RunnerOptions
from tests.conformance.server import ConformanceServer, run_component, stream_component
from tests.graphs.test_members import call
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment

EMAIL = {"email_input": {"author": "ann", "subject": "hi"}}


async def test_graph_gets_the_object(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        run = dict((await operations.runs.create("agent", "emails", RunRequest(input=EMAIL))).value)
        as_text = await run_component(operations, "agent", "emails", json.dumps(EMAIL))
    assert (run["status"], run["content"]) == ("COMPLETED", "answered ann after 0")
    assert as_text["content"] == run["content"]


async def test_object_and_message_are_both_given(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        given = {"language": "de", "messages": [{"role": "user", "content": "before"}]}
        both = RunRequest("hello", session_id="both", input=given)
        run = dict((await operations.runs.create("agent", "profile", both)).value)
        later = RunRequest(session_id="both", input={"language": "en", "tone": "kind"})
        second = dict((await operations.runs.create("agent", "profile", later)).value)
        order = RunRequest("bob", input={"product": "tea"})
        ordered = dict((await operations.runs.create("agent", "order", order)).value)
        with pytest.raises(ValidationFailed, match="input is required"):
            await run_component(operations, "agent", "order", "bob")
    assert ordered["content"] == "tea for bob"
    assert run["content"] == "de None ['before', 'hello']"
    assert second["content"].startswith("en kind ['hello', \"de None")


async def test_functional_graph_returns_its_new_messages(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        first = await run_component(operations, "agent", "repeated", "one", session_id="repeated")
        second = await run_component(operations, "agent", "repeated", "two", session_id="repeated")
    assert first["content"] == "heard one, 1 messages"
    assert second["content"] == "heard two, 3 messages"


@pytest.mark.parametrize(
    ("agent", "given", "problem"),
    [
        ("emails", {}, "email_input"),
        ("emails", {"email_input": {"author": "ann"}}, "input.email_input"),
        ("emails", {**EMAIL, "emial": 1}, "emial"),
        ("profile", {"language": 3}, "input.language"),
        ("profile", {"language": "de", "messages": [{"rolle": "x"}]}, "input.messages"),
        ("jokes", {"subjects": "cats"}, "input.subjects"),
        ("report", {"sections": [{"body": "no title"}]}, "input.sections"),
        ("remembering", {"preferences": "tea"}, "input.preferences"),
    ],
)
async def test_wrong_object_is_refused_before_the_run(
    graphs: ConformanceServer, agent: str, given: dict[str, object], problem: str
) -> None:
    async with graphs.connect() as operations:
        with pytest.raises(ValidationFailed, match=problem):
            await operations.runs.create(
                "agent", agent, RunRequest(session_id="refused", input=given)
            )


@pytest.mark.parametrize(
    ("agent", "given", "content"),
    [
        ("jokes", {"subjects": ["cats"]}, '{"subjects":["cats"],"jokes":["a joke about cats"]}'),
        ("report", {"topic": "tea"}, '"final_report":"tea"'),
        ("report", {"topic": "tea", "sections": [{"title": "cup"}]}, '"final_report":"cup, tea"'),
        ("summarized", {"topic": "tea"}, '{"summary":"tea"}'),
    ],
)
async def test_keys_of_a_typed_dictionary_are_optional(
    graphs: ConformanceServer, agent: str, given: dict[str, object], content: str
) -> None:
    async with graphs.connect() as operations:
        run = dict((await operations.runs.create("agent", agent, RunRequest(input=given))).value)
    assert run["status"] == "COMPLETED"
    assert content in run["content"]


async def test_agent_with_a_state_schema_takes_a_plain_message(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        plan = json.dumps([call("tell_name", "c1"), {"content": "done"}])
        plain = await run_component(operations, "agent", "remembering", plan)
        named = RunRequest(plan, input={"user_name": "Ann"})
        run = dict((await operations.runs.create("agent", "remembering", named)).value)
    assert plain["status"] == run["status"] == "COMPLETED"
    assert "the name is None" in json.dumps(plain["messages"])
    assert "the name is Ann" in json.dumps(run["messages"])


RESEARCH = {
    "notes": ["n"],
    "classification_decision": {"classification": "respond"},
    "final_report": "cats",
}


@pytest.mark.parametrize(
    ("agent", "message", "output", "content"),
    [
        ("extraction", "Ann Bob", {"subject": "people", "people": ["Ann", "Bob"]}, "I look"),
        ("research", "speak", RESEARCH, "the report is ready"),
        ("research", "go", RESEARCH, json.dumps(RESEARCH, separators=(",", ":"))),
        ("supervisor", '[{"content": "done"}]', None, "done"),
    ],
)
async def test_output_has_the_results_besides_the_messages(
    graphs: ConformanceServer, agent: str, message: str, output: object, content: str
) -> None:
    async with graphs.connect() as operations:
        run = await run_component(operations, "agent", agent, message)
    assert (run["status"], run["output"], run["content"]) == ("COMPLETED", output, content)


async def test_function_of_a_graph_gets_and_returns_an_object(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        request = RunRequest(input={"topic": "cats"})
        run = dict((await operations.runs.create("agent", "written", request)).value)
        letter = dict((await operations.runs.create("agent", "letter", request)).value)
        with pytest.raises(ValidationFailed, match="topik"):
            await operations.runs.create("agent", "letter", RunRequest(input={"topik": "cats"}))
    assert (run["status"], run["output"]) == ("COMPLETED", {"essay": "about cats"})
    assert (letter["status"], letter["output"]) == ("COMPLETED", {"essay": "Dear cats"})


async def test_message_alone_is_refused_if_an_object_is_needed(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        with pytest.raises(ValidationFailed, match="input is required"):
            await run_component(operations, "agent", "emails", "hello")


def test_config_check_names_the_input(graphs: ConformanceServer) -> None:
    deployment = graphs.deployment
    variables = {"MODEL_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "x"}
    checked = run_command(
        "config",
        "check",
        "--config",
        str(deployment.path),
        environment={**base_environment(), **variables},
        folder=deployment.folder,
    )
    assert checked.code == 0, checked.stderr
    assert "agent emails: its runs need the object input (email_input)" in checked.stderr
    assert "agent supervisor" not in checked.stderr


async def test_store_of_a_graph_is_kept_between_sessions(graphs: ConformanceServer) -> None:
    async with graphs.connect("store-ann") as ann, graphs.connect("store-bob") as bob:
        first = await run_component(ann, "agent", "memory", "likes cats")
        second = await run_component(ann, "agent", "memory", "likes dogs")
        other = await run_component(bob, "agent", "memory", "hello")
    assert [first["content"], second["content"], other["content"]] == [
        "nothing", "likes cats", "nothing",
    ]  # fmt: skip


async def test_graph_without_a_store_gets_that_of_its_user(graphs: ConformanceServer) -> None:
    async with graphs.connect("notes-ann") as ann, graphs.connect("notes-bob") as bob:
        contents = [
            (await run_component(user, "agent", agent, text))["content"]
            for user, agent, text in (
                (ann, "notes", "likes cats"),
                (ann, "notes", "likes tea"),
                (ann, "notes", "cats?"),
                (bob, "notes", "cats"),
                (bob, "shared_notes", "all read this"),
                (ann, "shared_notes", "read"),
                (ann, "items", "go"),
                (bob, "items", "go"),
            )
        ]
        off = await run_component(ann, "agent", "no_notes", "hello")
    assert contents == [
        "nothing", "likes cats", "likes cats,likes tea", "nothing", "nothing", "all read this",
        "notes/cats? notes/likes cats notes/likes tea", "notes/cats",
    ]  # fmt: skip
    assert (off["status"], off["error"]["code"]) == ("ERROR", "AGENT_FAILED")


async def test_tools_of_an_agent_use_the_store(graphs: ConformanceServer) -> None:
    async with graphs.connect("info-ann") as ann, graphs.connect("info-bob") as bob:
        look = json.dumps([call("get_user_info", "c1"), {"content": "done"}])
        change = call("save_user_info", "c1", user_info={"name": "Ann"})
        saved = json.dumps([change, {"content": "done"}])
        runs = [
            await run_component(user, "agent", "info", text)
            for user, text in ((ann, look), (ann, saved), (ann, look), (bob, look))
        ]
    results = [run["tools"][0]["result"] for run in runs]
    assert results == [
        "Unknown user", "Successfully saved user info.", "{'name': 'Ann'}", "Unknown user",
    ]  # fmt: skip


async def test_cancelled_run_writes_nothing_more(graphs: ConformanceServer) -> None:
    async with graphs.connect("late") as operations:

        async def list_items() -> str:
            return str((await run_component(operations, "agent", "items", "go"))["content"])

        request = RunRequest("go", session_id="late", background=True)
        run_id = (await operations.runs.create("agent", "late", request)).value["run_id"]
        async with asyncio.timeout(PATIENCE):
            while await list_items() == "nothing":
                await asyncio.sleep(0.05)
            cancel = CancelRequest(session_id="late", wait=30)
            ended = await operations.runs.cancel("agent", "late", run_id, cancel)
        assert ended.value["cancel"] == "stopped"
        assert await list_items() == "late/first"


async def test_request_configures_what_the_operator_declares(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:

        async def run(agent: str, message: str | None = None, **given: Any) -> dict[str, Any]:
            request = RunRequest(message, input=given or None)
            return dict((await operations.runs.create("agent", agent, request)).value)

        chosen = {"model": "large", "depth": 3}
        contents = [
            (await run(*each[0], **each[1]))["content"]
            for each in (
                (("configured", "go"), {"configurable": chosen}),
                (("configured", "go"), {"configurable": {"depth": 2}}),
                (("configured", "go"), {}),
                # A message is no configuration.
                (("configured", json.dumps({"configurable": chosen})), {}),
            )
        ]
        task = await run("limited", topic="tea", configurable={"tries": 2})
        as_text = json.dumps({"topic": "tea", "configurable": {"tries": 5}})
        text = await run_component(operations, "agent", "limited", as_text)
    assert contents == [
        f"('large', 3, 'of the operator') {chosen} 1",
        "('small', 2, 'of the operator') {'depth': 2} 1",
        *["('small', 1, 'of the operator') {} 1"] * 2,
    ]
    assert task["output"] == {"tries": 2, "inputs": {"topic": "tea"}}
    assert text["output"] == {"tries": 5, "inputs": {"topic": "tea"}}


@pytest.mark.parametrize(
    ("agent", "given", "problem"),
    [
        ("configured", {"configurable": {"secret": "x"}}, "secret"),
        ("configured", {"configurable": {"thread_id": "other"}}, "thread_id"),
        ("configured", {"configurable": {"model": "huge"}}, "input.configurable.model"),
        ("configured", {"configurable": {"depth": "3"}}, "input.configurable.depth"),
        ("configured", {"configurable": [1]}, "input.configurable"),
        ("configured", {"configurabel": {"depth": 3}}, "configurabel"),
        ("limited", {"topic": "tea"}, "configurable"),
        ("limited", {"configurable": {}}, "tries"),
        ("limited", {"configurable": {"tries": 0}}, "input.configurable.tries"),
        ("limited", {"configurable": {"tries": 13}}, "input.configurable.tries"),
        ("profile", {"language": "de", "configurable": {}}, "configurable"),
    ],
)
async def test_wrong_configuration_is_refused_before_the_run(
    graphs: ConformanceServer, agent: str, given: dict[str, Any], problem: str
) -> None:
    async with graphs.connect() as operations:
        with pytest.raises(ValidationFailed) as refused:
            await operations.runs.create("agent", agent, RunRequest("go", input=given))
    assert problem in refused.value.detail
    assert "secret of" not in refused.value.detail


@dataclass
class Needed:
    depth: int
    model: str = "small"


@pytest.mark.parametrize(
    ("context", "names", "problem"),
    [
        (Needed, ("modle", "depth"), "names modle, which a request cannot set"),
        (Needed, ("model",), "needs depth, which is not configurable"),
        (Needed, (), "needs a context of the type Needed"),
        (None, ("model",), "needs a graph whose context_schema"),
    ],
)
def test_wrong_names_are_configuration_errors(
    context: Any, names: tuple[str, ...], problem: str
) -> None:
    graph = StateGraph(MessagesState, context_schema=context)
    graph.add_node("node", lambda state: state)
    graph.add_edge(START, "node")
    with pytest.raises(UnusableObject) as wrong:
        LangGraphRunner(graph, RunnerOptions(configurable=names))
    assert problem in wrong.value.what


def test_graphs_with_one_state_read_its_schema_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class State(MessagesState):
        topic: str

    read_types = []

    def build_and_note(annotation: Any) -> Any:
        read_types.append(annotation)
        return build_adapter(annotation)

    def build_graph() -> Any:
        graph = StateGraph(State)
        graph.add_node("node", lambda state: state)
        graph.add_edge(START, "node")
        return graph.compile()

    monkeypatch.setattr(langgraph_input, "build_adapter", build_and_note)
    first = langgraph_input.read_graph_input(build_graph(), None).schema
    first["properties"].clear()
    second = langgraph_input.read_graph_input(build_graph(), None).schema

    # Each graph has a copy: what one caller changes does not reach the other.
    assert set(second["properties"]) == {"messages", "topic"}
    assert [each for each in read_types if each is State] == [State]


async def test_custom_events_are_progress(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        events = await stream_component(operations, "custom", "go")
    progress = [
        (event["text"], event["fraction"]) for event in events if event["event"] == "RunProgress"
    ]
    # Events of the dispatcher take another way than those of the writer.
    assert sorted(progress, key=str) == sorted(
        [("reading", None), ('{"step":2}', None), (None, 0.75), ('indexed: {"files":3}', None)],
        key=str,
    )


async def test_pieces_of_parallel_branches_name_their_message(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        events = await stream_component(operations, "parallel", "go")
        run = dict((await operations.runs.get(events[0]["run_id"])).value)
    pieces = [event for event in events if event["event"] == "RunContent"]
    assert {event["message_id"] for event in pieces} == {event["message_id"] for event in pieces}
    texts = {}
    for event in pieces:
        texts[event["message_id"]] = texts.get(event["message_id"], "") + event["content"]
    branches = [" ".join(f"{name}{number}" for number in range(30)) for name in ("joke", "poem")]
    assert sorted(text.strip() for text in texts.values()) == branches
    assert run["content"] == "\n\n".join(branches)
    assert {event["node"] for event in pieces if "node" in event} <= {"joke", "poem"}
