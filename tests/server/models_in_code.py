"""Agents of each library whose models are those of the configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from agents import Agent as OpenAIAgent
from agents import function_tool
from agno.agent import Agent as AgnoAgent
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent

from agentctl import agno, langchain, openai_agents, pydantic_ai


class Order(BaseModel):
    """An order."""

    article: str
    amount: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def build_langgraph(model: str) -> Any:
    chosen = {"temperature": 0.5, "max_tokens": 77} if model == "settings" else {}
    return create_agent(langchain.ChatModel(model=model, **chosen), [add], system_prompt="Be brief")


def build_pydantic_ai(model: str) -> Any:
    chosen: Any = {"temperature": 0.5, "max_tokens": 77} if model == "settings" else None
    return PydanticAgent(
        pydantic_ai.Model(model, settings=chosen), tools=[add], instructions="Be brief"
    )


def build_agno(model: str) -> Any:
    chosen: Any = {"temperature": 0.5, "max_tokens": 77} if model == "settings" else {}
    return AgnoAgent(
        model=agno.Model(id=model, **chosen), tools=[add], instructions="Be brief", telemetry=False
    )


def build_openai_agents(model: str) -> Any:
    from agents import ModelSettings

    chosen = ModelSettings(temperature=0.5, max_tokens=77) if model == "settings" else None
    return OpenAIAgent(
        name="helper",
        model=openai_agents.Model(model),
        model_settings=chosen or ModelSettings(),
        tools=[function_tool(add, failure_error_function=None)],
        instructions="Be brief",
    )


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the factory of an agent, such as `agno__plan`: its library and its model."""
    library, _, model = name.partition("__")
    if f"build_{library}" not in globals():
        raise AttributeError(name)
    build = globals()[f"build_{library}"]

    def factory() -> Any:
        return build(model)

    async def late_factory() -> Any:
        return build(model)

    # An asynchronous factory is called before the first run: the start of the server cannot check
    # the models that it names.
    return late_factory if model == "missing" else factory


def build_sync_graph() -> Any:
    """A graph whose node is synchronous: it calls its model in a thread."""
    model = langchain.ChatModel(model="echo")
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "answer")
    return graph.compile()


def build_counting_graph() -> Any:
    """A graph whose answer has the pieces of its model, and the tasks that were created meanwhile.

    asyncio numbers tasks without a name.
    """
    model = langchain.ChatModel(model="script")

    async def count_tasks() -> int:
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        return int(task.get_name().removeprefix("Task-"))

    async def answer(state: MessagesState) -> dict[str, Any]:
        first = await count_tasks()
        pieces = 0
        async for _ in model.astream(state["messages"]):
            pieces += 1
        tasks = await count_tasks() - first
        return {"messages": [AIMessage(json.dumps({"pieces": pieces, "tasks": tasks}))]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile()


def build_typed_pydantic_ai() -> Any:
    from pydantic_ai import NativeOutput

    return PydanticAgent(pydantic_ai.Model("echo"), output_type=NativeOutput(Order))


def build_typed_agno() -> Any:
    return AgnoAgent(model=agno.Model(id="echo"), output_schema=Order, telemetry=False)


def build_typed_openai_agents() -> Any:
    return OpenAIAgent(name="typed", model=openai_agents.Model("echo"), output_type=Order)


def build_typed_langgraph() -> Any:
    return create_agent(langchain.ChatModel(model="plan"), [], response_format=Order)
