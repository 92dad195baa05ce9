"""Agents whose code calls models of the configuration from a tool, a thread or another event loop,
and with the options of a library.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

from agents import Agent as OpenAIAgent
from agents import ModelSettings, Runner, function_tool
from agno.agent import Agent as AgnoAgent
from agno.team import Team
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.fallback import FallbackModel

from agentctl import RunContext, agno, langchain, openai_agents, pydantic_ai


class Order(BaseModel):
    """An order."""

    article: str
    amount: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def build_graph(node: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("answer", node)
    graph.add_edge(START, "answer")
    return graph.compile()


# Functions, which have no runner that reports the calls of a library.


async def call_langchain(message: str, context: RunContext) -> str:
    return str((await langchain.ChatModel(model="fast").ainvoke(message)).text)


def call_in_thread(message: str, context: RunContext) -> str:
    return str(langchain.ChatModel(model="fast").invoke(message).text)


async def call_pydantic_ai(message: str, context: RunContext) -> str:
    return (await PydanticAgent(pydantic_ai.Model("fast")).run(message)).output


async def call_agno(message: str, context: RunContext) -> str:
    agent = AgnoAgent(model=agno.Model(id="fast"), telemetry=False)
    return str((await agent.arun(message)).content)


async def call_openai_agents(message: str, context: RunContext) -> str:
    agent = OpenAIAgent(name="inner", model=openai_agents.Model("fast"))
    return str((await Runner.run(agent, message)).final_output)


async def call_fallback(message: str, context: RunContext) -> str:
    return str((await langchain.ChatModel(model="fallback").ainvoke(message)).text)


async def call_again(message: str, context: RunContext) -> str:
    for _ in range(30):
        await langchain.ChatModel(model="plan").ainvoke(message)
    return "done"


# The same models in an event loop of the code's own. `run_sync` takes the one of its thread, and
# would leave another one open.


def call_pydantic_ai_in_loop(message: str, context: RunContext) -> str:
    with asyncio.Runner() as runner:
        runner.get_loop()
        return PydanticAgent(pydantic_ai.Model("fast")).run_sync(message).output


def call_openai_agents_in_loop(message: str, context: RunContext) -> str:
    agent = OpenAIAgent(name="inner", model=openai_agents.Model("fast"))
    with asyncio.Runner() as runner:
        runner.get_loop()
        return str(Runner.run_sync(agent, message).final_output)


def call_langchain_in_loop(message: str, context: RunContext) -> str:
    return str(asyncio.run(langchain.ChatModel(model="fast").ainvoke(message)).text)


def call_agno_in_thread(message: str, context: RunContext) -> str:
    agent = AgnoAgent(model=agno.Model(id="fast"), telemetry=False)
    return str(agent.run(message).content)


# Tools that call another model than their agent.


async def ask(question: str) -> str:
    """Ask an expert."""
    return str((await langchain.ChatModel(model="fast").ainvoke(question)).text)


async def ask_pydantic_ai(question: str) -> str:
    """Ask an expert."""
    return (await PydanticAgent(pydantic_ai.Model("fast")).run(question)).output


async def ask_agno(question: str) -> str:
    """Ask an expert."""
    agent = AgnoAgent(model=agno.Model(id="fast"), telemetry=False)
    return str((await agent.arun(question)).content)


async def ask_openai_agents(question: str) -> str:
    """Ask an expert."""
    agent = OpenAIAgent(name="inner", model=openai_agents.Model("fast"))
    return str((await Runner.run(agent, question)).final_output)


def asking_langgraph() -> Any:
    return create_agent(langchain.ChatModel(model="plan"), [ask, ask_pydantic_ai])


def asking_pydantic_ai() -> Any:
    return PydanticAgent(pydantic_ai.Model("plan"), tools=[ask, ask_pydantic_ai])


def asking_agno() -> Any:
    return AgnoAgent(model=agno.Model(id="plan"), tools=[ask, ask_agno], telemetry=False)


def asking_openai_agents() -> Any:
    tools = [function_tool(ask), function_tool(ask_openai_agents)]
    return OpenAIAgent(name="outer", model=openai_agents.Model("plan"), tools=tools)


# Factories whose agents are known when they are opened.


async def later_langgraph() -> Any:
    return asking_langgraph()


async def later_pydantic_ai() -> Any:
    return asking_pydantic_ai()


async def later_agno() -> Any:
    return asking_agno()


async def later_openai_agents() -> Any:
    return asking_openai_agents()


def agno_team() -> Any:
    member = AgnoAgent(id="member", name="member", model=agno.Model(id="fast"), telemetry=False)
    return Team(model=agno.Model(id="plan"), members=[member], telemetry=False)


# LangChain


def native_output() -> Any:
    model = langchain.ChatModel(model="plan")
    return create_agent(model, [], response_format=ProviderStrategy(Order))


def schema_output() -> Any:
    model = langchain.ChatModel(model="plan")

    async def answer(state: MessagesState) -> dict[str, Any]:
        typed = model.with_structured_output(Order, method="json_schema", include_raw=True)
        result = await typed.ainvoke(state["messages"])
        return {"messages": [AIMessage(result["parsed"].model_dump_json())]}

    return build_graph(answer)


def two_models() -> Any:
    """A graph whose node calls a second model before the answer of the first one has ended."""
    first = langchain.ChatModel(model="fast")
    second = langchain.ChatModel(model="plan")

    async def answer(state: MessagesState) -> dict[str, Any]:
        whole = ""
        async for piece in first.astream(state["messages"]):
            if not whole:
                await second.ainvoke(state["messages"])
            whole += piece.text
        return {"messages": [AIMessage(whole)]}

    return build_graph(answer)


def synchronous_node() -> Any:
    model = langchain.ChatModel(model="half")
    return build_graph(lambda state: {"messages": [model.invoke(state["messages"])]})


def left_calls() -> Any:
    """A graph whose node cancels one call after its first piece, and reads no more of another."""
    model = langchain.ChatModel(model="half")

    async def answer(state: MessagesState) -> dict[str, Any]:
        arrived = asyncio.Event()

        async def read() -> None:
            async for _ in model.astream(state["messages"]):
                arrived.set()

        reading = asyncio.create_task(read())
        await arrived.wait()
        reading.cancel()
        await asyncio.wait({reading})
        async with aclosing(model.astream(state["messages"])) as pieces:
            async for _ in pieces:
                break
        return {"messages": [AIMessage("enough")]}

    return build_graph(answer)


def roles() -> Any:
    model = langchain.ChatModel(model="history")

    async def answer(state: MessagesState) -> dict[str, Any]:
        given = [
            ChatMessage(role="system", content="s"),
            ChatMessage(role="assistant", content="a"),
        ]
        return {"messages": [await model.ainvoke([*given, *state["messages"]])]}

    return build_graph(answer)


def token_count() -> Any:
    model = langchain.ChatModel(model="plan")

    async def answer(state: MessagesState) -> dict[str, Any]:
        count = model.get_num_tokens_from_messages([HumanMessage("some words " * 40)])
        return {"messages": [AIMessage(str(count + model.get_num_tokens("some words")))]}

    return build_graph(answer)


def remove(path: str = "/") -> str:
    """Remove a folder."""
    return f"removed {path}"


def cut_arguments() -> Any:
    model = langchain.ChatModel(model="cut").bind_tools([remove])

    async def answer(state: MessagesState) -> dict[str, Any]:
        whole: Any = None
        async for piece in model.astream(state["messages"]):
            whole = piece if whole is None else whole + piece
        return {"messages": [AIMessage(json.dumps([call["args"] for call in whole.tool_calls]))]}

    return build_graph(answer)


# Options that the configuration does not have.


def options_langgraph() -> Any:
    model = langchain.ChatModel(model="plan")
    bound = model.bind_tools([add], parallel_tool_calls=False, frequency_penalty=0.5)

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    return build_graph(answer)


def options_pydantic_ai() -> Any:
    settings: Any = {"parallel_tool_calls": False, "frequency_penalty": 0.5}
    return PydanticAgent(pydantic_ai.Model("plan"), tools=[add], model_settings=settings)


def options_openai_agents() -> Any:
    settings = ModelSettings(
        parallel_tool_calls=False, frequency_penalty=0.5, extra_args={"seed": 3, "stop": ["END"]}
    )
    model = openai_agents.Model("plan")
    return OpenAIAgent(name="a", model=model, tools=[function_tool(add)], model_settings=settings)


# Failures that the libraries handle.


def fallback_of_pydantic_ai() -> Any:
    models = FallbackModel(pydantic_ai.Model("refuse"), pydantic_ai.Model("fast"))
    return PydanticAgent(models)


def no_fallback_of_pydantic_ai() -> Any:
    return PydanticAgent(FallbackModel(pydantic_ai.Model("refuse"), pydantic_ai.Model("refuse")))


def retry_of_agno() -> Any:
    model = agno.Model(id="flaky", retries=1, delay_between_retries=0)
    return AgnoAgent(model=model, telemetry=False)


def json_mode_of_agno() -> Any:
    model = agno.Model(id="plan")
    return AgnoAgent(model=model, output_schema=Order, use_json_mode=True, telemetry=False)


def json_mode_of_langchain() -> Any:
    model = langchain.ChatModel(model="plan").bind(response_format={"type": "json_object"})

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return build_graph(answer)


def schema_of_agno() -> Any:
    schema = {"name": "order", "schema": Order.model_json_schema()}
    asked = {"type": "json_schema", "json_schema": schema}
    return AgnoAgent(model=agno.Model(id="fast"), output_schema=asked, telemetry=False)
