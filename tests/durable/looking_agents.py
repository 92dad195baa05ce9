"""Agents that look at a picture before and after a call of a tool. Tests copy this module."""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.tools import tool as agno_tool
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool as graph_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent, ToolReturn

import agentctl
from agentctl import agno, langchain, openai_agents, pydantic_ai

FOLDER = Path(__file__).parent


@agentctl.tool(idempotent=True)
def hold(who: str) -> str:
    """Wait while there is a file."""
    (FOLDER / f"held-{who}").touch()
    while (FOLDER / "hold").exists():
        time.sleep(0.01)
    return f"held {who}"


PICTURE = FOLDER / "picture.png"
"""The bytes of the file of the run, as a tool that works on it returns them."""


@graph_tool("show", response_format="content_and_artifact")
def show_in_graph() -> tuple[str, str]:
    """Show the picture."""
    return "shown", base64.b64encode(PICTURE.read_bytes()).decode()


GRAPH_TOOLS = [show_in_graph, graph_tool("hold")(hold)]


def show() -> ToolReturn[str]:
    """Show the picture."""
    return ToolReturn(
        "shown", content=[BinaryContent(PICTURE.read_bytes(), media_type="image/png")]
    )


async def answer(state: MessagesState) -> dict[str, Any]:
    """Call the model."""
    model = langchain.ChatModel(model="seeing").bind_tools(
        [show_in_graph, graph_tool("hold")(hold)]
    )
    return {"messages": [await model.ainvoke(state["messages"])]}


def compare(state: MessagesState) -> dict[str, Any]:
    """Answer with the digest of the picture that a tool has shown."""
    shown = [message.artifact for message in state["messages"] if isinstance(message, ToolMessage)]
    (picture,) = filter(None, shown)
    return {"messages": [("ai", hashlib.sha256(base64.b64decode(picture)).hexdigest())]}


builder: Any = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_node("tools", ToolNode(GRAPH_TOOLS))
builder.add_node("compare", compare)
builder.add_edge(START, "answer")
builder.add_edge("answer", "tools")
builder.add_edge("tools", "compare")
showing_graph: Any = builder.compile()

showing: Any = PydanticAgent(pydantic_ai.Model("seeing"))
showing.tool_plain(show)
showing.tool_plain(metadata={"idempotent": True})(hold)

durable_graph: Any = create_agent(langchain.ChatModel(model="holding"), [graph_tool("hold")(hold)])
typed: Any = PydanticAgent(pydantic_ai.Model("holding"))
typed.tool_plain(metadata={"idempotent": True})(hold)


@agno_tool(requires_confirmation=True, name="hold")
def hold_confirmed(who: str) -> str:
    """Answer, if a person has confirmed it."""
    return f"held {who}"


@agents.function_tool(needs_approval=True, name_override="hold")
def hold_approved(who: str) -> str:
    """Answer, if a person has approved it."""
    return f"held {who}"


confirming = AgnoAgent(
    name="agno", model=agno.Model(id="holding"), tools=[hold_confirmed], telemetry=False
)
asking: Any = agents.Agent("code", model=openai_agents.Model("holding"), tools=[hold_approved])
