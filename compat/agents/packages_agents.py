"""Agents of packages as they are published, each with the model of a role.

`make compat` installs the packages into `.peers/agents`.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_bigtool import create_agent as create_bigtool_agent
from langgraph_reflection import create_reflection_graph
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from langmem import create_manage_memory_tool, create_search_memory_tool
from ledger import recorded
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_examples import bank_support as bank_module
from pydantic_ai_examples import medical_agent_delegation as medical_module
from pydantic_ai_examples.evals.agent import time_range_agent

import agentctl

URL = os.environ["MODEL_URL"]


def chat(role: str) -> ChatOpenAI:
    """Return the model of a role for LangChain."""
    options: Any = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    return ChatOpenAI(model=role, stream_usage=True, **options)


def pydantic_chat(role: str) -> OpenAIChatModel:
    """Return the model of a role for pydantic-ai."""
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    return OpenAIChatModel(role, provider=OpenAIProvider(openai_client=client))


@tool
@recorded
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
@recorded
def web_search(query: str) -> str:
    """Search the web."""
    return f"three pages about {query}"


def _build(name: str, role: str, *tools: Any) -> Any:
    return create_agent(chat(role), list(tools), name=name, system_prompt=f"You are {name}.")


team_lead: Any = create_supervisor(
    [
        _build("research_expert", "team_lead/research", web_search),
        _build("math_expert", "team_lead/math", add),
    ],
    model=chat("team_lead"),
).compile()

swarm: Any = create_swarm(
    [
        _build("alice", "swarm/alice", add, create_handoff_tool(agent_name="bob")),
        _build("bob", "swarm/bob", create_handoff_tool(agent_name="alice")),
    ],
    default_active_agent="alice",
).compile()

deep: Any = create_deep_agent(
    model=chat("deep"),
    tools=[web_search],
    system_prompt="You research.",
    subagents=[
        {
            "name": "critic",
            "description": "Criticizes a report",
            "system_prompt": "Criticize.",
            "model": chat("deep/critic"),
            "tools": [],
        }
    ],
)

bank_support = bank_module.support_agent
bank_support.model = pydantic_chat("bank_support")

time_range = time_range_agent
time_range.model = pydantic_chat("time_range")


def build_bank_support(context: agentctl.RunContext) -> Any:
    """Make the deps of a run of the bank; its queries use a cursor of its module."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    bank_module.cur = connection.cursor()  # type: ignore[attr-defined]
    connection.execute("CREATE TABLE customers(id, name, balance)")
    connection.execute("INSERT INTO customers VALUES (123, 'John', 123.45)")
    database = bank_module.DatabaseConn(sqlite_conn=connection)
    return bank_module.SupportDependencies(customer_id=123, db=database)


# langmem: tools that keep memories in the store of the server

remembering: Any = create_agent(
    chat("remembering"),
    [
        create_manage_memory_tool(namespace=("memories",)),
        create_search_memory_tool(namespace=("memories",)),
    ],
)

# langgraph-reflection: an agent and a critic that speaks as the user


async def _judge(state: MessagesState) -> Any:
    said = await chat("reflecting/critic").ainvoke([state["messages"][-1]])
    good = "good" in str(said.content)
    return {"messages": [] if good else [HumanMessage(str(said.content))]}


_critic: Any = StateGraph(MessagesState)
_critic.add_node("judge", _judge)
_critic.add_edge(START, "judge")

reflecting: Any = create_reflection_graph(
    _build("writer", "reflecting", web_search), _critic.compile(), state_schema=MessagesState
).compile()

# langgraph-bigtool: tools that the agent finds first


def _find_tools(query: str) -> list[str]:
    """Find tools for a query."""
    return ["add"]


many_tools: Any = create_bigtool_agent(
    chat("many_tools"), {"add": add, "web_search": web_search}, retrieve_tools_function=_find_tools
).compile()

# pydantic-ai-examples: further ones

triage_agent = medical_module.triage_agent
triage_agent.model = pydantic_chat("triage_agent")
medical_module.cardiology_agent.model = pydantic_chat("triage_agent/cardiology")


def build_patient(context: agentctl.RunContext) -> Any:
    """Make the deps of a run of the triage."""
    return medical_module.PatientInfo("p1", 50, ["none"])
