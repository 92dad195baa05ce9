"""Agents of pydantic-ai after the shapes of its examples, in own words."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ledger import recorded
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, ModelRetry, NativeOutput, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from typing_extensions import TypedDict

import agentctl

URL = os.environ["MODEL_URL"]


def chat(role: str) -> OpenAIChatModel:
    """Return the model of a role."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    return OpenAIChatModel(role, provider=OpenAIProvider(openai_client=client))


# Bank support: deps with a database, dynamic instructions, structured output


@dataclass
class Bank:
    customer_id: int
    balances: dict[int, float]


class Advice(BaseModel):
    """An answer to a customer."""

    advice: str
    block_card: bool


def build_bank(context: agentctl.RunContext) -> Bank:
    """Make the deps of a run."""
    return Bank(7, {7: 123.45})


bank = Agent(chat("bank"), deps_type=Bank, output_type=Advice, instructions="You are a bank.")


@bank.instructions
async def _name(run: RunContext[Bank]) -> str:
    return f"The customer is {run.deps.customer_id}."


@bank.tool
@recorded
async def balance(run: RunContext[Bank], pending: bool) -> float:
    """Read the balance."""
    return run.deps.balances[run.deps.customer_id] + pending


# Weather: deps with defaults, tools that depend on each other


@dataclass
class Service:
    places: dict[str, list[float]] = field(default_factory=lambda: {"London": [51.5, -0.1]})


weather = Agent(chat("weather"), deps_type=Service, instructions="Be concise.", retries=2)


@weather.tool
@recorded
async def locate(run: RunContext[Service], place: str) -> list[float]:
    """Find a place."""
    return run.deps.places[place]


@weather.tool
@recorded
async def forecast(run: RunContext[Service], latitude: float, longitude: float) -> dict[str, Any]:
    """Forecast the weather."""
    return {"temperature": 21, "sky": f"clear at {latitude}"}


# Whales: a streamed list of typed dicts


class Whale(TypedDict):
    name: str
    length: float


whales = Agent(chat("whales"), output_type=list[Whale])


# SQL: a union of outputs and a validator that asks again


class Query(BaseModel):
    """A query that answers the question."""

    sql: str


class Invalid(BaseModel):
    """The question cannot be answered."""

    reason: str


sql: Agent[None, Any] = Agent(chat("sql"), output_type=[Query, Invalid], retries=2)


@sql.output_validator
async def _check(output: Any) -> Any:
    if isinstance(output, Query) and not output.sql.upper().startswith("SELECT"):
        raise ModelRetry("Write a SELECT query.")
    return output


# Flights: one agent delegates to another in a tool, with one usage


class Flight(BaseModel):
    """A flight."""

    number: str
    price: int


class NoFlight(BaseModel):
    """There is none."""


_extractor: Agent[None, list[Flight]] = Agent(chat("flights/extract"), output_type=list[Flight])
flights: Agent[Any, Any] = Agent(chat("flights"), output_type=[Flight, NoFlight], retries=2)


@flights.tool
@recorded
async def extract(run: RunContext[Any]) -> list[dict[str, Any]]:
    """Extract the flights of the page."""
    limits = UsageLimits(request_limit=15)
    done = await _extractor.run("page of flights", usage=run.usage, usage_limits=limits)
    return [flight.model_dump() for flight in done.output]


# Roulette: a tool, a boolean as output


@dataclass
class Wheel:
    winner: int = 18


roulette = Agent(chat("roulette"), deps_type=Wheel, output_type=bool, retries=3)


@roulette.tool
@recorded
async def spin(run: RunContext[Wheel], square: int) -> str:
    """Spin the wheel."""
    return "winner" if square == run.deps.winner else "loser"


# Jokes: delegation without an output type, a synchronous tool

_writer = Agent(chat("jokes/writer"))
jokes: Agent[Any, str] = Agent(chat("jokes"), instructions="Choose the best joke.")


@jokes.tool
@recorded
async def write_jokes(run: RunContext[Any], count: int) -> str:
    """Let another agent write jokes."""
    return (await _writer.run(f"{count} jokes", usage=run.usage)).output


@jokes.tool_plain
@recorded
def rate(joke: str) -> int:
    """Rate a joke."""
    return len(joke)


# Approval: a tool that a person approves

files: Agent[Any, str] = Agent(chat("files"))


@files.tool_plain(requires_approval=True)
@recorded
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@files.tool_plain
@recorded
async def list_files() -> list[str]:
    """List the files."""
    return ["a.txt", "b.txt"]


# Toolsets, a tool that asks the model again, native structured output

_shop = FunctionToolset()


@_shop.tool_plain
@recorded
async def find_article(name: str) -> str:
    """Find an article."""
    if name != "chair":
        raise ModelRetry("There are chairs only.")
    return "chair, 20 euros"


class Price(BaseModel):
    """A price."""

    euros: int


shop = Agent(chat("shop"), toolsets=[_shop], output_type=NativeOutput(Price), retries=2)


# A workflow of agents in a function: one after the other, as in programmatic hand-off

_asker = Agent(chat("quiz/ask"))
_judge = Agent(chat("quiz/judge"), output_type=bool)


async def quiz(message: str, context: agentctl.RunContext) -> str:
    """Ask a question, and judge the answer."""
    asked = await _asker.run("Ask a question.")
    judged = await _judge.run(f"{asked.output} {message}")
    for each in (asked, judged):
        used = each.usage if not callable(each.usage) else each.usage()
        context.usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
    return f"{asked.output} {'right' if judged.output else 'wrong'}"
