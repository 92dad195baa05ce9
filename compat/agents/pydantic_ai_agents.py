"""Agents of pydantic-ai after the shapes of its examples, in own words."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ledger import recorded
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    FunctionToolset,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    RunUsage,
    TextOutput,
)
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits
from pydantic_graph import GraphBuilder, StepContext, TypeExpression
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


# Output functions: the model calls one of them as its last tool


def run_query(query: str) -> list[dict[str, str]]:
    """Run a SQL query."""
    if "SELECT" not in query:
        raise ModelRetry("Only SELECT is allowed")
    return [{"name": "Ann"}]


_query_agent = Agent(chat("handing/query"), output_type=[run_query])


async def hand_off(run: RunContext[Any], query: str) -> list[dict[str, str]]:
    """Hand over to the agent for queries."""
    done = await _query_agent.run(query, usage=run.usage)
    return done.output


handing: Agent[Any, Any] = Agent(chat("handing"), output_type=[hand_off, Invalid])


# Text that a function changes


def split_into_words(text: str) -> list[str]:
    """Split a text."""
    return text.split()


words = Agent(chat("words"), output_type=TextOutput(split_into_words))


# Output that the prompt describes


class Device(BaseModel):
    """A device."""

    name: str
    kind: str


prompted = Agent(chat("prompted"), output_type=PromptedOutput(Device))


# A second model for the failures of the first one

falling = Agent(FallbackModel(chat("falling/first"), chat("falling")))


# Tools that depend on the run: `prepare`, and a dynamic toolset

_calculator = FunctionToolset()


@_calculator.tool_plain
@recorded
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def _only_later(run: RunContext[Any], definition: Any) -> Any:
    return definition if run.run_step > 1 else None


prepared: Agent[Any, str] = Agent(chat("prepared"))


@prepared.toolset
def _choose_toolset(run: RunContext[Any]) -> Any:
    return _calculator


@prepared.tool_plain(prepare=_only_later)
@recorded
def double(number: int) -> int:
    """Double a number."""
    return number * 2


# History that a processor shortens


async def _keep_recent(messages: list[Any]) -> list[Any]:
    return messages[-20:]


recent: Agent[None, str] = Agent(
    chat("recent"), capabilities=[ProcessHistory(_keep_recent)], instructions="Be brief."
)


# A picture and a document in the message

looking: Agent[None, str] = Agent(chat("looking"), instructions="Describe it.")

reader: Agent[None, Advice] = Agent(chat("reader"), output_type=Advice)


# A graph of agents: write a mail, get feedback, write again


@dataclass
class MailState:
    topic: str
    mail: str = ""
    feedback: str = ""
    used: RunUsage = field(default_factory=RunUsage)


_mail_writer = Agent(chat("mail/write"))
_mail_critic = Agent(chat("mail/critic"), output_type=bool)


_graph = GraphBuilder(state_type=MailState, output_type=str)


@_graph.step
async def _write_mail(step: StepContext[MailState, None, Any]) -> str:
    asked = f"Write to {step.state.topic} {step.state.feedback}"
    step.state.mail = (await _mail_writer.run(asked, usage=step.state.used)).output
    return step.state.mail


@_graph.step
async def _judge_mail(step: StepContext[MailState, None, str]) -> Literal["again", "done"]:
    judged = await _mail_critic.run(step.inputs, usage=step.state.used)
    step.state.feedback = "again"
    return "done" if judged.output else "again"


@_graph.step
async def _send_mail(step: StepContext[MailState, None, Any]) -> str:
    return step.state.mail


_graph.add(
    _graph.edge_from(_graph.start_node).to(_write_mail),
    _graph.edge_from(_write_mail).to(_judge_mail),
    _graph.edge_from(_judge_mail).to(
        _graph.decision()
        .branch(_graph.match(TypeExpression[Literal["again"]]).to(_write_mail))
        .branch(_graph.match(TypeExpression[Literal["done"]]).to(_send_mail))
    ),
    _graph.edge_from(_send_mail).to(_graph.end_node),
)
_mail_graph = _graph.build()


async def mail(message: str, context: agentctl.RunContext) -> str:
    """Write a mail with a graph of pydantic-graph."""
    state = MailState(message)
    done = await _mail_graph.run(state=state)
    used = state.used
    context.usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
    return done


# Programmatic hand-off: two agents with one history, in a generator that streams


class FlightDetails(BaseModel):
    """Details of a flight."""

    flight_number: str


_flight_agent = Agent(chat("booking/flight"), output_type=FlightDetails)
_seat_agent = Agent(chat("booking/seat"))


async def booking(message: str, context: agentctl.RunContext) -> AsyncIterator[Any]:
    """Find a flight, then a seat."""
    found = await _flight_agent.run(message)
    yield agentctl.Progress("flight found", 0.5)
    async with _seat_agent.run_stream(f"A seat in {found.output.flight_number}") as stream:
        async for piece in stream.stream_text(delta=True):
            yield piece
        for used in (found.usage, stream.usage):
            counted = used() if callable(used) else used
            yield agentctl.Usage(counted.input_tokens, counted.output_tokens)
