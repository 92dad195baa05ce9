"""Agents of libraries for the benchmark of hosted agents.

The file `model_url` next to this module has the URL of the model endpoint.

Each library has an agent with its own client of OpenAI, and one with a model of the configuration.
The modules of a library are imported when its agent is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

URL = Path(__file__).with_name("model_url")
OPTIONS = {"base_url": URL.read_text() if URL.exists() else "", "api_key": "not-needed"}


def langgraph_own() -> Any:
    from langchain_openai import ChatOpenAI

    return build_graph(ChatOpenAI(model="paced", stream_usage=True, **OPTIONS))  # type: ignore[arg-type]


def langgraph_configured() -> Any:
    from agentctl.langchain import ChatModel

    return build_graph(ChatModel(model="paced"))


def build_graph(model: Any) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node(answer)
    graph.add_edge(START, "answer")
    return graph.compile()


def pydantic_ai_own() -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel("paced", provider=OpenAIProvider(**OPTIONS)))


def pydantic_ai_configured() -> Any:
    from pydantic_ai import Agent

    from agentctl.pydantic_ai import Model

    return Agent(Model("paced"))


def agno_own() -> Any:
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike

    return Agent(model=OpenAILike(id="paced", **OPTIONS), telemetry=False)


def agno_configured() -> Any:
    from agno.agent import Agent

    from agentctl.agno import Model

    return Agent(model=Model(id="paced"), telemetry=False)


def openai_agents_own() -> Any:
    from agents import Agent, OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    client = AsyncOpenAI(**OPTIONS)
    return Agent(name="paced", model=OpenAIChatCompletionsModel("paced", openai_client=client))


def openai_agents_configured() -> Any:
    from agents import Agent

    from agentctl.openai_agents import Model

    return Agent(name="paced", model=Model("paced"))
