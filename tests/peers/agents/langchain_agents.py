"""Agents of langchain's `create_agent` with its middleware, in own words."""

from __future__ import annotations

import os
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolRetryMiddleware,
    dynamic_prompt,
)
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from ledger import recorded
from pydantic import BaseModel

URL = os.environ["MODEL_URL"]


def chat(role: str) -> ChatOpenAI:
    """Return the model of a role."""
    options: Any = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    return ChatOpenAI(model=role, stream_usage=True, **options)


@tool
@recorded
async def weather(city: str) -> str:
    """Report the weather of a city."""
    return f"22 degrees in {city}"


@tool
@recorded
def search(query: str) -> str:
    """Search the web."""
    return f"three pages about {query}"


class Contact(BaseModel):
    """A person."""

    name: str
    city: str


react: Any = create_agent(chat("react"), [weather, search], system_prompt="Be brief.")

contact: Any = create_agent(chat("contact"), [search], response_format=ToolStrategy(Contact))

native_contact: Any = create_agent(
    chat("native_contact"), [search], response_format=ProviderStrategy(Contact)
)


@dynamic_prompt
def _choose_prompt(request: Any) -> str:
    return f"There are {len(request.messages)} messages."


limited: Any = create_agent(
    chat("limited"),
    [weather],
    middleware=[_choose_prompt, ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")],
)

todos: Any = create_agent(chat("todos"), [search], middleware=[TodoListMiddleware()])

summarizing: Any = create_agent(
    chat("summarizing"),
    [weather],
    middleware=[
        SummarizationMiddleware(
            chat("summarizing/summary"), trigger=("messages", 5), keep=("messages", 2)
        )
    ],
)

_FAILED: set[str] = set()


@tool
@recorded
async def flaky(name: str) -> str:
    """Fail at every other call."""
    if len(_FAILED) % 2 == 0:
        _FAILED.add(f"{name}{len(_FAILED)}")
        raise ConnectionError("try again")
    _FAILED.clear()
    return f"{name} is there"


retrying: Any = create_agent(
    chat("retrying"),
    [flaky],
    middleware=[ToolRetryMiddleware(max_retries=1, initial_delay=0.01, backoff_factor=0.0)],
)


@tool
@recorded
async def pay(amount: int, to: str) -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"


approved: Any = create_agent(
    chat("approved"),
    [pay, weather],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
)


# Subagents as tools: an inner agent in a tool of the outer one

_inner: Any = create_agent(chat("delegating/calendar"), [search])


@tool
@recorded
async def calendar(task: str) -> str:
    """Let the calendar agent work."""
    done = await _inner.ainvoke({"messages": [("user", task)]})
    return str(done["messages"][-1].content)


delegating: Any = create_agent(chat("delegating"), [calendar])
