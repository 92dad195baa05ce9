"""Agents and teams of agno after the shapes of its cookbook, in own words."""

from __future__ import annotations

import os
from typing import Any

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from agno.run import RunContext
from agno.team import Team
from agno.tools import tool
from ledger import recorded
from pydantic import BaseModel

URL = os.environ["MODEL_URL"]


def chat(role: str) -> OpenAILike:
    """Return the model of a role."""
    return OpenAILike(id=role, base_url=f"{URL}/v1", api_key="none", max_retries=0)


@recorded
async def stock_price(symbol: str) -> str:
    """Look up the price of a stock."""
    return f"{symbol} costs 100"


@recorded
def search_web(query: str) -> str:
    """Search the web."""
    return f"three pages about {query}"


class Script(BaseModel):
    """A film."""

    title: str
    genre: str


basic = Agent(model=chat("basic"), instructions="You are a reporter.", markdown=True)

finance = Agent(model=chat("finance"), tools=[stock_price, search_web], markdown=True)

movie = Agent(model=chat("movie"), output_schema=Script)


@recorded
def add_item(run_context: RunContext, item: str) -> str:
    """Add an item to the shopping list."""
    state = run_context.session_state
    assert state is not None
    state.setdefault("items", []).append(item)
    return f"added {item}"


shopping = Agent(
    model=chat("shopping"),
    tools=[add_item],
    session_state={"items": []},
    instructions="The list is {items}.",
)


@recorded
async def find_documents(query: str, num_documents: int | None = None, **options: Any) -> list[Any]:
    """Return documents for a query."""
    return [{"content": "The moon is 384,400 km away."}]


async def _retrieve(
    query: str, num_documents: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    return [{"content": "The moon is 384,400 km away."}]


knowing = Agent(model=chat("knowing"), knowledge_retriever=_retrieve, search_knowledge=True)

reading = Agent(model=chat("reading"), knowledge_retriever=_retrieve, add_knowledge_to_context=True)

hooked = Agent(model=chat("hooked"), parser_model=chat("hooked/parser"), output_schema=Script)


@tool(requires_confirmation=True)
@recorded
def send_money(amount: int, to: str) -> str:
    """Send money."""
    return f"sent {amount} to {to}"


confirming = Agent(model=chat("confirming"), tools=[send_money, stock_price])


def _member(team: str, name: str, *tools: Any) -> Agent:
    return Agent(
        id=name, name=name, role=f"The {name}", model=chat(f"{team}/{name}"), tools=list(tools)
    )


coordinate = Team(
    model=chat("coordinate"),
    members=[
        _member("coordinate", "researcher", search_web),
        _member("coordinate", "analyst", stock_price),
    ],
)

route = Team(
    model=chat("route"),
    respond_directly=True,
    determine_input_for_members=False,
    members=[_member("route", "german"), _member("route", "french")],
)

collaborate = Team(
    model=chat("collaborate"),
    delegate_to_all_members=True,
    members=[_member("collaborate", "poet"), _member("collaborate", "critic", search_web)],
)

nested = Team(
    model=chat("nested"),
    members=[
        Team(
            id="desk",
            name="desk",
            model=chat("nested/desk"),
            members=[_member("nested", "clerk", stock_price)],
        )
    ],
)
