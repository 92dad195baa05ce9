"""Durable agents whose tools return what cannot be stored. The tests copy this module."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import ledger_tools  # type: ignore[import-not-found]  # next to its copy
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic_ai import Agent
from pydantic_ai import RunContext as Run

from agentctl import RunContext
from agentctl.langchain import ChatModel
from agentctl.pydantic_ai import Model


class Receipt:
    """An object of a client of a shop: it cannot be serialized."""

    def __str__(self) -> str:
        return "receipt 7"


class Broken:
    """An object that has no text either."""

    def __repr__(self) -> str:
        raise RuntimeError("secret of the object")


FORMS = {"receipt": Receipt, "broken": Broken}


@tool
async def pay(form: str, config: RunnableConfig) -> Any:
    """Pay, and return an object."""
    ledger_tools.record(config["configurable"]["run_context"], "pay", form=form)
    return FORMS[form]()


@tool
def pay_at_once(form: str, config: RunnableConfig) -> Any:
    """Pay in a thread, and return an object."""
    ledger_tools.record(config["configurable"]["run_context"], "pay_at_once", form=form)
    return FORMS[form]()


@tool
async def pay_with_message(
    form: str, config: RunnableConfig, tool_call_id: Annotated[str, InjectedToolCallId]
) -> Any:
    """Pay, and return a message that has an object."""
    ledger_tools.record(config["configurable"]["run_context"], "pay_with_message", form=form)
    return ToolMessage("paid", tool_call_id=tool_call_id, artifact=FORMS[form]())


@tool
def confirm() -> str:
    """Ask a person."""
    return f"confirmed with {interrupt('May I?')}"


TOOLS = {each.name: each for each in (pay, pay_at_once, pay_with_message, confirm)}
GATE: Any = HumanInTheLoopMiddleware(interrupt_on=dict.fromkeys(TOOLS, True))


async def answer(state: MessagesState) -> dict[str, Any]:
    """Call the model."""
    model = ChatModel(model="plan").bind_tools([*TOOLS.values()])
    return {"messages": [await model.ainvoke(state["messages"])]}


async def ask(state: MessagesState, runtime: Runtime) -> Any:
    """Ask for the approval of the call."""
    return await GATE.aafter_model(state, runtime)


async def call_without_id(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    """Call the tool of the answer, and use the object that it returns."""
    (call,) = state["messages"][-1].tool_calls
    result = await TOOLS[call["name"]].ainvoke(call["args"], config)
    while ledger_tools.HOLD.exists():
        await asyncio.sleep(0.02)
    text = f"a {type(result).__name__}"
    return {"messages": [ToolMessage(text, tool_call_id=call["id"]), ("ai", text)]}


async def call_with_id(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    """Make the call of the answer, and leave the object out of the state."""
    (call,) = state["messages"][-1].tool_calls
    result = await TOOLS[call["name"]].ainvoke({**call, "type": "tool_call"}, config)
    text = f"a {type(result.artifact).__name__}"
    return {"messages": [ToolMessage(result.content, tool_call_id=call["id"]), ("ai", text)]}


def contain_itself() -> list[Any]:
    value: list[Any] = ["paid"]
    value.append(value)
    return value


VALUES = {"circle": contain_itself, "large": lambda: 2**70, "items": lambda: iter(["paid", 7])}

typed: Any = Agent(Model("plan"), deps_type=RunContext)


@typed.tool(name="pay")
def pay_typed(run: Run[RunContext], form: str) -> Any:
    """Pay, and return a value that JSON does not have."""
    ledger_tools.record(run.deps, "pay", form=form)
    return VALUES[form]()


def build(node: Any, *, is_gated: bool = False) -> Any:
    """Build a graph that makes one call."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_node("tools", node)
    builder.add_edge(START, "answer")
    last = "answer"
    if is_gated:
        last = "ask"
        builder.add_node(last, ask)
        builder.add_edge("answer", last)
    builder.add_edge(last, "tools")
    return builder.compile()


without_id: Any = build(call_without_id)
with_id: Any = build(call_with_id)
gated: Any = build(call_with_id, is_gated=True)
tools: Any = build(ToolNode([*TOOLS.values()]))
gated_tools: Any = build(ToolNode([*TOOLS.values()]), is_gated=True)
