"""Agents of Google ADK after the shapes of its samples and tutorials, in own words."""

from __future__ import annotations

import os
from typing import Any

from google.adk.agents import Agent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.apps import App
from google.adk.models import LlmRequest, LlmResponse
from google.adk.models.lite_llm import LiteLlm
from google.adk.tools import FunctionTool, ToolContext, exit_loop
from google.adk.tools.agent_tool import AgentTool
from google.genai.types import Content, Part
from ledger import recorded
from pydantic import BaseModel

URL = os.environ["MODEL_URL"]


def chat(role: str) -> LiteLlm:
    """Return the model of a role."""
    return LiteLlm(model=f"openai/{role}", api_base=f"{URL}/v1", api_key="none", max_retries=0)


@recorded
def get_weather(city: str) -> dict[str, str]:
    """Report the weather."""
    return {"status": "success", "report": f"22 degrees in {city}"}


@recorded
async def get_time(city: str) -> str:
    """Report the time."""
    return f"noon in {city}"


quickstart = Agent(
    name="quickstart",
    model=chat("quickstart"),
    description="Answers questions about the weather and the time.",
    instruction="Help with questions about a city.",
    tools=[get_weather, get_time],
)


# The state of the session in a tool and in an instruction


@recorded
def roll(sides: int, tool_context: ToolContext) -> int:
    """Roll a die."""
    rolled = tool_context.state.get("rolls", [])
    tool_context.state["rolls"] = [*rolled, sides]
    return len(rolled) + 1


dice = Agent(
    name="dice", model=chat("dice"), instruction="So far: {rolls?}. Roll dice.", tools=[roll]
)


# A team: the root agent passes greetings on


greeting = Agent(
    name="greeting",
    model=chat("team/greeting"),
    description="Greets.",
    disallow_transfer_to_parent=True,
    disallow_transfer_to_peers=True,
)
farewell = Agent(name="farewell", model=chat("team/farewell"), description="Says goodbye.")
team = Agent(
    name="team",
    model=chat("team"),
    instruction="Pass greetings on; answer about the weather.",
    tools=[get_weather],
    sub_agents=[greeting, farewell],
)


# Agents one after the other, which pass their results on in the state


pipeline = SequentialAgent(
    name="pipeline",
    sub_agents=[
        Agent(name="coder", model=chat("pipeline/code"), output_key="code"),
        Agent(
            name="reviewer",
            model=chat("pipeline/review"),
            instruction="Review: {code}",
            output_key="review",
        ),
    ],
)


# Agents at the same time, and one that merges their results


research = SequentialAgent(
    name="research",
    sub_agents=[
        ParallelAgent(
            name="researchers",
            sub_agents=[
                Agent(name=topic, model=chat(f"research/{topic}"), output_key=topic)
                for topic in ("sun", "wind")
            ],
        ),
        Agent(name="merger", model=chat("research/merge"), instruction="Merge {sun} and {wind}"),
    ],
)


# A draft that a critic improves until it is good


drafting = LoopAgent(
    name="drafting",
    max_iterations=3,
    sub_agents=[
        Agent(name="writer", model=chat("drafting/write"), output_key="draft"),
        Agent(name="critic", model=chat("drafting/check"), tools=[exit_loop]),
    ],
)


# An agent that is a tool of another one


travel = Agent(
    name="travel",
    model=chat("travel"),
    tools=[
        AgentTool(Agent(name="search", model=chat("travel/search"), tools=[get_time])),
        get_weather,
    ],
)


# A tool that a person approves


@recorded
def reimburse(purpose: str, amount: int) -> dict[str, Any]:
    """Reimburse an amount."""
    return {"status": "ok", "purpose": purpose, "amount": amount}


expenses = Agent(
    name="expenses",
    model=chat("expenses"),
    tools=[FunctionTool(reimburse, require_confirmation=True)],
)


# Structured output


class Capital(BaseModel):
    """The capital of a country."""

    name: str
    population: int


capital = Agent(name="capital", model=chat("capital"), output_schema=Capital)


# A picture in the message


looking = Agent(name="looking", model=chat("looking"), instruction="Describe the picture.")


# Callbacks that guard the model and the tools, in an app


def _guard(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
    said = str(llm_request.contents)
    if "BLOCK" not in said:
        return None
    return LlmResponse(content=Content(role="model", parts=[Part(text="That is blocked.")]))


def _check_city(
    tool: Any, args: dict[str, Any], tool_context: ToolContext
) -> dict[str, Any] | None:
    if args.get("city") == "Atlantis":
        return {"status": "error", "report": "There is no such city."}
    return None


guarded = App(
    name="guarded",
    root_agent=Agent(
        name="guarded",
        model=chat("guarded"),
        tools=[get_weather],
        before_model_callback=_guard,
        before_tool_callback=_check_city,
    ),
)
