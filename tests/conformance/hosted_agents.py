"""The same agents in every kind, for the conformance tests. The server imports this module.

Each kind has the agents of `tests.conformance.server.AGENTS`; their models are those of the stub
endpoint at `MODEL_URL` (tests/kit/model_server.py).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import agents
import agno.run
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team as AgnoTeam
from agno.tools import tool as agno_tool
from agno.workflow import Step as AgnoStep
from agno.workflow import Workflow as AgnoWorkflow
from hosted_tools import Total, add, block, describe, pay, start_task, stubborn, wait
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext as PydanticContext
from pydantic_ai import Tool as PydanticTool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import Output, RunContext, ToolCompleted, ToolStarted, Usage

URL = os.environ["MODEL_URL"]

# Functions


async def function_echo(message: str, context: RunContext) -> str:
    context.usage(input_tokens=len(message.split()), output_tokens=len(message.split()))
    return message


async def function_history(message: str, context: RunContext) -> str:
    said = [[each["role"], each["content"]] for each in context.history]
    return json.dumps([*said, ["user", message]])


async def function_trickle(message: str) -> str:
    await asyncio.sleep(600)
    return message


async def function_tool(message: str) -> str:
    return str(add(**json.loads(message)))


async def function_stubborn(message: str) -> str:
    return await stubborn(**json.loads(message))


async def function_block(message: str) -> str:
    return await asyncio.to_thread(block, **json.loads(message))


async def function_wait(message: str) -> str:
    return await wait()


async def function_started(message: str) -> str:
    return await start_task(**json.loads(message))


async def function_hang(message: str) -> str:
    return await wait()


async def function_context(message: str, context: RunContext) -> str:
    return describe(context)


async def function_failing(message: str) -> str:
    raise RuntimeError("secret of the agent")


async def function_output(message: str) -> Total:
    return Total.model_validate_json(message)


async def function_pay(message: str, context: RunContext) -> str:
    decision = await context.approve("pay", json.loads(message), policy="user")
    if not decision:
        return f"rejected: {decision.note}"
    approved = decision.arguments
    receipt: str = await context.step("pay", pay, approved["amount"], approved["to"])
    heard = [sent.text for sent in await context.messages()]
    return "\n".join([receipt, *heard])


async def function_calls(message: str, context: RunContext) -> str:
    async def call() -> str:
        decision = await context.approve("pay", json.loads(message), policy="user")
        if not decision:
            return "rejected"
        approved = decision.arguments
        return str(await context.step("pay", pay, approved["amount"], approved["to"]))

    return " | ".join(await asyncio.gather(call(), call()))


# Generators


async def generator_echo(message: str, context: RunContext) -> AsyncIterator[Any]:
    words = message.split(" ")
    for index, word in enumerate(words):
        yield word if index == 0 else f" {word}"
    yield Usage(input_tokens=len(words), output_tokens=len(words))


async def generator_history(message: str, context: RunContext) -> AsyncIterator[Any]:
    yield await function_history(message, context)


async def generator_trickle(message: str) -> AsyncIterator[Any]:
    while True:
        yield "word "
        await asyncio.sleep(0.02)


async def generator_tool(message: str) -> AsyncIterator[Any]:
    arguments = json.loads(message)
    yield ToolStarted("call-1", "add", arguments)
    total = add(**arguments)
    yield ToolCompleted("call-1", total)
    yield str(total)


async def generator_stubborn(message: str) -> AsyncIterator[Any]:
    arguments = json.loads(message)
    yield ToolStarted("call-1", "stubborn", arguments)
    yield ToolCompleted("call-1", await stubborn(**arguments))


async def generator_block(message: str) -> AsyncIterator[Any]:
    arguments = json.loads(message)
    yield ToolStarted("call-1", "block", arguments)
    yield ToolCompleted("call-1", await asyncio.to_thread(block, **arguments))


async def generator_wait(message: str) -> AsyncIterator[Any]:
    yield ToolStarted("call-1", "wait", {})
    yield ToolCompleted("call-1", await wait())


async def generator_started(message: str) -> AsyncIterator[Any]:
    yield ToolStarted("call-1", "start_task", {})
    yield ToolCompleted("call-1", await function_started(message))


async def generator_hang(message: str) -> AsyncIterator[Any]:
    yield await wait()


async def generator_context(message: str, context: RunContext) -> AsyncIterator[Any]:
    yield describe(context)


async def generator_failing(message: str) -> AsyncIterator[Any]:
    yield "almost "
    raise RuntimeError("secret of the agent")


async def generator_output(message: str) -> AsyncIterator[Any]:
    yield message
    yield Output(Total.model_validate_json(message))


async def generator_pay(message: str, context: RunContext) -> AsyncIterator[Any]:
    arguments = json.loads(message)
    yield ToolStarted("call-1", "pay", arguments)
    result = await function_pay(message, context)
    yield ToolCompleted("call-1", result)
    yield result


async def generator_calls(message: str, context: RunContext) -> AsyncIterator[Any]:
    yield await function_calls(message, context)


# pydantic-ai


def build_pydantic_agent(model: str, **options: Any) -> Any:
    provider = OpenAIProvider(base_url=URL, api_key="not-needed")
    return PydanticAgent(OpenAIChatModel(model, provider=provider), **options)


async def show_deps(context: PydanticContext[RunContext]) -> str:
    """Show the context."""
    return describe(context.deps)


pydantic_ai_echo = build_pydantic_agent("echo")
pydantic_ai_history = build_pydantic_agent("history")
pydantic_ai_trickle = build_pydantic_agent("trickle")
pydantic_ai_tool = build_pydantic_agent("tool:add", tools=[add])
pydantic_ai_stubborn = build_pydantic_agent("tool:stubborn", tools=[stubborn])
pydantic_ai_block = build_pydantic_agent("tool:block", tools=[block])
pydantic_ai_wait = build_pydantic_agent("tool:wait", tools=[wait])
pydantic_ai_started = build_pydantic_agent("tool:start_task", tools=[start_task])
pydantic_ai_hang = build_pydantic_agent("hang")
pydantic_ai_context = build_pydantic_agent(
    "tool:show_deps", deps_type=RunContext, tools=[show_deps]
)
pydantic_ai_failing = build_pydantic_agent("http-500")
pydantic_ai_output = build_pydantic_agent("tool:final_result", output_type=Total)
pydantic_ai_pay = build_pydantic_agent(
    "tool:pay", tools=[PydanticTool(pay, requires_approval=True)]
)
pydantic_ai_calls = build_pydantic_agent(
    "tools:pay", tools=[PydanticTool(pay, requires_approval=True)]
)


async def factory_pay() -> Any:
    """Build an agent when the server opens it."""
    return pydantic_ai_pay


# LangGraph


def build_chat(model: str) -> Any:
    """Build a model with its own connections.

    LangChain would share those of all models of a process, in which each server has an event loop.
    """
    return ChatOpenAI(
        model=model,
        base_url=URL,
        api_key="not-needed",
        stream_usage=True,
        http_async_client=DefaultAsyncHttpxClient(),
    )


def build_graph(model: str, *tools: BaseTool, checkpointer: Any = None) -> Any:
    chat = build_chat(model)
    if tools:
        chat = chat.bind_tools(tools)

    async def call_model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"], config)]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_edge(START, "model")
    if tools:
        graph.add_node("tools", ToolNode(tools))
        graph.add_conditional_edges("model", choose_next_node, ["tools", END])
        graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


def choose_next_node(state: MessagesState) -> str:
    return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END


class TotalState(MessagesState):
    structured_response: Total


def build_structured_graph(checkpointer: Any = None) -> Any:
    def parse(state: TotalState) -> dict[str, Any]:
        message = str(state["messages"][-1].content)
        return {"structured_response": Total.model_validate_json(message)}

    graph = StateGraph(TotalState)
    graph.add_node("parse", parse)
    graph.add_edge(START, "parse")
    return graph.compile(checkpointer=checkpointer)


@langchain_tool
async def show_config(config: RunnableConfig) -> str:
    """Show the context."""
    return describe(config["configurable"]["run_context"])


langchain_add = langchain_tool(add)
langchain_stubborn = langchain_tool(stubborn)
langchain_block = langchain_tool(block)
langchain_wait = langchain_tool(wait)
langchain_start_task = langchain_tool(start_task)
langchain_pay = langchain_tool(pay)


def build_paying_graph(model: str, checkpointer: Any = None) -> Any:
    chat = build_chat(model)
    middleware: Any = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    return create_agent(
        chat, tools=[langchain_pay], middleware=[middleware], checkpointer=checkpointer
    )


def build_graphs(prefix: str, build_checkpointer: Callable[[], Any]) -> dict[str, Any]:
    graphs = {
        "echo": build_graph("echo", checkpointer=build_checkpointer()),
        "history": build_graph("history", checkpointer=build_checkpointer()),
        "trickle": build_graph("trickle", checkpointer=build_checkpointer()),
        "tool": build_graph("tool:add", langchain_add, checkpointer=build_checkpointer()),
        "stubborn": build_graph(
            "tool:stubborn", langchain_stubborn, checkpointer=build_checkpointer()
        ),
        "block": build_graph("tool:block", langchain_block, checkpointer=build_checkpointer()),
        "wait": build_graph("tool:wait", langchain_wait, checkpointer=build_checkpointer()),
        "started": build_graph(
            "tool:start_task", langchain_start_task, checkpointer=build_checkpointer()
        ),
        "hang": build_graph("hang", checkpointer=build_checkpointer()),
        "context": build_graph("tool:show_config", show_config, checkpointer=build_checkpointer()),
        "failing": build_graph("http-500", checkpointer=build_checkpointer()),
        "output": build_structured_graph(checkpointer=build_checkpointer()),
        "pay": build_paying_graph("tool:pay", checkpointer=build_checkpointer()),
        "calls": build_paying_graph("tools:pay", checkpointer=build_checkpointer()),
    }
    return {f"{prefix}_{name}": graph for name, graph in graphs.items()}


globals().update(build_graphs("langgraph", lambda: None))
globals().update(build_graphs("langgraph_checkpointer", InMemorySaver))


# agno


async def show_dependencies(run_context: agno.run.RunContext) -> str:
    """Show the context."""
    return describe((run_context.dependencies or {})["run_context"])


def build_agno_agent(model: str, **options: Any) -> Any:
    return AgnoAgent(model=OpenAILike(id=model, base_url=URL, api_key="not-needed"), **options)


def build_agno_team(model: str, **options: Any) -> Any:
    member = build_agno_agent("echo", id="helper", name="helper")
    like = OpenAILike(id=model, base_url=URL, api_key="not-needed")
    return AgnoTeam(model=like, members=[member], **options)


def build_agno_workflow(model: str, **options: Any) -> Any:
    """Build a workflow whose only step is an agent."""
    agent = build_agno_agent(model, name="worker", **options)
    steps = [AgnoStep(name="work", agent=agent, max_retries=0)]
    return AgnoWorkflow(name="line", steps=steps, add_workflow_history_to_steps=True)


def build_agno(prefix: str, build: Callable[..., Any]) -> dict[str, Any]:
    agents = {
        "echo": build("echo"),
        "history": build("history"),
        "trickle": build("trickle"),
        "tool": build("tool:add", tools=[add]),
        "stubborn": build("tool:stubborn", tools=[stubborn]),
        "block": build("tool:block", tools=[block]),
        "wait": build("tool:wait", tools=[wait]),
        "started": build("tool:start_task", tools=[start_task]),
        "hang": build("hang"),
        "context": build("tool:show_dependencies", tools=[show_dependencies]),
        "failing": build("http-500"),
        "output": build("echo", output_schema=Total),
        "pay": build("tool:pay", tools=[agno_tool(requires_confirmation=True)(pay)]),
        "calls": build("tools:pay", tools=[agno_tool(requires_confirmation=True)(pay)]),
    }
    return {f"{prefix}_{name}": agent for name, agent in agents.items()}


globals().update(build_agno("agno_agent", build_agno_agent))
globals().update(build_agno("agno_team", build_agno_team))
globals().update(build_agno("agno_workflow", build_agno_workflow))
agno_team_started = AgnoTeam(
    model=OpenAILike(id="delegate", base_url=URL, api_key="not-needed"),
    members=[build_agno_agent("tool:start_task", id="starter", tools=[start_task])],
)
"""A team whose member starts the task."""


# openai-agents


def build_openai_agent(model: str, *tools: Any, **options: Any) -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0)
    return agents.Agent(
        name=model,
        model=agents.OpenAIChatCompletionsModel(model, client),
        model_settings=agents.ModelSettings(include_usage=True),
        tools=[*tools],
        **options,
    )


@agents.function_tool
async def show_wrapper(wrapper: agents.RunContextWrapper[RunContext]) -> str:
    """Show the context."""
    return describe(wrapper.context)


openai_agents_echo = build_openai_agent("echo")
openai_agents_history = build_openai_agent("history")
openai_agents_trickle = build_openai_agent("trickle")
openai_agents_tool = build_openai_agent("tool:add", agents.function_tool(add))
openai_agents_stubborn = build_openai_agent("tool:stubborn", agents.function_tool(stubborn))
openai_agents_block = build_openai_agent("tool:block", agents.function_tool(block))
openai_agents_wait = build_openai_agent("tool:wait", agents.function_tool(wait))
openai_agents_started = build_openai_agent("tool:start_task", agents.function_tool(start_task))
openai_agents_hang = build_openai_agent("hang")
openai_agents_context = build_openai_agent("tool:show_wrapper", show_wrapper)
openai_agents_failing = build_openai_agent("http-500")
openai_agents_output = build_openai_agent("echo", output_type=Total)
openai_agents_pay = build_openai_agent("tool:pay", agents.function_tool(pay, needs_approval=True))
openai_agents_calls = build_openai_agent(
    "tools:pay", agents.function_tool(pay, needs_approval=True)
)
