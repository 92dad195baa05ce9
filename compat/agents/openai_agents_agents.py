"""Agents of openai-agents after the shapes of its examples, in own words, with its default API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    ModelSettings,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    function_tool,
    handoff,
    output_guardrail,
    tool_input_guardrail,
)
from agents.extensions import handoff_filters
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


# A picture and a document in the message

looking = Agent(name="Looking", model=chat("looking"), instructions="Describe the picture.")

reader = Agent(name="Reader", model=chat("reader"), output_type=Event)


# Handoffs there and back: a triage, a clerk that gives back what it cannot do

triage: Agent[Any] = Agent(name="Triage", model=chat("triage"), instructions="Route the question.")
_faq: Agent[Any] = Agent(
    name="FAQ", model=chat("triage/faq"), tools=[get_weather], handoffs=[triage]
)
_booking: Agent[Any] = Agent(name="Booking", model=chat("triage/booking"), handoffs=[triage])


async def _note_handoff(run: RunContextWrapper[Any]) -> None:
    assert run.context is not None


triage.handoffs = [_faq, handoff(_booking, on_handoff=_note_handoff)]


# A handoff with an input and a filter of the history


class Escalation(BaseModel):
    """The reason to pass the question to another agent."""

    reason: str


async def _on_escalation(run: RunContextWrapper[Any], given: Escalation) -> None:
    assert given.reason


_manager: Agent[Any] = Agent(name="Manager", model=chat("escalating/manager"))
escalating: Agent[Any] = Agent(
    name="Escalating",
    model=chat("escalating"),
    tools=[get_weather],
    handoffs=[
        handoff(
            _manager,
            on_handoff=_on_escalation,
            input_type=Escalation,
            input_filter=handoff_filters.remove_all_tools,
        )
    ],
)


# Output guardrails, without and with an agent


@output_guardrail
async def _check_answer(run: RunContextWrapper[Any], agent: Agent[Any], said: Any) -> Any:
    return GuardrailFunctionOutput(None, tripwire_triggered="secret" in str(said))


guarded: Agent[Any] = Agent(
    name="Guarded", model=chat("guarded"), output_guardrails=[_check_answer], tools=[get_weather]
)


# Guardrails of a tool


@tool_input_guardrail
def _check_city(data: Any) -> ToolGuardrailFunctionOutput:
    if "Atlantis" in str(data.context.tool_arguments):
        return ToolGuardrailFunctionOutput.reject_content("There is no such city.")
    return ToolGuardrailFunctionOutput(output_info="fine")


@function_tool(tool_input_guardrails=[_check_city])
@recorded
async def get_map(city: str) -> str:
    """Get the map of a city."""
    return f"map of {city}"


mapped = Agent(name="Mapped", model=chat("mapped"), tools=[get_map])


# The first tool result is the answer

forced = Agent(
    name="Forced",
    model=chat("forced"),
    tools=[get_weather],
    tool_use_behavior="stop_on_first_tool",
    model_settings=ModelSettings(tool_choice="required"),
)


# Instructions of the run


def _instruct(run: RunContextWrapper[agentctl.RunContext], agent: Agent[Any]) -> str:
    return f"The user is {run.context.user_id}."


dynamic: Agent[agentctl.RunContext] = Agent(
    name="Dynamic", model=chat("dynamic"), instructions=_instruct
)


# A tool that a person approves


@function_tool(needs_approval=True)
@recorded
async def cancel_order(number: int) -> str:
    """Cancel an order."""
    return f"cancelled {number}"


approving = Agent(name="Approving", model=chat("approving"), tools=[cancel_order])


# A deterministic flow in a function: an outline, a check, a story

_outliner = Agent(name="Outliner", model=chat("story/outline"))
_reviewer = Agent(name="Reviewer", model=chat("story/check"), output_type=Homework)
_author = Agent(name="Author", model=chat("story/write"))


async def story(message: str, context: agentctl.RunContext) -> str:
    """Write a story in three steps."""
    outline = await Runner.run(_outliner, message)
    checked = await Runner.run(_reviewer, outline.final_output)
    assert not checked.final_output.is_homework
    written = await Runner.run(_author, outline.final_output)
    for each in (outline, checked, written):
        used = each.context_wrapper.usage
        context.usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)
    return str(written.final_output)


# A session of the library in a generator, with its streamed text

_chatty = Agent(name="Chatty", model=chat("chatty"))


async def chatty(message: str, context: agentctl.RunContext) -> AsyncIterator[Any]:
    """Stream an answer; the library keeps the conversation."""
    session = SQLiteSession(context.session_id, "chatty.db")
    result = Runner.run_streamed(_chatty, message, session=session)
    try:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type.endswith("text.delta"):
                yield event.data.delta
    finally:
        result.cancel()
    used = result.context_wrapper.usage
    yield agentctl.Usage(used.input_tokens, used.output_tokens)
