"""Agents of Google ADK for the tests of this folder. The server imports this module.

`gemini_…` have the library's own model, whose endpoint is that of other vendors; the models of the
others are roles of a script (tests/kit/scripted_models.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from google.adk.agents import Agent, ParallelAgent, SequentialAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import Workflow
from pydantic import BaseModel

URL = os.environ["MODEL_URL"]


def chat(role: str) -> LiteLlm:
    """Return the model of a role."""
    return LiteLlm(model=f"openai/{role}", api_base=f"{URL}/v1", api_key="none", max_retries=0)


def write(tool_context: ToolContext, line: str) -> None:
    """Write a line into the ledger of the session."""
    with Path(f"{tool_context.session.id}.ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


def look(tool_context: ToolContext) -> str:
    """Look."""
    write(tool_context, "look")
    return "looked"


async def pay(amount: int, to: str, tool_context: ToolContext) -> str:
    """Pay an amount."""
    write(tool_context, f"pay {amount} to {to}")
    return f"paid {amount}"


def buy(item: str, tool_context: ToolContext) -> dict[str, Any]:
    """Buy something that costs more than ten."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(hint=f"May I buy {item}?", payload={"budget": 0})
        return {"error": "waiting"}
    if not tool_context.tool_confirmation.confirmed:
        return {"error": "refused"}
    payload: Any = tool_context.tool_confirmation.payload
    return {"bought": item, "budget": payload["budget"]}


def order(item: str) -> None:
    """Order something; the result comes from elsewhere."""


def fail() -> str:
    """Fail."""
    raise RuntimeError("secret of the tool")


def count(tool_context: ToolContext) -> int:
    """Count in the state of the session."""
    tool_context.state["counted"] = tool_context.state.get("counted", 0) + 1
    return int(tool_context.state["counted"])


class Table:
    """A result without a JSON form and without a truth value, as tables of numbers are."""

    def __bool__(self) -> bool:
        raise ValueError("it has more than one element")


def tabulate(tool_context: ToolContext) -> Any:
    """Return a table."""
    write(tool_context, "tabulate")
    return Table()


PAY = FunctionTool(pay, require_confirmation=True)

payer = Agent(name="payer", model=chat("payer"), tools=[PAY, look])

clerk = Agent(name="clerk", model=chat("clerk"), tools=[PAY, look], description="Pays.")
repeater = Agent(name="repeater", model=chat("repeater"), tools=[look])
front = Agent(name="front", model=chat("front"), tools=[look], sub_agents=[clerk])

searcher = Agent(name="searcher", model=chat("searcher"), tools=[look])
planner = Agent(name="planner", model=chat("planner"), tools=[AgentTool(searcher)])

buyer = Agent(name="buyer", model=chat("buyer"), tools=[buy, LongRunningFunctionTool(order)])

tabular = Agent(name="tabular", model=chat("tabular"), tools=[tabulate])

failing = Agent(name="failing", model=chat("failing"), tools=[fail])

counting = Agent(name="counting", model=chat("counting"), tools=[count])


class Total(BaseModel):
    """A structured result."""

    total: int


wrong = Agent(name="wrong", model=chat("wrong"), output_schema=Total)

line = SequentialAgent(
    name="line",
    sub_agents=[
        Agent(name="first", model=chat("first"), output_key="found"),
        Agent(name="second", model=chat("second"), instruction="Use {found}."),
    ],
)


steps = SequentialAgent(
    name="steps",
    sub_agents=[
        Agent(name="one", model=chat("one"), tools=[PAY]),
        Agent(name="two", model=chat("two")),
        Agent(name="three", model=chat("three")),
    ],
)


def pair(name: str) -> ParallelAgent:
    """Return two agents at the same time."""
    agents = [Agent(name=each, model=chat(each), tools=[PAY]) for each in ("left", "right")]
    return ParallelAgent(name=name, sub_agents=agents)


both = App(name="both", root_agent=pair("both_agents"))

inner_pair = SequentialAgent(
    name="inner_pair", sub_agents=[pair("pair"), Agent(name="last", model=chat("last"))]
)


fixed = App(
    name="fixed",
    root_agent=SequentialAgent(
        name="fixed_steps",
        sub_agents=[
            Agent(name="before", model=chat("before"), tools=[PAY]),
            Agent(name="after", model=chat("after")),
        ],
    ),
    resumability_config=ResumabilityConfig(is_resumable=False),
)


def double(node_input: str) -> dict[str, str]:
    """Repeat a text."""
    return {"twice": node_input * 2}


def note_import(callback_context: Any, llm_request: Any) -> None:
    """Write down whether the library of the model is loaded before the first call of the model."""
    callback_context.state["loaded"] = "litellm" in sys.modules


loader = Agent(name="loader", model=chat("loader"), before_model_callback=note_import)

flow = Workflow(name="flow", edges=[("START", Agent(name="start", model=chat("start")), double)])


def gemini(model: str, *tools: Any, **options: Any) -> Agent:
    return Agent(name="assistant", model=Gemini(model=model), tools=[*tools], **options)


gemini_echo = gemini("echo")
gemini_thinks = gemini("thinks")
gemini_tool = gemini("tool:look", look)
gemini_pay = gemini("tool:pay", PAY)
gemini_hang = gemini("hang")
gemini_failing = gemini("http-503")
