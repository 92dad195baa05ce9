"""Graphs of LangGraph for the tests of their messages; models are on the endpoint at `url`."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from tests.kit.conditions import PATIENCE
from tests.runtime.sample_frameworks import http_client

url = ""
"""Base URL of the model endpoint; the tests set it."""


def build_chat(name: str = "echo") -> Any:
    """Build a model; by default one that repeats the message."""
    options: dict[str, Any] = {"base_url": url, "api_key": "not-needed", "stream_usage": True}
    return ChatOpenAI(model=name, http_async_client=http_client(), **options)


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


class Order:
    """The order in which models that answer at the same time send their pieces.

    Args:
        shown: returns the published text so far.
        steps: `NAME:PIECE`, `NAME:end`, `shown:TEXT` (this text is published), or `block` and
            `unblock` (pieces between them are sent while nothing can be read).
    """

    def __init__(self, shown: Callable[[], str], steps: list[str]) -> None:
        self._shown = shown
        self._steps = steps
        self._lock = threading.Lock()

    def pieces(self, name: str) -> list[str]:
        steps = [step.partition(":") for step in self._steps]
        return [piece for owner, _, piece in steps if owner == name and piece != "end"]

    def take(self, step: str) -> None:
        """Wait for the turn of a step."""
        deadline = time.monotonic() + PATIENCE
        while not self.is_next(step):
            assert time.monotonic() < deadline, f"{step} waits for {self._steps}"
            time.sleep(0.002)

    def is_next(self, step: str) -> bool:
        """Return True, and go on, if it is the turn of a step."""
        with self._lock:
            kind, _, text = self._steps[0].partition(":")
            if kind == "shown" and self._shown().startswith(text):
                del self._steps[0]
            if self._steps[0] != step:
                return False
            del self._steps[0]
            return True

    async def block(self) -> None:
        """Let nothing be read between the steps `block` and `unblock`."""
        if "block" in self._steps:
            while not self.is_next("block"):
                await asyncio.sleep(0.002)
            self.take("unblock")


order = Order(str, [])
"""The order of the graph `ordered`; the tests set it."""


class OrderedChat(BaseChatModel):
    """A model that sends its pieces in their order."""

    name: str

    @property
    def _llm_type(self) -> str:
        return "ordered"

    def _generate(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        for piece in order.pieces(self.name):
            order.take(f"{self.name}:{piece}")
            yield ChatGenerationChunk(message=AIMessageChunk(piece))


def ordered() -> Any:
    """Return a graph with two nodes that answer at the same time, in the order `order`."""

    def build_node(name: str) -> Callable[..., Any]:
        def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            answer = OrderedChat(name=name).invoke("x", config)
            order.take(f"{name}:end")
            return {"messages": [answer]}

        node.__name__ = name
        return node

    async def reader(state: MessagesState) -> dict[str, Any]:
        await order.block()
        return {}

    return build(build_node("left"), build_node("right"), reader, parallel=True)


def structured() -> Any:
    """Return a graph with a structured answer, which the message describes."""

    async def route(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        schema = Route.model_json_schema()
        chat = build_chat("script").with_structured_output(schema, method="json_schema")
        await chat.ainvoke(state["messages"], config)
        return {}

    return build(route)


def summarizing() -> Any:
    """Return an agent that replaces earlier messages by a summary."""
    summary = SummarizationMiddleware(
        build_chat(),
        trigger=("messages", 3),
        keep=("messages", 1),
        summary_prompt="Summary of {messages}",
    )
    return create_agent(build_chat(), middleware=[summary])


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
