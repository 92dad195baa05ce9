"""Agents of openai-agents after the shapes of its examples, in own words, with its default API."""

from __future__ import annotations

import os
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    function_tool,
)
from ledger import recorded
from openai import AsyncOpenAI
from pydantic import BaseModel

import agentctl

URL = os.environ["MODEL_URL"]
CLIENT = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def chat(role: str) -> OpenAIResponsesModel:
    """Return the model of a role."""
    return OpenAIResponsesModel(role, CLIENT)


@function_tool
@recorded
async def get_weather(city: str) -> str:
    """Report the weather."""
    return f"22 degrees in {city}"


@function_tool
@recorded
def add_seat(run: RunContextWrapper[agentctl.RunContext], seat: str) -> str:
    """Change the seat of the caller."""
    return f"{run.context.user_id} sits on {seat}"


class Event(BaseModel):
    """An event of a calendar."""

    name: str
    day: str


hello = Agent(name="Hello", model=chat("hello"), instructions="Answer in haikus.")

tools = Agent(name="Tools", model=chat("tools"), tools=[get_weather, add_seat])

calendar = Agent(name="Calendar", model=chat("calendar"), output_type=Event)

_seats: Agent[Any] = Agent(
    name="Seats", model=chat("airline/seats"), tools=[add_seat], handoff_description="Seats"
)
airline: Agent[Any] = Agent(name="Airline", model=chat("airline"), handoffs=[_seats])

_spanish: Agent[Any] = Agent(name="Spanish", model=chat("translators/spanish"))
translators = Agent(
    name="Translators",
    model=chat("translators"),
    tools=[_spanish.as_tool("to_spanish", "Translate to Spanish")],
)


class Homework(BaseModel):
    """Is this homework?"""

    is_homework: bool


_checker = Agent(name="Checker", model=chat("tutor/check"), output_type=Homework)


async def _check(run: RunContextWrapper[Any], agent: Agent[Any], sent: Any) -> Any:
    checked = await Runner.run(_checker, sent, context=run.context)
    found = checked.final_output_as(Homework)
    return GuardrailFunctionOutput(found, tripwire_triggered=not found.is_homework)


tutor: Agent[Any] = Agent(
    name="Tutor",
    model=chat("tutor"),
    input_guardrails=[InputGuardrail(_check, run_in_parallel=False)],
)
