"""Agents in code that wait for people; the tests write this file to a folder, and change it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import RunContext

EDITION = 1

LEDGER = Path(__file__).with_name("ledger")
"""The payments that were made."""


def pay(amount: int) -> str:
    """Pay an amount."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{EDITION} {amount}\n")
    return f"paid {amount}"


async def function(message: str, context: RunContext) -> str:
    decision = await context.approve("pay", {"amount": 5}, policy="user")
    return pay(decision.arguments["amount"]) if decision else "nothing paid"


provider = OpenAIProvider(base_url=os.environ["CHANGING_URL"], api_key="not-needed")
library: Any = Agent(OpenAIChatModel("tool:pay", provider=provider))
library.tool_plain(pay, requires_approval=True)


def ask(state: MessagesState) -> dict[str, Any]:
    way = interrupt("Which way?")
    return {"messages": [("ai", f"{way} {EDITION}")]}


builder = StateGraph(MessagesState)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
builder.add_edge("ask", END)
graph: Any = builder.compile()
