"""Graphs of LangGraph for the tests of their messages; models are on the endpoint at `url`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.runtime.sample_frameworks import http_client

url = ""
"""Base URL of the model endpoint; the tests set it."""


def build_chat() -> Any:
    """Build a model that repeats the message."""
    options: dict[str, Any] = {"base_url": url, "api_key": "not-needed", "stream_usage": True}
    return ChatOpenAI(model="echo", http_async_client=http_client(), **options)


async def ask(text: str, config: RunnableConfig) -> Any:
    return await build_chat().ainvoke(text, config)


class Joined(TypedDict):
    """A state whose messages are not converted."""

    messages: Annotated[list[Any], operator.add]


def build(*nodes: Callable[..., Any], state: Any = MessagesState, parallel: bool = False) -> Any:
    """Build a graph of nodes, one after the other or at the same time."""
    graph = StateGraph(state)
    last = START
    for node in nodes:
        graph.add_node(node.__name__, node)
        graph.add_edge(START if parallel else last, node.__name__)
        last = node.__name__
    return graph.compile()


def build_answer(messages: Any, **options: Any) -> Any:
    def answer(state: Any) -> dict[str, Any]:
        return {"messages": messages}

    return build(answer, **options)


def tuples() -> Any:
    return build_answer([("ai", "hello")])


def one_tuple() -> Any:
    return build_answer(("ai", "hello"))


def dicts() -> Any:
    return build_answer([{"role": "assistant", "content": "hello"}])


def one_dict() -> Any:
    return build_answer({"role": "ai", "content": "hello"})


def one_message() -> Any:
    return build_answer(AIMessage("hello"))


def not_converted() -> Any:
    return build_answer([("ai", "hello")], state=Joined)


def tool_results_as_dicts() -> Any:
    def model(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].type == "tool":
            return {"messages": [("ai", "sent")]}
        call = {"id": "call-1", "name": "mail", "args": {"to": "bob"}}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def tools(state: MessagesState) -> dict[str, Any]:
        result = {"role": "tool", "content": "mail sent", "tool_call_id": "call-1"}
        return {"messages": [result]}

    def choose(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", choose, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile()


def call_without_result() -> Any:
    call = {"id": "call-1", "name": "ResearchComplete", "args": {}}
    return build_answer([AIMessage("done", tool_calls=[call])])


def branches() -> Any:
    """Return a graph with three nodes that call a model at the same time."""

    def build_branch(name: str) -> Callable[..., Any]:
        async def branch(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            text = " ".join(f"{name}{number}" for number in range(40))
            return {"messages": [await ask(text, config)]}

        branch.__name__ = name
        return branch

    return build(*(build_branch(name) for name in "abc"), parallel=True)


class Route(BaseModel):
    """A structured answer."""

    step: str


def routing() -> Any:
    """Return a graph with a structured answer and a called graph; both are inner ones."""

    async def route(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        chat = build_chat().with_structured_output(Route.model_json_schema(), method="json_schema")
        await chat.ainvoke('{"step": "poem"}', config)
        return {}

    async def inner(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await ask("inner words", config)]}

    called = build(inner)

    async def answer(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        await called.ainvoke({"messages": [("user", "x")]}, config)
        return {"messages": [await ask("the poem", config)]}

    return build(route, answer)


def with_subgraph() -> Any:
    """Return a graph with another graph as a node."""

    async def inner(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await ask("words of the subgraph", config)]}

    graph = StateGraph(MessagesState)
    graph.add_node("inner", build(inner))
    graph.add_edge(START, "inner")
    return graph.compile()


def dropping() -> Any:
    """Return a graph with an answer of a model that its node does not return."""

    async def answer(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        draft = await ask("a draft", config)
        return {"messages": [("ai", f"better than {draft.content}")]}

    return build(answer)
