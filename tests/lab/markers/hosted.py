"""Agents in code of every kind, and the tool of all of them. The server imports this module.

Their models are those of the endpoint at `MARKERS_MODEL_URL` (`tests.lab.markers.endpoint`). One
half of the model clients has the connections of `agentctl.http_client`, the other half its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import agents
import agno.run
import openai
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team as AgnoTeam
from agno.tools import tool as agno_tool
from agno.workflow import Step as AgnoStep
from agno.workflow import Workflow as AgnoWorkflow
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext as PydanticContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import RunContext, ToolCompleted, ToolStarted, http_client
from tests.lab.markers.text import find_markers, write_entry

URL = os.environ["MARKERS_MODEL_URL"]


def keep(kind: str, text: str, context: RunContext) -> str:
    """Write a call of a tool into the ledger, with what the run of the call knows of its user."""
    known = [str(context.user_id), json.dumps(dict(context.metadata)), str(context.session_id)]
    # Only some of the faces have metadata; the others name a session of this run alone.
    (own,) = find_markers(str(context.metadata.get("marker", context.session_id)))
    write_entry(
        f"tool of {kind}",
        {own, *find_markers(text), *find_markers(" ".join(known))},
        run=str(own),
        argument=sorted(map(str, find_markers(text))),
        run_id=context.run_id,
    )
    return f"kept {text}"


def note(text: str, context: RunContext) -> str:
    """Keep a text."""
    return keep("configured", text, context)


def build_client(shared: bool) -> openai.AsyncOpenAI:
    more: dict[str, Any] = {"http_client": http_client()} if shared else {}
    return openai.AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0, **more)


# Functions

_client = build_client(False)


async def ask(message: str, context: RunContext) -> str:
    """Ask the model, with the earlier messages of the session."""
    messages: Any = [*map(dict, context.history), {"role": "user", "content": message}]
    said = []
    stream = await _client.chat.completions.create(model="marked", messages=messages, stream=True)
    async for chunk in stream:
        said += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(said)


async def function(message: str, context: RunContext) -> str:
    answer = await ask(message, context)
    context.state["last"] = message
    if "use-tool" in answer:
        keep("function", answer, context)
    return answer


async def generator(message: str, context: RunContext) -> AsyncIterator[Any]:
    yield ToolStarted("call-1", "note", {"text": message})
    result = keep("generator", message, context)
    yield ToolCompleted("call-1", result)
    for word in (await ask(message, context)).split(" "):
        yield f"{word} "


# pydantic-ai


async def pydantic_note(context: PydanticContext[RunContext], text: str) -> str:
    """Keep a text."""
    return keep("pydantic-ai", text, context.deps)


pydantic_ai: Any = PydanticAgent(
    OpenAIChatModel("marked", provider=OpenAIProvider(openai_client=build_client(False))),
    deps_type=RunContext,
    tools=[pydantic_note],
)

# LangGraph


@langchain_tool("note")
async def langchain_note(text: str, config: RunnableConfig) -> str:
    """Keep a text."""
    return keep("langgraph", text, config["configurable"]["run_context"])


def build_graph() -> Any:
    options: dict[str, Any] = {"http_async_client": http_client(), "stream_chunk_timeout": None}
    model: Any = ChatOpenAI(
        model="marked",
        base_url=URL,
        api_key="not-needed",  # type: ignore[arg-type]
        stream_usage=True,
        max_retries=0,
        **options,
    )
    chat = model.bind_tools([langchain_note])

    async def call_model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"], config)]}

    def choose_next(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode([langchain_note]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", choose_next, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile()


langgraph = build_graph()

# agno


@agno_tool(name="note")
async def agno_note(run_context: agno.run.RunContext, text: str) -> str:
    """Keep a text."""
    return keep("agno", text, (run_context.dependencies or {})["run_context"])


def build_agno_agent(**options: Any) -> Any:
    return AgnoAgent(model=build_agno_model(), tools=[agno_note], **options)


def build_agno_model() -> Any:
    return OpenAILike(id="marked", base_url=URL, api_key="not-needed", max_retries=0)


agno_agent = build_agno_agent()
agno_team = AgnoTeam(
    model=build_agno_model(), members=[build_agno_agent(id="helper", name="helper")]
)
agno_workflow = AgnoWorkflow(
    name="line", steps=[AgnoStep(name="work", agent=build_agno_agent(name="worker"), max_retries=0)]
)

# openai-agents


@agents.function_tool(name_override="note")
async def openai_note(wrapper: agents.RunContextWrapper[RunContext], text: str) -> str:
    """Keep a text."""
    return keep("openai-agents", text, wrapper.context)


openai_agents = agents.Agent(
    name="marked",
    model=agents.OpenAIChatCompletionsModel("marked", build_client(True)),
    model_settings=agents.ModelSettings(include_usage=True),
    tools=[openai_note],
)
