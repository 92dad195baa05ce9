"""Agents of openai-agents that wait for decisions. The servers of the tests import this module."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agents
from openai import AsyncOpenAI

from agentctl import RunContext

FOLDER = Path(__file__).parent
URL = os.environ["MODEL_URL"]

Wrapper = agents.RunContextWrapper[RunContext]


def record(context: RunContext, line: str) -> None:
    """Write a line into the ledger of the session."""
    with (FOLDER / f"{context.session_id}.ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


@agents.function_tool(needs_approval=True)
async def pay(wrapper: Wrapper, amount: int, to: str) -> str:
    """Pay an amount."""
    context = wrapper.context
    record(context, f"pay {amount} to {to} for {context.metadata.get('tenant')}")
    while (FOLDER / "hold").exists():
        await asyncio.sleep(0.01)
    if to == "everyone":
        return f"paid {amount} to {'all of them, ' * 20_000}"
    return f"paid {amount}"


@agents.function_tool
async def look(wrapper: Wrapper) -> str:
    """Look at the account."""
    record(wrapper.context, "look")
    return "looked"


@dataclass
class Payment:
    """The arguments of an agent that is called as a tool."""

    amount: int
    to: str


def build(model: str, *tools: Any, name: str = "payer", **options: Any) -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0)
    return agents.Agent(
        name=name,
        model=agents.OpenAIChatCompletionsModel(model, client),
        model_settings=agents.ModelSettings(include_usage=True),
        tools=[*tools],
        **options,
    )


def build_caller() -> Any:
    """An agent that calls the paying agent as a tool."""
    payer = build("tool:pay", pay)
    tool = payer.as_tool("ask_payer", "Ask it to pay.", parameters=Payment)
    return build("tool:ask_payer", tool, name="caller")


def build_twins() -> Any:
    """An agent that calls two agents as tools that have one name and the same settings."""
    tools = [
        build("tool:pay", pay, name="Helper").as_tool("ask_payer", "Pay.", parameters=Payment),
        build("tool:pay", pay, name="Helper").as_tool("ask_other", "Pay.", parameters=Payment),
    ]
    return build("tool:ask_payer", *tools, name="caller")


openai_twins: Any = build_twins()
openai_payer: Any = build("tool:pay", pay)
openai_two: Any = build("tools:pay", pay)
openai_planner: Any = build("plan", pay, look)
openai_caller: Any = build_caller()
openai_triage: Any = build("plan", name="triage", handoffs=[build("plan", pay, look)])
