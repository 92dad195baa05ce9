"""Agents in code of every kind. The server imports this module.

Their models are those of the endpoint at `FAILURES_MODEL_URL` (`tests.lab.failures.endpoint`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import agents
import openai
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team as AgnoTeam
from agno.tools import tool as agno_tool
from agno.workflow import Step as AgnoStep
from agno.workflow import Workflow as AgnoWorkflow
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool as PydanticTool
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import Output, RunContext, ToolCompleted, ToolStarted
from tests.lab.failures.tools import NAMED, TIMEOUT, TOOLS, Total, pay

URL = os.environ["FAILURES_MODEL_URL"]

INSTRUCTIONS = "Be brief."


def build_client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0, timeout=TIMEOUT)


# Functions

_SCHEMAS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in NAMED
]


async def call_tool(call: Any, context: RunContext) -> str:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "pay":
        decision = await context.approve("pay", arguments, policy="user")
        if not decision:
            return f"rejected: {decision.note}"
        arguments = decision.arguments
    result = NAMED[call.function.name](**arguments)
    return str(await result if asyncio.iscoroutine(result) else result)


def begin(message: str, context: RunContext) -> list[Any]:
    """Return the texts of the session and the message."""
    said = [
        {"role": each["role"], "content": each["content"]}
        for each in context.history
        if each["role"] in ("user", "assistant") and each["content"].strip()
    ]
    return [*said, {"role": "user", "content": message}]


async def function(message: str, context: RunContext, **options: Any) -> Any:
    """Ask the model and call its tools, without a stream."""
    client = build_client()
    messages = begin(message, context)
    while True:
        answer = await client.chat.completions.create(
            model="function", messages=messages, tools=_SCHEMAS, **options
        )
        said = answer.choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said.model_dump(exclude_none=True))
        for call in said.tool_calls:
            result = await call_tool(call, context)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def function_output(message: str, context: RunContext) -> Total:
    text = await function(message, context, response_format={"type": "json_object"})
    return Total.model_validate_json(text)


async def generator(message: str, context: RunContext) -> AsyncIterator[Any]:
    """Stream the answer of the model, and report its tools."""
    client = build_client()
    messages = begin(message, context)
    while True:
        calls: dict[int, Any] = {}
        async for chunk in await client.chat.completions.create(
            model="generator", messages=messages, tools=_SCHEMAS, stream=True
        ):
            for choice in chunk.choices:
                if choice.delta.content:
                    yield choice.delta.content
                for part in choice.delta.tool_calls or ():
                    call = calls.setdefault(part.index, part)
                    if call is not part:
                        call.function.arguments += part.function.arguments
        if not calls:
            return
        made = [
            {"id": call.id, "type": "function", "function": call.function.model_dump()}
            for call in calls.values()
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": made})
        for call in calls.values():
            yield ToolStarted(call.id, call.function.name, json.loads(call.function.arguments))
            result = await call_tool(call, context)
            yield ToolCompleted(call.id, result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def generator_output(message: str, context: RunContext) -> AsyncIterator[Any]:
    total = await function_output(message, context)
    yield total.model_dump_json()
    yield Output(total)


# pydantic-ai


def build_pydantic_agent(**options: Any) -> Any:
    provider = OpenAIProvider(openai_client=build_client())
    tools = [*TOOLS, PydanticTool(pay, requires_approval=True)]
    return PydanticAgent(
        OpenAIChatModel("pydantic-ai", provider=provider),
        instructions=INSTRUCTIONS,
        tools=tools,
        **options,
    )


pydantic_ai = build_pydantic_agent()
pydantic_ai_output = build_pydantic_agent(output_type=Total)

# LangGraph


def build_graph(**options: Any) -> Any:
    chat = ChatOpenAI(
        model="langgraph",
        base_url=URL,
        api_key="not-needed",  # type: ignore[arg-type]
        stream_usage=True,
        max_retries=0,
        timeout=TIMEOUT,
    )
    middleware: Any = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    tools = [langchain_tool(each) for each in (*TOOLS, pay)]
    return create_agent(
        chat, tools=tools, middleware=[middleware], system_prompt=INSTRUCTIONS, **options
    )


langgraph = build_graph()
langgraph_output = build_graph(response_format=Total)
langgraph_checkpointer = build_graph(checkpointer=InMemorySaver())

# agno


def build_agno_model() -> Any:
    return OpenAILike(id="agno", base_url=URL, api_key="not-needed", max_retries=0, timeout=TIMEOUT)


def build_agno_agent(**options: Any) -> Any:
    tools = [*TOOLS, agno_tool(requires_confirmation=True)(pay)]
    return AgnoAgent(model=build_agno_model(), tools=tools, instructions=INSTRUCTIONS, **options)


agno_agent = build_agno_agent()
agno_agent_output = build_agno_agent(output_schema=Total)
agno_team = AgnoTeam(
    model=build_agno_model(),
    members=[build_agno_agent(id="helper", name="helper")],
    tools=[*TOOLS, agno_tool(requires_confirmation=True)(pay)],
)
agno_workflow = AgnoWorkflow(
    name="line", steps=[AgnoStep(name="work", agent=build_agno_agent(name="worker"), max_retries=0)]
)

# openai-agents


def build_openai_agent(**options: Any) -> Any:
    tools = [agents.function_tool(each) for each in TOOLS]
    return agents.Agent(
        name="openai-agents",
        instructions=INSTRUCTIONS,
        model=agents.OpenAIChatCompletionsModel("openai-agents", build_client()),
        model_settings=agents.ModelSettings(include_usage=True),
        tools=[*tools, agents.function_tool(pay, needs_approval=True)],
        **options,
    )


openai_agents = build_openai_agent()
openai_agents_output = build_openai_agent(output_type=Total)
