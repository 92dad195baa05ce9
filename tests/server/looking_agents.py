"""Agents of each library that look at a picture, and code that reads and makes files."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import agentctl
from agentctl import agno, langchain, openai_agents, pydantic_ai

URL = os.environ["MODEL_URL"]
MODEL = "echo"


def build_langgraph() -> Any:
    return create_agent(ChatOpenAI(model=MODEL, base_url=URL, api_key="none", max_retries=0), [])


def build_pydantic_ai() -> Any:
    return PydanticAgent(
        OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
    )


async def build_late_pydantic_ai() -> Any:
    return build_pydantic_ai()


def build_fitted() -> Any:
    """An agent whose library knows a small window of its model."""
    provider = OpenAIProvider(base_url=URL, api_key="none")
    return PydanticAgent(
        OpenAIChatModel(MODEL, provider=provider, profile={"context_window": 6000})
    )


def build_agno() -> Any:
    model = OpenAILike(id=MODEL, base_url=URL, api_key="none", max_retries=0)
    return AgnoAgent(name="agno", model=model, telemetry=False)


def build_openai_agents() -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    return agents.Agent("code", model=agents.OpenAIChatCompletionsModel(MODEL, client))


def build_known_langgraph() -> Any:
    return create_agent(langchain.ChatModel(model="seeing"), [])


def build_known_pydantic_ai() -> Any:
    return PydanticAgent(pydantic_ai.Model("seeing"))


def build_known_agno() -> Any:
    return AgnoAgent(name="agno", model=agno.Model(id="seeing"), telemetry=False)


def build_known_openai_agents() -> Any:
    return agents.Agent("code", model=openai_agents.Model("seeing"))


async def build_reader(message: str, context: agentctl.RunContext) -> dict[str, Any]:
    """Read the files of the message, and one by its path."""
    found = {file.name: (await file.read()).hex() for file in context.files}
    path = await context.file_path(context.files[0])
    shown = [file["name"] for each in context.history for file in each.get("files", [])]
    return {"found": found, "path": path.read_bytes().hex(), "suffix": path.suffix, "shown": shown}


async def build_maker(message: str, context: agentctl.RunContext) -> AsyncIterator[str]:
    """Save a file twice, and other bytes of the same name."""
    for data in (b"a,b\n1,2\n", b"a,b\n1,2\n", message.encode()):
        file = await context.save_file("table.csv", data)
        yield f"{file.name} {file.media_type} {len(await file.read())};"


async def make_report(rows: int, context: agentctl.RunContext) -> str:
    """Create a report with some rows."""
    file = await context.save_file("report.csv", b"n\n" * (rows + 1))
    return f"{file.file_id} {file.size}"


def make_in_thread(rows: int, context: agentctl.RunContext) -> str:
    """Create a report from a thread with a separate loop."""
    return asyncio.run(make_report(rows, context))


async def build_painter(message: str, context: agentctl.RunContext) -> str:
    """Save a picture, a large one and a table."""
    picture = base64.b64decode(message)
    await context.save_file("dot.png", picture)
    await context.save_file("large.png", picture + bytes(3_000_000))
    await context.save_file("t.csv", b"a,b\n")
    return "painted"
