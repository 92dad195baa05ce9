"""Agents of frameworks for the tests; each function builds a new one for the endpoint at `url`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import agno.db.in_memory
import agno.run
import httpx
import httpx2
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.tools import tool as agno_tool
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from pydantic import SecretStr
from pydantic_ai import Agent, FunctionToolset, ModelRetry
from pydantic_ai import RunContext as Run
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from typing_extensions import TypedDict

from agentctl import RunContext

url = ""
"""Base URL of the model endpoint; the tests set it."""

SECRET = "hunter2"


def http_client() -> httpx2.AsyncClient:
    """Return a client without idle connections.

    Each test has its own event loop, and the clients of the libraries outlive it.
    """
    return httpx2.AsyncClient(limits=httpx2.Limits(max_keepalive_connections=0))


# pydantic-ai


def pydantic_agent(name: str, **options: Any) -> Any:
    provider = OpenAIProvider(base_url=url, api_key="not-needed", http_client=http_client())
    return Agent(OpenAIChatModel(name, provider=provider), **options)


@dataclass
class Deps:
    """Deps of an agent."""

    name: str


def build_deps(context: RunContext) -> Deps:
    return Deps(f"deps of {context.component_id}")


async def build_deps_later(context: RunContext) -> Deps:
    return build_deps(context)


not_a_function = 3


async def who(run: Run[Deps]) -> str:
    """Return the name in the deps."""
    return run.deps.name


async def fail() -> str:
    """Raise an exception."""
    raise ValueError(SECRET)


class Textless:
    """A result whose text cannot be made."""

    def __repr__(self) -> str:
        raise ValueError(SECRET)


async def give() -> Textless:
    """Return an object."""
    return Textless()


def with_deps() -> Any:
    return pydantic_agent("tool:who", deps_type=Deps, tools=[who])


def history() -> Any:
    return pydantic_agent("history", instructions="Be brief.")


def failing_tool() -> Any:
    return pydantic_agent("tool:fail", tools=[fail])


def thinking() -> Any:
    return pydantic_agent("thoughts")


def model_fails() -> Any:
    return pydantic_agent("http-401")


def refusing_once() -> Any:
    """Return an agent that accepts the second answer of its model."""
    answers = 0

    def validate(text: str) -> str:
        nonlocal answers
        answers += 1
        if answers == 1:
            raise ModelRetry("again")
        return text

    agent = pydantic_agent("echo")
    agent.output_validator(validate)
    return agent


class CountedToolset(FunctionToolset[Any]):
    """A toolset that records the tasks that enter and exit it."""

    entered: list[Any] = []  # noqa: RUF012
    exited: list[Any] = []  # noqa: RUF012

    async def __aenter__(self) -> Any:
        self.entered.append(asyncio.current_task())
        return await super().__aenter__()

    async def __aexit__(self, *args: Any) -> Any:
        self.exited.append(asyncio.current_task())
        return await super().__aexit__(*args)


def with_toolset() -> Any:
    return pydantic_agent("echo", toolsets=[CountedToolset()])


# Factories


async def made_later() -> Any:
    await asyncio.sleep(0)
    return history()


closed: list[str] = []


@asynccontextmanager
async def made_for_a_while() -> AsyncIterator[Any]:
    yield graph("echo")
    closed.append("closed")


async def made_of_none() -> Any:
    return None


async def not_decorated() -> AsyncIterator[Any]:
    yield graph("echo")


def for_langgraph_server(config: RunnableConfig) -> Any:
    return graph("echo")


still_closed: Any = made_for_a_while()


def made_of_nothing() -> Any:
    return None


def broken() -> Any:
    raise ValueError("no such place")


# LangGraph


def graph(name: str, *tools: Any, handles_errors: bool = False, **options: Any) -> Any:
    options_of_chat: Any = {"base_url": url, "api_key": "not-needed"}
    chat: Any = ChatOpenAI(model=name, http_async_client=http_client(), **options_of_chat)
    chat = chat.bind_tools(tools) if tools else chat

    async def call(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"], config)]}

    def choose(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    built = StateGraph(MessagesState)
    built.add_node("model", call)
    built.add_edge(START, "model")
    if tools:
        node = ToolNode(tools, handle_tool_errors=True) if handles_errors else ToolNode(tools)
        built.add_node("tools", node)
        built.add_conditional_edges("model", choose, ["tools", END])
        built.add_edge("tools", "model")
    return built.compile(**options)


saver = InMemorySaver()


class LosingModel(ChatOpenAI):
    """A model whose stream loses a cancellation, as `asyncio.wait_for` of Python 3.11 may."""

    async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        while True:
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                if "lost" in parts:
                    raise
                parts.append("lost")
            parts.append("part")
            yield ChatGenerationChunk(message=AIMessageChunk("part "))


parts: list[str] = []
"""The parts of the stream of `LosingModel`, and the loss of a cancellation."""


def losing_a_cancellation() -> Any:
    chat = LosingModel(model="none", api_key=SecretStr("not-needed"))

    async def call(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"], config)]}

    built = StateGraph(MessagesState)
    built.add_node("call", call)
    built.add_edge(START, "call")
    return built.compile()


def graph_history() -> Any:
    return graph("history")


def remembering() -> Any:
    return graph("history", checkpointer=saver)


def remembering_with_tool() -> Any:
    return graph("tool:linger", langchain_tool(linger), checkpointer=saver)


class SlowSaver(InMemorySaver):
    """A checkpointer that needs long to store each superstep after the input."""

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        if metadata["step"] > 0:
            await asyncio.sleep(30)
        return await super().aput(config, checkpoint, metadata, versions)


def remembering_slowly() -> Any:
    saver.storage.clear()
    slow = SlowSaver()
    slow.storage = saver.storage
    slow.writes = saver.writes
    slow.blobs = saver.blobs
    return graph("tool:linger", langchain_tool(linger), checkpointer=slow)


async def linger() -> str:
    """Wait, and stop when cancelled."""
    await asyncio.sleep(30)
    return "late"


async def ignore() -> str:
    """Ignore cancellations until `released` is set."""
    while not released.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await released.wait()
    return "late"


released = asyncio.Event()
"""Ends `ignore`; a test creates it again, for its event loop."""


steps: list[str] = []


def swallows_cancellation() -> Any:
    """Return a graph whose first node swallows its cancellation, and a second node."""

    async def first(state: MessagesState) -> dict[str, Any]:
        steps.append("first")
        await ignore()
        return {}

    async def second(state: MessagesState) -> dict[str, Any]:
        steps.append("second")
        return {"messages": [AIMessage("second")]}

    inner = StateGraph(MessagesState)
    inner.add_node("first", first)
    inner.add_node("second", second)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    subgraph = inner.compile()

    async def call(state: MessagesState) -> Any:
        return await asyncio.shield(asyncio.ensure_future(subgraph.ainvoke(state)))

    built = StateGraph(MessagesState)
    built.add_node("call", call)
    built.add_edge(START, "call")
    return built.compile()


def breaking() -> Any:
    """Return a graph that stops before a node."""
    built = StateGraph(MessagesState)
    built.add_node("ask", lambda state: {})
    built.add_edge(START, "ask")
    return built.compile(checkpointer=InMemorySaver(), interrupt_before=["ask"])


def endless() -> Any:
    built = StateGraph(MessagesState)
    built.add_node("again", lambda state: {})
    built.add_edge(START, "again")
    built.add_edge("again", "again")
    return built.compile().with_config(recursion_limit=20)


def failing_graph_tool() -> Any:
    return graph("tool:fail", langchain_tool(fail))


def textless_graph_tool() -> Any:
    return graph("tool:give", langchain_tool(give))


def model_of_graph_fails() -> Any:
    return graph("http-429")


def blocks() -> Any:
    """Return a graph whose answer has blocks of content."""
    content: list[Any] = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "one "},
        {"type": "text", "text": "two"},
    ]
    built = StateGraph(MessagesState)
    built.add_node("answer", lambda state: {"messages": [AIMessage(content)]})
    built.add_edge(START, "answer")
    return built.compile()


class ThinkingModel(ChatOpenAI):
    """A model that streams its thinking in pieces, before and between its text."""

    async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for thinking, text in (("h", "do"), ("m", "ne")):
            block: list[Any] = [{"type": "thinking", "thinking": thinking}]
            yield ChatGenerationChunk(message=AIMessageChunk(block))
            yield ChatGenerationChunk(message=AIMessageChunk(text))
        yield ChatGenerationChunk(message=AIMessageChunk("", chunk_position="last"))


def thinking_twice() -> Any:
    """Return a graph that calls such a model in two nodes."""
    model = ThinkingModel(model="m", api_key=SecretStr("x"))

    async def answer(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    built = StateGraph(MessagesState)
    built.add_node("first", answer)
    built.add_node("second", answer)
    built.add_edge(START, "first")
    built.add_edge("first", "second")
    return built.compile()


async def greet() -> str:
    """Return a greeting."""
    return "hello"


def graph_with_tool() -> Any:
    return graph("tool:greet", langchain_tool(greet))


def with_context() -> Any:
    """Return a graph with a context of another type."""

    async def answer(state: MessagesState, runtime: Runtime[Deps]) -> dict[str, Any]:
        return {"messages": [AIMessage(runtime.context.name)]}

    built = StateGraph(MessagesState, context_schema=Deps)
    built.add_node("answer", answer)
    built.add_edge(START, "answer")
    return built.compile()


@dataclass
class DefaultContext:
    """A context that can be made without arguments."""

    name: str = "default"


class DefaultKeys(TypedDict, total=False):
    """A context without required keys."""

    name: str


def build_default(context: Any) -> Any:
    async def answer(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
        # LangGraph gives no context in place of an empty one.
        return {"messages": [AIMessage(getattr(runtime.context, "name", "default"))]}

    built = StateGraph(MessagesState, context_schema=context)
    built.add_node("answer", answer)
    built.add_edge(START, "answer")
    return built


def with_default_context() -> Any:
    return build_default(DefaultContext).compile()


def with_default_keys() -> Any:
    return build_default(DefaultKeys).compile()


def not_compiled() -> Any:
    return build_default(DefaultContext)


# agno


def agno_model(name: str) -> Any:
    client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
    return OpenAILike(id=name, base_url=url, api_key="not-needed", http_client=client)


def agno_agent(name: str, **options: Any) -> Any:
    return AgnoAgent(model=agno_model(name), **options)


async def count(run_context: agno.run.RunContext) -> str:
    """Count in the state of the session."""
    state = run_context.session_state or {}
    state["count"] = state.get("count", 0) + 1
    return f"{state['count']} {run_context.metadata}"


def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def paying() -> Any:
    return agno_agent("echo", id="paying", tools=[agno_tool(requires_confirmation=True)(pay)])


def counting() -> Any:
    return agno_agent("tool:count", tools=[count])


def agno_history() -> Any:
    return agno_agent("history")


def agno_remembering() -> Any:
    return agno_agent("history", db=agno.db.in_memory.InMemoryDb(), add_history_to_context=True)


def failing_agno_tool() -> Any:
    return agno_agent("tool:fail", tools=[fail])


def textless_agno_tool() -> Any:
    return agno_agent("tool:give", tools=[give])


def model_of_agno_fails() -> Any:
    return agno_agent("http-500")


async def write_cut_text(messages: Any, info: Any) -> AsyncIterator[str]:
    for piece in ("x \ud83d", "\ude00 y", "\ud83d"):
        yield piece


pydantic_cut: Agent[Any, str] = Agent(FunctionModel(stream_function=write_cut_text))
